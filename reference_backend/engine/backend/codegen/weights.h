// SPDX-License-Identifier: Apache-2.0
/*!
 * \file weights.h
 * \brief Integer weights: the second operand of a matmul whose first operand has real numbers.
 */
#ifndef CODEGEN_WEIGHTS_H_
#define CODEGEN_WEIGHTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "npu_driver.h"
#include "units.h"

namespace npu {

/*! \brief A constant matrix of integers that is dequantized. */
struct DequantizedMatrix {
  /*! \brief The integers, int8 or uint8. */
  std::string_view bytes;
  npu_dtype dtype = NPU_INT8;
  /*! \brief Element i has the scale i / inner % scales.size(); the same holds for zero points. */
  int64_t inner = 1;
  std::vector<double> scales, zero_points;
  /*! \brief The sizes of the summed dimension and of the columns; there may be several matrices. */
  int64_t depth = 0, columns = 0;
  /*! \brief Whether the elements of a column are contiguous. */
  bool transposed = false;
};

/*! \brief The same, in npu_matmul's terms. */
struct IntegerWeights {
  int32_t bits = 8;
  int32_t zero_point = 0;
  /*! \brief 0: the epilogue has the scales, one or one for each column. */
  int64_t block = 0;
  /*! \brief If there are blocks: [depth / block, columns]. */
  std::vector<float> scales;
  /*! \brief If there are blocks, like the scales; empty: all are `zero_point`. */
  std::vector<uint8_t> zero_points;
};

/*! \brief The matrix that a unit multiplies by; `who` names it in Refusals. */
DequantizedMatrix WeightsOf(const Graph& graph, const Unit& unit, const std::string& who);
/*! \brief Determines how the scales are laid out; false if no driver supports this layout. */
bool ReadWeights(const DequantizedMatrix& matrix, IntegerWeights* weights);
/*! \brief The real numbers, in the same order. */
std::vector<float> RealNumbers(const DequantizedMatrix& matrix);

}  // namespace npu

#endif  // CODEGEN_WEIGHTS_H_
