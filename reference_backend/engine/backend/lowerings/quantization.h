// SPDX-License-Identifier: Apache-2.0
/*!
 * \file quantization.h
 * \brief Shared code of quantize and dequantize.
 */
#ifndef LOWERINGS_QUANTIZATION_H_
#define LOWERINGS_QUANTIZATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

inline bool IsOne(npu_dim dim) { return dim.size == 1 && dim.symbol < 0; }

/*! \brief Argument `i`, a scale or a zero point, in a shape that broadcasts against the data: one
 *  number, or one for each element along the attribute `axis`. */
inline Tensor QuantizationParameter(Lowering& op, size_t i) {
  const Tensor parameter = op.Input(i);
  if (parameter.rank() == 0) return parameter;
  const int64_t rank = op.Input(0).rank();
  std::vector<npu_dim> dims(1, parameter.dims()[0]);
  if (!IsOne(dims[0])) {
    const int64_t axis = (op.Int("axis") + rank) % rank;
    dims.resize(rank - axis, FixedDim(1));
  }
  return op.View(parameter, dims);
}

/*! \brief Whether there is one scale and one zero point, which makes it an element-wise op. */
inline bool HasOneScale(const Lowering& op) {
  for (size_t i = 1; i < op.InputCount(); ++i) {
    const std::vector<npu_dim> dims = op.InputDims(i);
    if (dims.size() > 1 || (dims.size() == 1 && !IsOne(dims[0]))) return false;
  }
  return true;
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_QUANTIZATION_H_
