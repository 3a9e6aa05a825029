// SPDX-License-Identifier: Apache-2.0
/*!
 * \file copy.cc
 * \brief Copies of boxes of elements.
 */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "internal.h"

namespace npu::emulator {

namespace {

// A dimension of the box, and how far apart its elements are, in elements.
struct Dimension {
  int64_t size, from, to;
};

struct Box {
  explicit Box(const CopyArgs& args) {
    int64_t from[NPU_MAX_RANK];
    int64_t stride = 1;
    for (int d = args.data.rank - 1; d >= 0; --d) {
      from[d] = stride;
      stride *= args.data.dims[d];
    }
    stride = 1;
    for (int d = args.out.rank - 1; d >= 0; --d) {
      int axis = args.permutation[d];
      Dimension next = {args.Extent(d), from[axis] * args.data_step[axis],
                        stride * args.out_step[d]};
      data_begin += args.data_offset[axis] * from[axis];
      out_begin += args.out_offset[d] * stride;
      stride *= args.out.dims[d];
      elements *= next.size;
      if (next.size == 1) continue;
      steps = steps || args.out_step[d] != 1;
      Dimension* last = rank == 0 ? nullptr : &dimensions[rank - 1];
      if (last != nullptr && next.from == last->from * last->size &&
          next.to == last->to * last->size) {
        last->size *= next.size;
      } else {
        dimensions[rank++] = next;
      }
    }
  }

  // Innermost first; dimensions that can be walked as one are merged.
  int rank = 0;
  Dimension dimensions[NPU_MAX_RANK];
  int64_t data_begin = 0, out_begin = 0;
  int64_t elements = 1;
  // Whether there are gaps between the elements in the output.
  bool steps = false;

  // Takes out the dimension whose elements are contiguous on that side.
  Dimension Remove(int64_t Dimension::* side) {
    for (int d = 0; d < rank; ++d) {
      if (dimensions[d].*side != 1) continue;
      Dimension found = dimensions[d];
      std::copy(dimensions + d + 1, dimensions + rank, dimensions + d);
      --rank;
      return found;
    }
    return {1, 1, 1};
  }
};

// The part that is copied at once: a piece of `inner` (contiguous in the output) for each element
// of a piece of `outer` (contiguous in the data).
template <typename T>
void CopyPiece(const Dimension& inner, const Dimension& outer, const T* from, T* to) {
  if (inner.from == 1 && inner.size > 1) {
    for (int64_t i = 0; i < outer.size; ++i) {
      std::memcpy(to + i * outer.to, from + i * outer.from,
                  static_cast<size_t>(inner.size) * sizeof(T));
    }
    return;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    // Bits are moved unchanged: nothing is computed with them.
    if (inner.from == 2 && inner.to == 1) {
      ActiveSimd().take(outer.size, inner.size, reinterpret_cast<const float*>(from), outer.from, 2,
                        reinterpret_cast<float*>(to), outer.to);
      return;
    }
    if (outer.from == 1) {
      ActiveSimd().transpose(inner.size, outer.size, reinterpret_cast<const float*>(from),
                             inner.from, reinterpret_cast<float*>(to), outer.to);
      return;
    }
  }
  for (int64_t i = 0; i < outer.size; ++i) {
    for (int64_t j = 0; j < inner.size; ++j) {
      to[i * outer.to + j * inner.to] = from[i * outer.from + j * inner.from];
    }
  }
}

template <typename T>
void CopyBox(const CopyArgs& args, Box box, const KernelContext& context) {
  Dimension inner = box.Remove(&Dimension::to);
  Dimension outer = {1, 1, 1};
  int64_t inner_step = 16384;
  int64_t outer_step = 1;
  if (inner.from != 1) outer = box.Remove(&Dimension::from);
  if (outer.size > 1) {
    // Tiles that are read and written while they are in the cache.
    inner_step = outer_step = 32;
  } else if (box.rank > 0) {
    // Short lines: several at once.
    outer = box.dimensions[0];
    std::copy(box.dimensions + 1, box.dimensions + box.rank, box.dimensions);
    --box.rank;
    outer_step = std::max<int64_t>(1, 4096 / inner.size);
  }
  int64_t inner_count = CeilDivide(inner.size, inner_step);
  int64_t outer_count = CeilDivide(outer.size, outer_step);
  int64_t count = inner_count * outer_count;
  for (int d = 0; d < box.rank; ++d) count *= box.dimensions[d].size;
  const T* data = static_cast<const T*>(args.data.data) + box.data_begin;
  T* out = static_cast<T*>(args.out.data) + box.out_begin;
  auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      Dimension x = inner, y = outer;
      int64_t x_begin = i % inner_count * inner_step;
      int64_t y_begin = i / inner_count % outer_count * outer_step;
      x.size = std::min(inner_step, inner.size - x_begin);
      y.size = std::min(outer_step, outer.size - y_begin);
      int64_t from = x_begin * x.from + y_begin * y.from;
      int64_t to = x_begin * x.to + y_begin * y.to;
      int64_t rest = i / inner_count / outer_count;
      for (int d = 0; d < box.rank; ++d) {
        from += rest % box.dimensions[d].size * box.dimensions[d].from;
        to += rest % box.dimensions[d].size * box.dimensions[d].to;
        rest /= box.dimensions[d].size;
      }
      CopyPiece(x, y, data + from, out + to);
    }
  };
  int64_t piece = std::min(inner_step, inner.size) * std::min(outer_step, outer.size);
  Parallel(context, count, Grain(piece), run);
}

