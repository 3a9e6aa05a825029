// SPDX-License-Identifier: Apache-2.0
/*!
 * \file normalization.h
 * \brief Shared code of the normalizations that compute their own statistics.
 */
#ifndef LOWERINGS_NORMALIZATION_H_
#define LOWERINGS_NORMALIZATION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief The attribute `axes` counted from 0, in ascending order. */
inline std::vector<int64_t> NormalizedAxes(Lowering& op) {
  const int64_t rank = op.Input(0).rank();
  std::vector<int64_t> axes = op.Ints("axes");
  for (int64_t& axis : axes) axis = (axis + rank) % rank;
  if (!std::is_sorted(axes.begin(), axes.end())) {
    op.Refuse("its attribute 'axes' must name the axes in ascending order");
  }
  return axes;
}

/*! \brief The dimensions `dims` at `axes`, and 1 elsewhere (`inside`) or the other way round. */
inline std::vector<npu_dim> DimsAt(std::vector<npu_dim> dims, const std::vector<int64_t>& axes,
                                   bool inside) {
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    const bool named = std::find(axes.begin(), axes.end(), i) != axes.end();
    if (named != inside) dims[i] = FixedDim(1);
  }
  return dims;
}

/*! \brief 1 / sqrt(mean of `square` over `axes` + epsilon), with the reduced dimensions as 1. */
inline Tensor InverseRoot(Lowering& op, const Tensor& square, const std::vector<int64_t>& axes,
                          double epsilon) {
  const Tensor factor = op.Temporary(NPU_FLOAT32, DimsAt(square.dims(), axes, false));
  op.Reduce(NPU_REDUCE_MEAN, square, axes, factor, [&](VectorBuilder& v, Value mean) {
    return v.Divide(v.Constant(1), v.Sqrt(v.Add(mean, v.Constant(epsilon))));
  });
  return factor;
}

/*! \brief out = (data - mean) / deviation * gamma + beta with the statistics over `axes`. `gamma`
 *  and `beta` broadcast against the data. */
inline void Normalize(Lowering& op, const Tensor& data, const std::vector<int64_t>& axes,
                      const Tensor& gamma, const Tensor& beta, const Tensor& out) {
  // TVM's kernels apply gamma and beta whatever `center` and `scale` are.
  if (!op.Bool("center")) op.Refuse("center=False is not supported; supported: True");
  if (!op.Bool("scale")) op.Refuse("scale=False is not supported; supported: True");
  // The variance takes a second pass, which is exact for data far from zero.
  const Tensor mean = op.Temporary(NPU_FLOAT32, DimsAt(data.dims(), axes, false));
  op.Reduce(NPU_REDUCE_MEAN, data, axes, mean);
  const Tensor square = op.Temporary(NPU_FLOAT32, data.dims());
  op.Elementwise(square, [&](VectorBuilder& v) {
    Value deviation = v.Subtract(v.Load(data), v.Load(mean));
    return v.Multiply(deviation, deviation);
  });
  const Tensor factor = InverseRoot(op, square, axes, op.Float("epsilon"));
  op.Elementwise(out, [&](VectorBuilder& v) {
    Value normal = v.Multiply(v.Subtract(v.Load(data), v.Load(mean)), v.Load(factor));
    return v.Add(v.Multiply(normal, v.Load(gamma)), v.Load(beta));
  });
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_NORMALIZATION_H_
