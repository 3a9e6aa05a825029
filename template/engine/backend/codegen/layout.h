// SPDX-License-Identifier: Apache-2.0
/*!
 * \file layout.h
 * \brief How a driver stores a tensor: dimensions in blocks, and in another order.
 */
#ifndef CODEGEN_LAYOUT_H_
#define CODEGEN_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "npu_driver.h"
#include "permute.h"

namespace npu {

using Dims = std::vector<npu_dim>;

/*! \brief The size of the blocks of each dimension, 1 where it has none; empty if none has any. */
using Blocks = std::vector<int64_t>;

/*! \brief How a tensor is stored. */
struct Layout {
  Blocks blocks;
  /*! \brief The order of dimensions. One with blocks counts as two: the number of the block, then
   *  the place in the block. */
  Order order;

  bool has_blocks() const { return !blocks.empty(); }
  /*! \brief The number of dimensions of a tensor that has this layout. */
  int rank() const { return static_cast<int>(has_blocks() ? blocks.size() : order.size()); }
  bool operator==(const Layout& other) const {
    return std::tie(blocks, order) == std::tie(other.blocks, other.order);
  }
};

/*! \brief The order 0, 1, 2, ... */
Order Identity(int rank);
bool IsIdentity(const Order& order);
/*! \brief Order `a` of the dimensions that `b` gives: c[i] = a[b[i]]. */
Order Composed(const Order& a, const Order& b);
std::string Text(const Order& order);

bool IsSame(const npu_dim& a, const npu_dim& b);
bool IsSame(const Dims& a, const Dims& b);
npu_tensor_desc DescOf(npu_dtype dtype, const Dims& dims);
/*! \brief The tensor with its dimensions in that order. */
npu_tensor_desc Stored(const npu_tensor_desc& desc, const Order& order);

/*! \brief Whether each block divides its dimension; a dimension of size 1 is a block. */
bool CanSplit(const Dims& dims, const Blocks& blocks);
/*! \brief The shape in which dimensions with blocks are two. */
Dims Split(const Dims& dims, const Blocks& blocks);
/*! \brief Where each dimension begins in the shape that Split gives; with its rank at the end. */
std::vector<int> SplitPlaces(const Blocks& blocks, int rank);
/*! \brief An order of all or some whole dimensions as an order of those that Split gives. */
Order SplitOrder(const Order& order, const Blocks& blocks);
/*! \brief Blocks by dimension, or none if all are 1. */
Blocks OrNone(Blocks blocks);
/*! \brief The block of a dimension: 1 where it has none. */
int64_t BlockOf(const Blocks& blocks, int dim);

/*! \brief Whether both orders put a tensor's elements in the same places. */
bool HasSamePlaces(const Dims& dims, const Order& a, const Order& b);

/*!
 * \brief The order in which a view has its elements in the same places as the tensor it views.
 * \param from The shape of the other tensor.
 * \param order The order in which that tensor is stored.
 * \param to The shape of the view.
 * \return None if there is no such order.
 */
std::optional<Order> OrderOfView(const Dims& from, const Order& order, const Dims& to);

/*! \brief Sizes for the runtime, which computes one of unknown size, -1, from the number of
 *  elements; none if several are unknown, or if there are no elements. */
std::optional<std::vector<int64_t>> PortSizes(const npu_tensor_desc& desc);

}  // namespace npu

#endif  // CODEGEN_LAYOUT_H_