template <typename T>
void StoreInteger(double number, void* to) {
  using Limits = std::numeric_limits<T>;
  double nearest = std::isnan(number) ? 0 : std::nearbyint(number);
  // As doubles, the limits of int64 are powers of two; the upper one is too large by one.
  T integer = nearest >= static_cast<double>(Limits::max())   ? Limits::max()
              : nearest <= static_cast<double>(Limits::min()) ? Limits::min()
                                                              : static_cast<T>(nearest);
  std::memcpy(to, &integer, sizeof(integer));
}

// Stores one number: as the kernels do, but integers do not go through float32.
void StoreNumber(npu_dtype dtype, double number, void* to) {
  if (IsInteger(dtype) && dtype != NPU_BOOL) {
    return WithElement(dtype, [&](auto type) { StoreInteger<decltype(type)>(number, to); });
  }
  auto real = static_cast<float>(number);
  ActiveSimd().store(dtype, &real, 1, to);
}

// Fills the elements outside of a box, which is not empty, and smaller than the output.
template <typename T>
void FillRest(const CopyArgs& args, T value, const KernelContext& context) {
  int last = args.out.rank - 1;
  int64_t length = args.out.dims[last];
  int64_t box_begin = args.out_offset[last];
  int64_t box_end = box_begin + args.Extent(last);
  T* out = static_cast<T*>(args.out.data);
  int64_t rows = 1;
  for (int d = 0; d < last; ++d) rows *= args.out.dims[d];
  auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      bool inside = true;
      int64_t rest = row;
      for (int d = last - 1; d >= 0; --d) {
        int64_t at = rest % args.out.dims[d] - args.out_offset[d];
        rest /= args.out.dims[d];
        inside = inside && at >= 0 && at < args.Extent(d);
      }
      T* line = out + row * length;
      std::fill(line, line + (inside ? box_begin : length), value);
      if (inside) std::fill(line + box_end, line + length, value);
    }
  };
  Parallel(context, rows, Grain(length), run);
}

// Copies lines whose elements come to lie apart, as transposed convolutions read them, and fills
// the rest: in one pass over the output. Elements of a line are contiguous in the data.
template <typename T>
void SpreadLines(const CopyArgs& args, T value, const KernelContext& context) {
  const int last = args.out.rank - 1;
  const int64_t length = args.out.dims[last], step = args.out_step[last];
  const int64_t first = args.out_offset[last], count = args.Extent(last);
  const int64_t end = first + (count - 1) * step + 1;
  int64_t strides[NPU_MAX_RANK], extents[NPU_MAX_RANK];
  int64_t begin_of_data = 0, rows = 1, stride = 1;
  for (int d = last; d >= 0; --d) {
    begin_of_data += args.data_offset[d] * stride;
    strides[d] = stride * args.data_step[d];
    stride *= args.data.dims[d];
    extents[d] = args.Extent(d);
    if (d != last) rows *= args.out.dims[d];
  }
  const T* data = static_cast<const T*>(args.data.data) + begin_of_data;
  T* out = static_cast<T*>(args.out.data);
  auto run = [&](int64_t begin_row, int64_t end_row, int) {
    for (int64_t row = begin_row; row < end_row; ++row) {
      const T* from = data;
      bool inside = true;
      int64_t rest = row;
      for (int d = last - 1; d >= 0; --d) {
        const int64_t at = rest % args.out.dims[d] - args.out_offset[d];
        rest /= args.out.dims[d];
        const int64_t element = at / args.out_step[d];
        inside = inside && at >= 0 && at % args.out_step[d] == 0 && element < extents[d];
        from += inside ? element * strides[args.permutation[d]] : 0;
      }
      T* line = out + row * length;
      if (!inside) {
        std::fill(line, line + length, value);
        continue;
      }
      std::fill(line, line + first, value);
      T* to = line + first;
      if (step == 2) {
        for (int64_t i = 0; i + 1 < count; ++i) {
          to[2 * i] = from[i];
          to[2 * i + 1] = value;
        }
        to[2 * (count - 1)] = from[count - 1];
      } else {
        std::fill(to, line + end, value);
        for (int64_t i = 0; i < count; ++i) to[i * step] = from[i];
      }
      std::fill(line + end, line + length, value);
    }
  };
  Parallel(context, rows, Grain(length), run);
}

template <typename T>
void FillAll(const CopyArgs& args, int64_t count, T value, const KernelContext& context) {
  T* out = static_cast<T*>(args.out.data);
  auto run = [&](int64_t begin, int64_t end, int) { std::fill(out + begin, out + end, value); };
  Parallel(context, count, Grain(1), run);
}

template <typename T>
void CopyElements(const CopyArgs& args, const KernelContext& context) {
  int64_t all = ElementCount(args.out);
  if (all == 0) return;
  Box box(args);
  if (args.data.data == nullptr) box.elements = 0;
  if (args.fill && box.elements < all) {
    T value;
    StoreNumber(args.out.dtype, args.fill_value, &value);
    const int last = args.out.rank - 1;
    if (box.elements > 0 && box.steps && args.permutation[last] == last &&
        args.data_step[last] == 1) {
      return SpreadLines<T>(args, value, context);
    }
    if (box.elements == 0 || box.steps) {
      FillAll<T>(args, all, value, context);
    } else {
      FillRest<T>(args, value, context);
    }
  }
  if (box.elements > 0) CopyBox<T>(args, box, context);
}

}  // namespace

size_t ScratchBytes(const CopyArgs&, int) { return 0; }

void Execute(const CopyArgs& args, const KernelContext& context) {
  WithElement(args.out.dtype, [&](auto type) {
    CopyElements<std::make_unsigned_t<decltype(type)>>(args, context);
  });
}

}  // namespace npu::emulator
