// SPDX-License-Identifier: Apache-2.0
/*!
 * \file windows.cc
 * \brief The windows of convolutions and pools.
 */
#include "windows.h"

#include <algorithm>
#include <numeric>

#include "gemm.h"

namespace npu::emulator {

Windows::Windows(const TensorView& data, const TensorView& result, int32_t spatial_rank,
                 const int64_t* window_sizes, const int64_t* window_strides,
                 const int64_t* window_dilations, const int64_t* pads_begin)
    : dtype(data.dtype), taps(1), in_size(1), out_size(1), part_size(1) {
  for (int d = 0; d < 3; ++d) {
    int from = d - (3 - spatial_rank);
    bool exists = from >= 0;
    in[d] = exists ? data.dims[2 + from] : 1;
    out[d] = exists ? result.dims[2 + from] : 1;
    window[d] = exists ? std::max<int64_t>(window_sizes[from], 1) : 1;
    strides[d] = exists ? window_strides[from] : 1;
    dilations[d] = exists ? window_dilations[from] : 1;
    pads[d] = exists ? pads_begin[from] : 0;
    // Taps k and k + period meet the same positions modulo the stride.
    int64_t period = strides[d] / std::gcd(strides[d], dilations[d]);
    phases[d] = std::min(period, window[d]);
    part[d] = out[d] + (window[d] - 1) * dilations[d] / strides[d];
    taps *= window[d];
    in_size *= in[d];
    out_size *= out[d];
    part_size *= part[d];
  }
  plane_size = part_size * phases[0] * phases[1] * phases[2];
}

void Windows::Offsets(int64_t* offsets) const {
  auto phase = [&](int d, int64_t tap) { return tap % phases[d]; };
  auto shift = [&](int d, int64_t tap) { return tap * dilations[d] / strides[d]; };
  for (int64_t z = 0; z < window[0]; ++z) {
    for (int64_t y = 0; y < window[1]; ++y) {
      for (int64_t x = 0; x < window[2]; ++x) {
        int64_t number = (phase(0, z) * phases[1] + phase(1, y)) * phases[2] + phase(2, x);
        int64_t position = (shift(0, z) * part[1] + shift(1, y)) * part[2] + shift(2, x);
        *offsets++ = number * part_size + position;
      }
    }
  }
}

bool Windows::Dense() const {
  bool dense = true;
  for (int d = 0; d < 3; ++d) {
    dense = dense && phases[d] == 1 && strides[d] == 1 && pads[d] == 0 && part[d] == in[d];
  }
  return dense;
}

template <typename CopyLines>
void Windows::FillWith(const Simd& simd, float padding, bool pad, float* plane,
                       const CopyLines& copy) const {
  // Elements [begin, end) of a part are data from `first` on, with the stride as distance.
  struct Range {
    int64_t begin, end, first;
  };
  auto range = [&](int d, int64_t phase) {
    int64_t shift = phase * dilations[d] % strides[d] - pads[d];
    int64_t begin = shift < 0 ? CeilDivide(-shift, strides[d]) : 0;
    int64_t end = in[d] > shift ? CeilDivide(in[d] - shift, strides[d]) : 0;
    begin = std::min(begin, part[d]);
    end = std::max(begin, std::min(end, part[d]));
    return Range{begin, end, begin * strides[d] + shift};
  };
  int64_t slice_size = part[1] * part[2];
  int64_t combinations = phases[0] * phases[1] * phases[2];
  for (int64_t i = 0; i < combinations; ++i) {
    Range z = range(0, i / phases[2] / phases[1]);
    Range y = range(1, i / phases[2] % phases[1]);
    Range x = range(2, i % phases[2]);
    int64_t lines = y.end - y.begin;
    int64_t count = x.end - x.begin;
    for (int64_t s = 0; s < part[0]; ++s) {
      float* slice = plane + i * part_size + s * slice_size;
      if (s < z.begin || s >= z.end || lines == 0 || count == 0) {
        if (pad) simd.fill(padding, slice_size, slice);
        continue;
      }
      float* inside = slice + y.begin * part[2];
      // The interior is overwritten: cheaper than single elements at the ends of lines.
      if (pad && lines * count < slice_size) simd.fill(padding, slice_size, slice);
      int64_t first_line = (z.first + (s - z.begin) * strides[0]) * in[1] + y.first;
      copy(first_line * in[2], lines, x.first, count, inside + x.begin);
    }
  }
}

void Windows::Fill(const Simd& simd, const void* channel, float padding, float* line, float* plane,
                   bool pad) const {
  if (dtype == NPU_FLOAT32) {
    return FillCells(simd, static_cast<const float*>(channel), padding, plane, pad);
  }
  auto element = static_cast<int64_t>(ElementSize(dtype));
  FillWith(simd, padding, pad, plane,
           [&](int64_t first, int64_t lines, int64_t skip, int64_t count, float* to) {
             const char* from = static_cast<const char*>(channel) + first * element;
             for (int64_t l = 0; l < lines; ++l) {
               simd.load(dtype, from + l * strides[1] * in[2] * element, in[2], line);
               simd.take(1, count, line + skip, 0, strides[2], to + l * part[2], 0);
             }
           });
}

void Windows::FillCells(const Simd& simd, const float* channel, float padding, float* plane,
                        bool pad) const {
  FillWith(simd, padding, pad, plane,
           [&](int64_t first, int64_t lines, int64_t skip, int64_t count, float* to) {
             simd.take(lines, count, channel + first + skip, strides[1] * in[2], strides[2], to,
                       part[2]);
           });
}

GatheredColumns Windows::Columns() const {
  GatheredColumns columns;
  columns.width = out[2];
  columns.height = out[1];
  columns.height_stride = part[2];
  columns.depth_stride = part[1] * part[2];
  if (part_size == out_size) {
    columns.width = out_size;
    columns.height = 1;
    if (taps == 1) columns.row_stride = plane_size;
  }
  return columns;
}

int64_t Windows::BufferFloats() const {
  return 2 * WholeLines(std::min(Lines(), out[1]) * part[2] + kSlack);
}

}  // namespace npu::emulator
