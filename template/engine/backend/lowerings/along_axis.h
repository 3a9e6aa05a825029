// SPDX-License-Identifier: Apache-2.0
/*!
 * \file along_axis.h
 * \brief Shared code of ops that process elements in order along an axis.
 */
#ifndef LOWERINGS_ALONG_AXIS_H_
#define LOWERINGS_ALONG_AXIS_H_

#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief Data and one of its axes. */
struct AlongAxis {
  Tensor data;
  int64_t axis = 0;
};

/*! \brief The data and the attribute `axis`; None flattens the data. */
inline AlongAxis ReadAlongAxis(Lowering& op) {
  const Tensor data = op.Input(0);
  if (op.IsNone("axis")) return {op.View(data, {op.Joined(data.dims())}), 0};
  const int64_t rank = data.rank();
  return {data, (op.Int("axis") + rank) % rank};
}

/*! \brief Lowers the index of the first largest or smallest element. */
inline void LowerArgument(Lowering& op, bool largest) {
  auto [data, axis] = ReadAlongAxis(op);
  // To the driver NaN is the largest number. A minimum of floats is the maximum of their
  // negatives, so that it finds the first NaN, as in NumPy.
  const bool negate = !largest && IsFloat(data.desc.dtype);
  if (negate) {
    const Tensor negative = op.Temporary(data.desc.dtype, data.dims());
    op.Elementwise(negative, [&, data = data](VectorBuilder& v) {
      return v.Multiply(v.Load(data), v.Constant(-1));
    });
    data = negative;
  }
  std::vector<npu_dim> kept = data.dims();
  kept[axis] = FixedDim(1);
  const Tensor first = op.Temporary(NPU_INT64, kept);
  npu_order order = {};
  order.data = data.id;
  order.out = first.id;
  order.axis = static_cast<int32_t>(axis);
  order.descending = largest || negate;
  op.Emit(order);
  // The shape of the output implies keepdims.
  op.SetOutput(0, op.View(first, op.OutputDims()));
}

/*! \brief Lowers a running sum or product. */
inline void LowerScan(Lowering& op, npu_scan_kind kind) {
  const auto [data, axis] = ReadAlongAxis(op);
  // The type of the output implies the attribute dtype.
  const Tensor out = op.Output();
  npu_scan scan = {};
  scan.data = data.id;
  scan.out = out.id;
  scan.kind = kind;
  scan.axis = static_cast<int32_t>(axis);
  scan.exclusive = op.Bool("exclusive");
  op.Emit(scan);
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_ALONG_AXIS_H_
