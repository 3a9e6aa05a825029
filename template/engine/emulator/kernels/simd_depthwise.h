// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_depthwise.h
 * \brief Windows of a single channel, without a copy of it that has its padding. A part of
 *        simd_loops.h, which includes it where vectors can be loaded in part.
 */
#ifndef DRIVER_EMULATOR_KERNELS_SIMD_DEPTHWISE_H_
#define DRIVER_EMULATOR_KERNELS_SIMD_DEPTHWISE_H_

// The lanes of a vector that are elements [begin, end) of something.
#if SIMD_BYTES == 64
inline Lanes LanesOf(int64_t begin, int64_t end) {
  uint32_t before = begin <= 0 ? 0 : begin >= kLanes ? 0xffff : (1u << begin) - 1;
  uint32_t all = end <= 0 ? 0 : end >= kLanes ? 0xffff : (1u << end) - 1;
  return static_cast<Lanes>(all & ~before);
}
#else
inline Lanes LanesOf(int64_t begin, int64_t end) {
  const VI lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  auto limited = [](int64_t at) {
    return static_cast<int32_t>(at < 0 ? 0 : at > kLanes ? kLanes : at);
  };
  return (lanes >= limited(begin)) & (lanes < limited(end));
}
#endif

// The sums of windows of kHeight x kWidth elements that move by kStride, in the order of the taps.
// A tap in the padding adds a product with 0, so that infinite weights do what they always do.
template <int kHeight, int kWidth, int kStride>
void PlaneOf(const Plane& plane, const float* data, const float* weights, const Finish& how,
             float* out) {
  // Lines that are computed before the next columns, so that memory is read in order.
  constexpr int64_t kLines = 8;
  V weight[kHeight * kWidth];
  SIMD_UNROLL
  for (int i = 0; i < kHeight * kWidth; ++i) weight[i] = Splat(weights[i]);
  const V least = Splat(how.least), most = Splat(how.most);
  const float* first = how.first;
  const float* second = how.second;
  const V same_first = Splat(first[0]), same_second = Splat(second[0]);
  for (int64_t top = 0; top < plane.out_height; top += kLines) {
    const int64_t bottom = Minimum<int64_t>(top + kLines, plane.out_height);
    for (int64_t left = 0; left < plane.out_width; left += kLanes) {
      const int64_t count = Minimum<int64_t>(kLanes, plane.out_width - left);
      const int64_t column = left * kStride - plane.pad_left;
      Lanes lanes[kWidth][kStride];
      SIMD_UNROLL
      for (int x = 0; x < kWidth; ++x) {
        SIMD_UNROLL
        for (int part = 0; part < kStride; ++part) {
          int64_t at = column + x * plane.dilation_x + int64_t{part} * kLanes;
          lanes[x][part] = LanesOf(-at, plane.width - at);
        }
      }
      for (int64_t line = top; line < bottom; ++line) {
        V sum = Splat(-0.0f);
        SIMD_UNROLL
        for (int y = 0; y < kHeight; ++y) {
          const int64_t row = line * kStride - plane.pad_top + y * plane.dilation_y;
          const bool inside = row >= 0 && row < plane.height;
          const float* from = data + row * plane.width + column;
          SIMD_UNROLL
          for (int x = 0; x < kWidth; ++x) {
            V value = {};
            if (inside) {
              const float* tap = from + x * plane.dilation_x;
              value = LoadLanes(tap, lanes[x][0]);
              if constexpr (kStride == 2) {
                value = Evens(value, LoadLanes(tap + kLanes, lanes[x][1]));
              }
            }
            sum = Fma(weight[y * kWidth + x], value, sum);
          }
        }
        const int64_t at = line * plane.out_width + left;
        V one = same_first, other = same_second;
        if (how.first_step != 0) one = LoadPart(first + at, count);
        if (how.second_step != 0) other = LoadPart(second + at, count);
        sum = Limit(sum + one + other, least, most);
        if (count == kLanes) {
          Store(sum, out + at);
        } else {
          StorePart(sum, count, out + at);
        }
      }
    }
  }
}

template <int kStride>
bool PlaneWithStride(const Plane& plane, const float* data, const float* weights, const Finish& how,
                     float* out) {
  if (plane.window_height == 3 && plane.window_width == 3) {
    PlaneOf<3, 3, kStride>(plane, data, weights, how, out);
  } else if (plane.window_height == 5 && plane.window_width == 5) {
    PlaneOf<5, 5, kStride>(plane, data, weights, how, out);
  } else {
    return false;
  }
  return true;
}

bool ConvolvePlane(const Plane& plane, const float* data, const float* weights, const Finish& how,
                   float* out) {
  if (plane.stride == 1) return PlaneWithStride<1>(plane, data, weights, how, out);
  return plane.stride == 2 && PlaneWithStride<2>(plane, data, weights, how, out);
}

#endif  // DRIVER_EMULATOR_KERNELS_SIMD_DEPTHWISE_H_
