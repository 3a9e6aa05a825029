// SPDX-License-Identifier: Apache-2.0
/*!
 * \file scales.h
 * \brief Quantized tensors for drivers that have scales at tensors; see npu_quantization.
 *
 * A composite of integers then is the composite of real numbers, with tensors that are stored as
 * integers: lowerings see no dequantize and no quantize.
 */
#ifndef CODEGEN_SCALES_H_
#define CODEGEN_SCALES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "npu_driver.h"

namespace npu {

struct Graph;

/*! \brief What the integers of a tensor stand for: (number - zero point) * scale. */
struct Scales {
  /*! \brief One, or one for each index of a dimension. */
  std::vector<float> scales;
  /*! \brief As many. */
  std::vector<int32_t> zero_points;
  int axis = 0;

  bool is_one() const { return scales.size() == 1; }
  bool operator==(const Scales& other) const {
    return scales == other.scales && zero_points == other.zero_points &&
           (is_one() || axis == other.axis);
  }
};

/*! \brief The scales of a view; none if it mixes elements of several scales. */
std::optional<Scales> ScalesOfView(const Scales& scales, const std::vector<npu_dim>& from,
                                   const std::vector<npu_dim>& to);
/*! \brief The scales of a tensor whose dimension d is dimension order[d] of another. */
Scales Permuted(Scales scales, const int32_t* order, size_t rank);

/*!
 * \brief A graph whose quantized tensors have scales, instead of calls that quantize and dequantize
 *  them.
 *
 * In composites, these calls disappear; others keep only their data. Tensors that operations only
 * move have the scales of what is quantized or dequantized before or after that. Constant biases of
 * products become integers.
 *
 * \throws Refusal naming a call that dequantizes with other scales than the integers have, or that
 *  computes with the integers themselves.
 */
Graph WithScales(const Graph& graph);

}  // namespace npu

#endif  // CODEGEN_SCALES_H_
