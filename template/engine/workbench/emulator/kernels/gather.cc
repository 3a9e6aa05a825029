// SPDX-License-Identifier: Apache-2.0
/*!
 * \file gather.cc
 * \brief Elements by their indices, and slices at their positions.
 */
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "../operations.h"
#include "internal.h"

namespace npu::emulator {

namespace {

// Slices of `inner` elements, each copied at once unless it is a single element.
template <typename T, typename Index>
void GatherSlices(const GatherArgs& args, int64_t outer, int64_t size, int64_t inner,
                  const KernelContext& context) {
  const T* data = static_cast<const T*>(args.data.data);
  const Index* indices = static_cast<const Index*>(args.indices.data);
  T* out = static_cast<T*>(args.out.data);
  int64_t count = ElementCount(args.indices);
  auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end;) {
      int64_t first = i % count;
      int64_t run = std::min(end - i, count - first);
      const T* from = data + i / count * size * inner;
      T* to = out + i * inner;
      for (int64_t j = 0; j < run; ++j) {
        int64_t index = std::clamp<int64_t>(indices[first + j], 0, size - 1);
        if (inner == 1) {
          to[j] = from[index];
        } else {
          std::memcpy(to + j * inner, from + index * inner, static_cast<size_t>(inner) * sizeof(T));
        }
      }
      i += run;
    }
  };
  Parallel(context, outer * count, Grain(inner), run);
}

// One index for each element of the output.
template <typename T, typename Index>
void GatherElements(const GatherArgs& args, const KernelContext& context) {
  const T* data = static_cast<const T*>(args.data.data);
  const Index* indices = static_cast<const Index*>(args.indices.data);
  T* out = static_cast<T*>(args.out.data);
  int last = args.out.rank - 1;
  int64_t length = args.out.dims[last];
  int64_t size = args.data.dims[args.axis];
  int64_t strides[NPU_MAX_RANK];
  strides[last] = 1;
  for (int d = last; d > 0; --d) strides[d - 1] = strides[d] * args.data.dims[d];
  int64_t stride = strides[args.axis];
  int64_t step = args.axis == last ? 0 : 1;
  auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t base = 0;
      int64_t rest = row;
      for (int d = last - 1; d >= 0; --d) {
        if (d != args.axis) base += rest % args.out.dims[d] * strides[d];
        rest /= args.out.dims[d];
      }
      for (int64_t j = 0; j < length; ++j) {
        int64_t index = std::clamp<int64_t>(indices[row * length + j], 0, size - 1);
        out[row * length + j] = data[base + index * stride + j * step];
      }
    }
  };
  Parallel(context, ElementCount(args.out) / length, Grain(length), run);
}

template <typename T, typename Index>
void GatherAs(const GatherArgs& args, const KernelContext& context) {
  if (args.elementwise) return GatherElements<T, Index>(args, context);
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < args.axis; ++d) outer *= args.data.dims[d];
  for (int d = args.axis + 1; d < args.data.rank; ++d) inner *= args.data.dims[d];
  GatherSlices<T, Index>(args, outer, args.data.dims[args.axis], inner, context);
}

template <typename T>
void GatherAs(const GatherArgs& args, const KernelContext& context) {
  if (args.indices.dtype == NPU_INT32) return GatherAs<T, int32_t>(args, context);
  GatherAs<T, int64_t>(args, context);
}

}  // namespace

size_t ScratchBytes(const GatherArgs&, int) { return 0; }

void Execute(const GatherArgs& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  WithElement(args.out.dtype,
              [&](auto type) { GatherAs<std::make_unsigned_t<decltype(type)>>(args, context); });
}

size_t ScratchBytes(const UpdateArgs&, int) { return 0; }

void Execute(const UpdateArgs& args, const KernelContext&) {
  int64_t outer = 1;
  auto bytes = static_cast<int64_t>(ElementSize(args.out.dtype));
  for (int d = 0; d < args.axis; ++d) outer *= args.out.dims[d];
  for (int d = args.axis + 1; d < args.out.rank; ++d) bytes *= args.out.dims[d];
  const int64_t size = args.out.dims[args.axis];
  const int64_t count = args.value.dims[args.axis];
  const auto* value = static_cast<const uint8_t*>(args.value.data);
  auto* out = static_cast<uint8_t*>(args.out.data);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t position = args.positions.dtype == NPU_INT32
                                 ? static_cast<const int32_t*>(args.positions.data)[j]
                                 : static_cast<const int64_t*>(args.positions.data)[j];
    if (position < 0 || position >= size) continue;
    for (int64_t i = 0; i < outer; ++i) {
      std::memcpy(out + (i * size + position) * bytes, value + (i * count + j) * bytes,
                  static_cast<size_t>(bytes));
    }
  }
}

size_t ScratchBytes(const PlainArgs<npu_lookup>&, int) { return 0; }

void Execute(const PlainArgs<npu_lookup>& args, const KernelContext& context) {
  WithElement(args.out.dtype, [&](auto type) {
    using T = decltype(type);
    const T* table = static_cast<const T*>(args.reads[1].data);
    const auto* data = static_cast<const uint8_t*>(args.data().data);
    T* out = static_cast<T*>(args.out.data);
    // With the sign bit flipped, int8 numbers are in the order of the table.
    uint8_t turned = args.data().dtype == NPU_INT8 ? 0x80 : 0;
    Parallel(context, ElementCount(args.out), Grain(1), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) out[i] = table[data[i] ^ turned];
    });
  });
}

}  // namespace npu::emulator
