// SPDX-License-Identifier: Apache-2.0
/*!
 * \file windows.h
 * \brief The windows of convolutions and pools, rearranged for simple loops.
 */
#ifndef EMULATOR_KERNELS_WINDOWS_H_
#define EMULATOR_KERNELS_WINDOWS_H_

#include <algorithm>
#include <cstdint>

#include "internal.h"

namespace npu::emulator {

struct GatheredColumns;

/*! \brief Whether these are groups of one input channel and few outputs. Packing leaves their
 *  weights unchanged. */
inline bool IsDepthwise(const TensorView& weight, int64_t groups) {
  return groups > 1 && weight.dims[1] == 1 && weight.dims[0] <= 4 * groups &&
         ElementCount(weight) > 0;
}

/*!
 * \brief How windows lie over the data.
 *
 * Channels of the data are copied to planes, with their padding, as float32. Where windows move by
 * more than 1, the elements that one tap of successive windows reads are made contiguous. Then a
 * tap is an offset, and the next element of the output is the next element of the plane, for any
 * stride, dilation and padding.
 */
struct Windows {
  Windows(const TensorView& data, const TensorView& result, int32_t spatial_rank,
          const int64_t* window_sizes, const int64_t* window_strides,
          const int64_t* window_dilations, const int64_t* pads_begin);

  /*! \brief Writes where each tap lies in a plane, the last dimension of the window fastest. */
  void Offsets(int64_t* offsets) const;
  /*! \brief Whether a plane would be a copy of the channel. */
  bool Trivial() const { return dtype == NPU_FLOAT32 && Dense(); }
  /*! \brief The same, but for the type. */
  bool Dense() const;
  /*! \brief Whether there are two dimensions, and windows move alike in both. */
  bool IsFlat() const {
    return in[0] == 1 && out[0] == 1 && window[0] == 1 && pads[0] == 0 && strides[1] == strides[2];
  }
  /*! \brief A channel and its windows; only if IsFlat(). */
  Plane FlatPlane() const {
    return {in[1],   in[2],   out[1],       out[2],       window[1], window[2],
            pads[1], pads[2], dilations[1], dilations[2], strides[2]};
  }
  /*! \brief Whether Simd::plane computes them. */
  bool HasLoop(const Simd& simd) const {
    return simd.plane != nullptr && IsFlat() && FlatPlane().HasLoop();
  }
  /*! \brief Copies a channel to a plane; `line` has room for a line of the data. Without `pad`, the
   *  padding is there from the channel before. */
  void Fill(const Simd& simd, const void* channel, float padding, float* line, float* plane,
            bool pad = true) const;
  /*! \brief The same for a channel of floats, or other elements of 4 bytes. */
  void FillCells(const Simd& simd, const float* channel, float padding, float* plane,
                 bool pad = true) const;

  /*! \brief The planes as columns of a matrix product. */
  GatheredColumns Columns() const;

  /*! \brief Floats that Apply needs. */
  int64_t BufferFloats() const;
  /*! \brief Combines the taps of all windows of a plane. Calls `body(first, count, values)` on
   *  pieces of the output's channel. */
  template <typename Body>
  void Apply(const Simd& simd, Tap kind, const int64_t* offsets, const float* weights,
             const float* plane, float* buffer, const Body& body) const;
  /*! \brief The same with `body(first, lines, values, dense)`: lines of the output are part[2] of
   *  `values` apart, and `dense` has room for them without gaps. */
  template <typename Body>
  void ApplyLines(const Simd& simd, Tap kind, const int64_t* offsets, const float* weights,
                  const float* plane, float* buffer, const Body& body) const;

  /*! \brief Passes them to `store`, as row `row` of the output: as lines if it accepts them. */
  template <typename Store>
  void ApplyTo(const Store& store, const Simd& simd, Tap kind, const int64_t* offsets,
               const float* weights, const float* plane, float* buffer, int64_t row,
               float* registers) const;

  npu_dtype dtype;
  /*! \brief Always three dimensions; those that the operation does not have are 1. */
  int64_t in[3], out[3], window[3], strides[3], dilations[3], pads[3];
  /*! \brief A plane has one part for each position, modulo the strides, that taps meet. */
  int64_t phases[3], part[3];
  int64_t taps, in_size, out_size, part_size, plane_size;

 private:
  /*! \brief Calls `copy(first, lines, skip, count, to)` for lines of the data that begin with
   * element `first`: of each, `count` elements from `skip` on, with the stride between, go `to` the
   * plane. */
  template <typename CopyLines>
  void FillWith(const Simd& simd, float padding, bool pad, float* plane,
                const CopyLines& copy) const;

  // Lines of the output that Apply handles at once.
  int64_t Lines() const { return std::max<int64_t>(1, 2048 / part[2]); }
};

template <typename Body>
void Windows::ApplyLines(const Simd& simd, Tap kind, const int64_t* offsets, const float* weights,
                         const float* plane, float* buffer, const Body& body) const {
  for (int64_t z = 0; z < out[0]; ++z) {
    for (int64_t y = 0; y < out[1]; y += Lines()) {
      int64_t lines = std::min(Lines(), out[1] - y);
      simd.taps(kind, taps, offsets, weights, plane + (z * part[1] + y) * part[2],
                (lines - 1) * part[2] + out[2], buffer);
      body((z * out[1] + y) * out[2], lines, buffer, buffer + BufferFloats() / 2);
    }
  }
}

template <typename Body>
void Windows::Apply(const Simd& simd, Tap kind, const int64_t* offsets, const float* weights,
                    const float* plane, float* buffer, const Body& body) const {
  ApplyLines(simd, kind, offsets, weights, plane, buffer,
             [&](int64_t first, int64_t lines, float* values, float* dense) {
               bool same = part[2] == out[2];
               if (!same) simd.take(lines, out[2], values, part[2], 1, dense, out[2]);
               body(first, lines * out[2], same ? values : dense);
             });
}

template <typename Store>
void Windows::ApplyTo(const Store& store, const Simd& simd, Tap kind, const int64_t* offsets,
                      const float* weights, const float* plane, float* buffer, int64_t row,
                      float* registers) const {
  if (store.StoresLines()) {
    ApplyLines(simd, kind, offsets, weights, plane, buffer,
               [&](int64_t first, int64_t lines, const float* values, float*) {
                 store.StoreLines(values, lines, out[2], part[2], row, first);
               });
  } else {
    Apply(simd, kind, offsets, weights, plane, buffer,
          [&](int64_t first, int64_t count, const float* values) {
            store.StoreRun(values, count, row, first, registers);
          });
  }
}

}  // namespace npu::emulator

#endif  // EMULATOR_KERNELS_WINDOWS_H_
