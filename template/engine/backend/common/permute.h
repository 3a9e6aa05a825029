// SPDX-License-Identifier: Apache-2.0
/*!
 * \file permute.h
 * \brief Copies a tensor with its dimensions in another order.
 */
#ifndef COMMON_PERMUTE_H_
#define COMMON_PERMUTE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "npu_driver.h"

namespace npu {

/*! \brief An order of dimensions: dimension i in memory is dimension order[i]. */
using Order = std::vector<int>;

inline bool IsPermutation(const Order& order) {
  if (order.size() > NPU_MAX_RANK) return false;
  unsigned seen = 0;
  for (int dim : order) {
    if (dim < 0 || dim >= static_cast<int>(order.size())) return false;
    seen |= 1u << static_cast<unsigned>(dim);
  }
  return seen + 1 == 1u << order.size();
}

/*! \brief The position of each dimension in memory. */
inline Order Inverse(const Order& order) {
  Order inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int>(i);
  return inverse;
}

/*! \brief The dimensions in an order. */
template <typename T>
std::vector<T> Reordered(const T* dims, const Order& order) {
  std::vector<T> result;
  result.reserve(order.size());
  for (int dim : order) result.push_back(dims[dim]);
  return result;
}

/*! \brief Whether an order leaves a tensor's elements in row-major order. */
inline bool KeepsPlaces(const int64_t* dims, const Order& order) {
  int last = -1;
  for (int dim : order) {
    if (dims[dim] == 1) continue;
    if (dim < last) return false;
    last = dim;
  }
  return true;
}

template <typename T>
void PermuteElements(const std::vector<int64_t>& dims, const std::vector<int64_t>& steps,
                     const T* from, T* to) {
  const size_t last = dims.size() - 1;
  std::vector<int64_t> at(dims.size(), 0);
  while (true) {
    for (int64_t i = 0; i < dims[last]; ++i) *to++ = from[i * steps[last]];
    size_t dim = last;
    while (dim > 0 && ++at[dim - 1] == dims[dim - 1]) {
      from -= (dims[dim - 1] - 1) * steps[dim - 1];
      at[--dim] = 0;
    }
    if (dim == 0) return;
    from += steps[dim - 1];
  }
}

/*!
 * \brief Copies a row-major tensor.
 * \param dims The dimensions of `from`.
 * \param order For each dimension of `to`, its index among those of `from`.
 */
inline void Permute(const int64_t* dims, const Order& order, size_t element_bytes, const void* from,
                    void* to) {
  std::vector<int64_t> steps(order.size(), 1);
  for (size_t i = order.size(); i-- > 1;) steps[i - 1] = steps[i] * dims[i];
  std::vector<int64_t> to_dims = Reordered(dims, order);
  std::vector<int64_t> to_steps = Reordered(steps.data(), order);
  to_dims.insert(to_dims.begin(), 1);  // Scalars also need a dimension.
  to_steps.insert(to_steps.begin(), 0);
  for (int64_t size : to_dims) {
    if (size == 0) return;
  }
  auto run = [&](auto element) {
    using T = decltype(element);
    PermuteElements(to_dims, to_steps, static_cast<const T*>(from), static_cast<T*>(to));
  };
  switch (element_bytes) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

}  // namespace npu

#endif  // COMMON_PERMUTE_H_
