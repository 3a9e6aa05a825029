// SPDX-License-Identifier: Apache-2.0
/*!
 * \file reduction.h
 * \brief Shared code of the reductions over axes. The shape of the output implies keepdims.
 */
#ifndef LOWERINGS_REDUCTION_H_
#define LOWERINGS_REDUCTION_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief The attribute `axis` counted from 0: a list, where None means all. */
inline std::vector<int64_t> ReducedAxes(const Lowering& op) {
  const int64_t rank = op.Input(0).rank();
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (!op.IsNone("axis")) axes = op.Ints("axis");
  if (axes.empty()) op.Refuse("its attribute 'axis' must name an axis");
  for (int64_t& axis : axes) axis = (axis + rank) % rank;
  return axes;
}

/*! \brief Lowers a reduction that the hardware has. */
inline void LowerReduction(Lowering& op, npu_reduce_kind kind) {
  op.Reduce(kind, op.Input(0), ReducedAxes(op), op.Output());
}

/*! \brief Lowers the mean of the squared deviations from the mean, or the root of it. */
inline void LowerVariance(Lowering& op, bool root) {
  const Tensor data = op.Input(0);
  const std::vector<int64_t> axes = ReducedAxes(op);
  std::vector<npu_dim> kept = data.dims();
  for (int64_t axis : axes) kept[axis] = FixedDim(1);
  const Tensor mean = op.Temporary(NPU_FLOAT32, kept);
  op.Reduce(NPU_REDUCE_MEAN, data, axes, mean);
  const Tensor square = op.Temporary(NPU_FLOAT32, data.dims());
  op.Elementwise(square, [&](VectorBuilder& v) {
    Value deviation = v.Subtract(v.Load(data), v.Load(mean));
    return v.Multiply(deviation, deviation);
  });
  op.Reduce(NPU_REDUCE_MEAN, square, axes, op.Output(),
            [&](VectorBuilder& v, Value variance) { return root ? v.Sqrt(variance) : variance; });
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_REDUCTION_H_
