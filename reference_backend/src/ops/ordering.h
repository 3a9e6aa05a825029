// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file ordering.h
 * \brief What topk, sort and argsort have in common.
 */
#ifndef OPS_ORDERING_H_
#define OPS_ORDERING_H_

#include <cstdint>

#include "lowering.h"

namespace tvm_example_npu {

/*! \brief Writes to `indices` which element comes first, second, ... along an axis, as many as it
 *  has room for, and returns the axis counted from the front. */
inline int32_t LowerOrder(Lowering& op, const Tensor& data, bool descending,
                          const Tensor& indices) {
  const int64_t rank = data.rank();
  npu_order order = {};
  order.data = data.id;
  order.out = indices.id;
  order.axis = static_cast<int32_t>((op.Int("axis") + rank) % rank);
  order.descending = descending ? 1 : 0;
  op.Emit(order);
  return order.axis;
}

/*! \brief Writes the elements at `indices` along an axis. */
inline void LowerPick(Lowering& op, const Tensor& data, const Tensor& indices, int32_t axis,
                      const Tensor& out) {
  npu_gather gather = {};
  gather.data = data.id;
  gather.indices = indices.id;
  gather.out = out.id;
  gather.axis = axis;
  gather.elementwise = 1;
  op.Emit(gather);
}

}  // namespace tvm_example_npu

#endif  // OPS_ORDERING_H_
