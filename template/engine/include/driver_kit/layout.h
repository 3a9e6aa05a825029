// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/layout.h
 * \brief Channels last, for SDKs that want tensors of four dimensions so.
 */
#ifndef DRIVER_KIT_LAYOUT_H_
#define DRIVER_KIT_LAYOUT_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "driver_kit/program.h"

namespace npu::kit {

/*! \brief How a shape is stored. */
inline Dims Stored(const Dims& dims, bool channels_last) {
  if (!channels_last || dims.size() != 4) return dims;
  return {dims[0], dims[2], dims[3], dims[1]};
}

/*! \brief Where a dimension of a shape is stored. */
inline size_t StoredAxis(size_t axis, size_t rank, bool channels_last) {
  if (!channels_last || rank != 4 || axis == 0) return axis;
  return axis == 1 ? 3 : axis - 1;
}

/*! \brief Whether a shape is stored in the order of the caller's elements. */
inline bool IsRowMajor(const Dims& dims, bool channels_last) {
  return !channels_last || dims.size() != 4 || dims[1] == 1 || dims[2] * dims[3] == 1;
}

/*! \brief Copies elements between the caller's order and that in which they are stored. */
inline void Transpose(const Value& stored, const void* from, void* to, bool channels_last,
                      bool to_stored) {
  const Dims dims = DimsOf(stored);
  const size_t size = ElementSize(stored.dtype);
  const bool same = !channels_last || dims.size() != 4 || dims[3] == 1 || dims[1] * dims[2] == 1;
  if (same) {
    std::memcpy(to, from, BytesOf(stored));
    return;
  }
  const size_t places = static_cast<size_t>(dims[1] * dims[2]);
  const size_t channels = static_cast<size_t>(dims[3]);
  auto each = [&](auto element) {
    using Element = decltype(element);
    const auto* source = static_cast<const Element*>(from);
    auto* target = static_cast<Element*>(to);
    for (int64_t n = 0; n < dims[0]; ++n) {
      for (size_t c = 0; c < channels; ++c) {
        for (size_t p = 0; p < places; ++p) {
          if (to_stored) {
            target[p * channels + c] = source[c * places + p];
          } else {
            target[c * places + p] = source[p * channels + c];
          }
        }
      }
      source += places * channels;
      target += places * channels;
    }
  };
  if (size == 1) each(uint8_t{});
  if (size == 2) each(uint16_t{});
  if (size == 4) each(uint32_t{});
  if (size == 8) each(uint64_t{});
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_LAYOUT_H_
