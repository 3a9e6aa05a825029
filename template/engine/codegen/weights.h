// SPDX-License-Identifier: Apache-2.0
/*!
 * \file weights.h
 * \brief Weights of integers: what a matmul's second operand is where real numbers are multiplied
 * by integers.
 */
#ifndef CODEGEN_WEIGHTS_H_
#define CODEGEN_WEIGHTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "npu_driver.h"

namespace npu {

/*! \brief A constant matrix that is dequantized. */
struct DequantizedMatrix {
  /*! \brief The integers, int8 or uint8. */
  std::string_view bytes;
  npu_dtype dtype = NPU_INT8;
  /*! \brief Element i has the scale i / inner % scales.size(); the same holds for zero points. */
  int64_t inner = 1;
  std::vector<double> scales, zero_points;
  /*! \brief The summed dimension and the columns; there may be several matrices. */
  int64_t depth = 0, columns = 0;
  /*! \brief Whether the elements of a column lie side by side. */
  bool transposed = false;
};

/*! \brief The same, in npu_matmul's terms. */
struct IntegerWeights {
  int32_t bits = 8;
  int32_t zero_point = 0;
  /*! \brief 0: the scales are for the epilogue, one or one for each column. */
  int64_t block = 0;
  /*! \brief With blocks [depth / block, columns]. */
  std::vector<float> scales;
  /*! \brief With blocks, as the scales; empty: all are `zero_point`. */
  std::vector<uint8_t> zero_points;
};

/*! \brief Finds out how the scales lie; false if no driver supports this layout. */
bool ReadWeights(const DequantizedMatrix& matrix, IntegerWeights* weights);
/*! \brief The real numbers, in the same order. */
std::vector<float> RealNumbers(const DequantizedMatrix& matrix);

}  // namespace npu

#endif  // CODEGEN_WEIGHTS_H_
