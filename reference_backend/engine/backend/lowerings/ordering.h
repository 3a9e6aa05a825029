// SPDX-License-Identifier: Apache-2.0
/*!
 * \file ordering.h
 * \brief Shared code of topk, sort and argsort.
 */
#ifndef LOWERINGS_ORDERING_H_
#define LOWERINGS_ORDERING_H_

#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief Writes to `indices` the indices of the elements in order along an axis, as many as fit,
 *  and returns the axis counted from the front. */
inline int64_t LowerOrder(Lowering& op, const Tensor& data, bool descending,
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

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_ORDERING_H_
