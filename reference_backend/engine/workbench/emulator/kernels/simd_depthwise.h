// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_depthwise.h
 * \brief Windows of a single channel, without a copy of it that has its padding. A part of
 *        simd_loops.h, which includes it where vectors can be loaded in part.
 */
#ifndef EMULATOR_KERNELS_SIMD_DEPTHWISE_H_
#define EMULATOR_KERNELS_SIMD_DEPTHWISE_H_

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
// A tap in the padding adds a product with 0, so that infinite weights still yield NaN.
// `kLines` lines of the output are summed at once: their additions do not wait for each other, and
// without dilation they share rows of the data.
template <int kHeight, int kWidth, int kStride, int kLines>
void PlaneOf(const Plane& of, const float* data, const float* weights, const Finish& how,
             float* out) {
  // A copy is not written to by stores.
  const Plane plane = of;
  const int64_t dilation_x = kLines == 1 ? plane.dilation_x : 1;
  const int64_t dilation_y = kLines == 1 ? plane.dilation_y : 1;
  V weight[kHeight * kWidth];
  SIMD_UNROLL
  for (int i = 0; i < kHeight * kWidth; ++i) weight[i] = Splat(weights[i]);
  const V least = Splat(how.least), most = Splat(how.most);
  const float* first = how.first;
  const float* second = how.second;
  const V same_first = Splat(first[0]), same_second = Splat(second[0]);
  const bool read_first = how.first_step != 0, read_second = how.second_step != 0;
  const int64_t row_step = dilation_y * plane.width;
  const int64_t ahead = int64_t{kLines} * kStride * plane.width;
  // The lines that are read, and the elements of each.
  constexpr int kRows = (kLines - 1) * kStride + kHeight;
  constexpr int kReach = kWidth - 1 + kStride * kLanes;
  const int64_t reach = (kWidth - 1) * (dilation_x - 1) + kReach;
  // Read in place of rows in the padding.
  static const float kZeros[kReach] = {};
  // Masked stores are slow. Where stores cannot overwrite an operand, the last vector and the last
  // lines overlap the ones before, and a vector may run over into the next line, which is stored
  // after it.
  const bool may_overlap = !read_first && !read_second;
  const int64_t size = plane.out_height * plane.out_width;
  const int64_t whole_end = may_overlap && plane.out_width < kLanes ? size - kLanes : -1;
  auto overlapped = [&](int64_t at, int64_t end, int64_t step) {
    return may_overlap && at > end - step && end >= step ? end - step : at;
  };
  // Lines of the output whose data stays in the first-level cache for the columns beside.
  constexpr int64_t kBand = int64_t{16 / kLines} * kLines;
  // All that windows read in x is `inside` of the rows, or lanes must tell.
  auto compute = [&](auto inside, int64_t band, int64_t left) __attribute__((always_inline)) {
    constexpr bool kInside = decltype(inside)::value;
    const int64_t count = Minimum<int64_t>(kLanes, plane.out_width - left);
    const int64_t column = left * kStride - plane.pad_left;
    Lanes lanes[kWidth][kStride];
    SIMD_UNROLL
    for (int x = 0; x < kWidth && !kInside; ++x) {
      SIMD_UNROLL
      for (int part = 0; part < kStride; ++part) {
        int64_t at = column + x * dilation_x + int64_t{part} * kLanes;
        lanes[x][part] = LanesOf(-at, plane.width - at);
      }
    }
    auto load = [&](const float* tap, int x, int part) __attribute__((always_inline)) {
      tap += x * dilation_x + int64_t{part} * kLanes;
      return kInside ? Load(tap) : LoadLanes(tap, lanes[x][part]);
    };
    const int64_t bottom = Minimum(band + kBand, plane.out_height);
    for (int64_t line = band; line < bottom; line += kLines) {
      const int64_t top = overlapped(line, plane.out_height, kLines);
      const int64_t lines = Minimum<int64_t>(kLines, bottom - top);
      int64_t row = top * kStride - plane.pad_top;
      const float* from = data + row * plane.width + column;
      V sum[kLines];
      SIMD_UNROLL
      for (int i = 0; i < kLines; ++i) sum[i] = Splat(-0.0f);
      SIMD_UNROLL
      for (int y = 0; y < kRows; ++y, row += dilation_y, from += row_step) {
        const bool exists = row >= 0 && row < plane.height;
        V value[kWidth] = {};
        if (kLines > 1 || exists) {
          const float* tap = exists ? from : kZeros;
          SIMD_UNROLL
          for (int part = 0; part < kStride; ++part) {
            __builtin_prefetch(from + ahead + int64_t{part} * kLanes);
          }
          SIMD_UNROLL
          for (int x = 0; x < kWidth; ++x) {
            const V low = load(tap, x, 0);
            value[x] = low;
            if constexpr (kStride == 2) {
              const V high = load(tap, x, 1);
              value[x] = Evens(low, high);
              // Without dilation, the elements between are those of the next tap.
              if (kLines > 1 && x + 1 < kWidth) value[++x] = Odds(low, high);
            }
          }
        }
        SIMD_UNROLL
        for (int i = 0; i < kLines; ++i) {
          const int tap = (y - i * kStride) * kWidth;
          if (tap < 0 || tap >= kHeight * kWidth) continue;
          SIMD_UNROLL
          for (int x = 0; x < kWidth; ++x) sum[i] = Fma(weight[tap + x], value[x], sum[i]);
        }
      }
      auto store = [&](auto result) __attribute__((always_inline)) {
        int64_t at = top * plane.out_width + left;
        const bool whole = lines == kLines && count == kLanes;
        SIMD_UNROLL
        for (int i = 0; i < kLines; ++i, at += plane.out_width) {
          if (whole || (at <= whole_end && i < lines)) {
            Store(result(sum[i], at), out + at);
          } else if (i < lines) {
            StorePart(result(sum[i], at), count, out + at);
          }
        }
      };
      if (plane.whole) {
        store([](V total, int64_t) { return (V) __builtin_convertvector(total, VI); });
      } else if (may_overlap) {
        store([&](V total, int64_t) __attribute__((always_inline)) {
          return Limit(total + same_first + same_second, least, most);
        });
      } else {
        store([&](V total, int64_t at) __attribute__((always_inline)) {
          const V one = read_first ? LoadPart(first + at, count) : same_first;
          const V other = read_second ? LoadPart(second + at, count) : same_second;
          return Limit(total + one + other, least, most);
        });
      }
    }
  };
  for (int64_t band = 0; band < plane.out_height; band += kBand) {
    for (int64_t at = 0; at < plane.out_width; at += kLanes) {
      const int64_t left = overlapped(at, plane.out_width, kLanes);
      const int64_t column = left * kStride - plane.pad_left;
      if (column >= 0 && column + reach <= plane.width) {
        compute(std::true_type(), band, left);
      } else {
        compute(std::false_type(), band, left);
      }
    }
  }
}

template <int kHeight, int kWidth, int kStride>
void PlaneOfLines(const Plane& plane, const float* data, const float* weights, const Finish& how,
                  float* out) {
  const bool dense = plane.dilation_x == 1 && plane.dilation_y == 1;
  auto compute =
      dense ? PlaneOf<kHeight, kWidth, kStride, kPlaneLines> : PlaneOf<kHeight, kWidth, kStride, 1>;
  compute(plane, data, weights, how, out);
}

void ConvolvePlane(const Plane& plane, const float* data, const float* weights, const Finish& how,
                   float* out) {
  const bool small = plane.window_width == 3;
  if (plane.stride == 1) {
    (small ? PlaneOfLines<3, 3, 1> : PlaneOfLines<5, 5, 1>)(plane, data, weights, how, out);
  } else {
    (small ? PlaneOfLines<3, 3, 2> : PlaneOfLines<5, 5, 2>)(plane, data, weights, how, out);
  }
}

#if defined(__AVX512VNNI__)

// Elements of 8 bits next to each other, as quads multiply them.
struct Elements {
  const uint8_t* data;
  // What flips their sign bits, or 0.
  char sign;

  Elements(const uint8_t* first, bool turn)
      : data(first), sign(static_cast<char>(turn ? 0x80 : 0)) {}
};

// Quads of a row of the window, in all lanes.
template <int kQuads>
inline void SpreadQuads(const Elements& weights, int64_t at, int64_t count, VI* quads) {
  const auto some = static_cast<__mmask16>((1u << count) - 1);
  const __m128i row = _mm_maskz_loadu_epi8(some, weights.data + at);
  const __m128i turned = _mm_maskz_mov_epi8(some, row ^ _mm_set1_epi8(weights.sign));
  SIMD_UNROLL
  for (int i = 0; i < kQuads; ++i) quads[i] = ((VI4)turned)[i] - VI{};
}

// Quads of kLanes windows, of which the first begins with element `at`. Those that are not
// `inside` of the row are `missing`.
template <int kQuads, int kStride>
inline void LoadQuads(const Elements& data, int64_t at, uint64_t inside, __m512i missing,
                      VI* quads) {
  __m512i row = _mm512_mask_loadu_epi8(missing, inside, data.data + at);
  // Each quarter of the vector gets the bytes of its windows, and puts them in order.
  const __m512i words = kStride == 1
                            ? _mm512_setr_epi32(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6)
                            : _mm512_setr_epi32(0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9);
  row = _mm512_maskz_permutexvar_epi32(0xffff, words, row) ^ _mm512_set1_epi8(data.sign);
  const __m128i first = kStride == 1
                            ? _mm_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6)
                            : _mm_setr_epi8(0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9);
  SIMD_UNROLL
  for (int i = 0; i < kQuads; ++i) {
    const __m128i bytes = _mm_add_epi8(first, _mm_set1_epi8(static_cast<char>(4 * i)));
    quads[i] =
        (VI)_mm512_maskz_shuffle_epi8(~0ull, row, _mm512_maskz_broadcast_i32x4(0xffff, bytes));
  }
}

// The bits of [begin, end).
inline uint64_t BitsOf(int64_t begin, int64_t end) {
  uint64_t before = begin <= 0 ? 0 : begin >= 64 ? ~0ull : (1ull << begin) - 1;
  uint64_t all = end <= 0 ? 0 : end >= 64 ? ~0ull : (1ull << end) - 1;
  return all & ~before;
}

// As PlaneOf, of some lines. A kHeight of 0 stands for any, of one line.
template <int kHeight, int kQuads, int kStride, int kLines>
void PlaneOfQuads(const Plane& plane, const Elements& data, uint8_t missing,
                  const Elements& weights, int64_t top, int64_t lines, float* out) {
  const int height = kHeight == 0 ? static_cast<int>(plane.window_height) : kHeight;
  const __m512i padding = _mm512_set1_epi8(static_cast<char>(missing));
  const VI zeros = (VI)(padding ^ _mm512_set1_epi8(data.sign));
  VI weight[(kHeight == 0 ? 1 : kHeight) * kQuads];
  // The row of the window in `weight`.
  auto row_of = [&](int y) { return weight + (kHeight == 0 ? 0 : y * kQuads); };
  auto spread = [&](int y) __attribute__((always_inline)) {
    SpreadQuads<kQuads>(weights, y * plane.window_width, plane.window_width, row_of(y));
  };
  VI start = {};
  SIMD_UNROLL
  for (int y = 0; y < height; ++y) {
    spread(y);
    for (int i = 0; i < kQuads; ++i) start = AddQuads(row_of(y)[i], zeros, start);
  }
  start = (VI)(0 - (VU)start);
  for (int64_t left = 0; left < plane.out_width; left += kLanes) {
    const int64_t count = Minimum<int64_t>(kLanes, plane.out_width - left);
    const int64_t column = left * kStride - plane.pad_left;
    const uint64_t inside = BitsOf(-column, plane.width - column);
    for (int64_t first = 0; first < lines; first += kLines) {
      VI sum[kLines];
      SIMD_UNROLL
      for (int line = 0; line < kLines; ++line) sum[line] = start;
      SIMD_UNROLL
      for (int y = 0; y < (kLines - 1) * kStride + height; ++y) {
        const int64_t row = (top + first) * kStride - plane.pad_top + y * plane.dilation_y;
        const bool exists = row >= 0 && row < plane.height;
        VI value[kQuads];
        LoadQuads<kQuads, kStride>(data, row * plane.width + column, exists ? inside : 0, padding,
                                   value);
        if (kHeight == 0) spread(y);
        SIMD_UNROLL
        for (int line = 0; line < kLines; ++line) {
          const int tap = y - line * kStride;
          if (tap < 0 || tap >= height) continue;
          SIMD_UNROLL
          for (int i = 0; i < kQuads; ++i) {
            sum[line] = AddQuads(row_of(tap)[i], value[i], sum[line]);
          }
        }
      }
      SIMD_UNROLL
      for (int line = 0; line < kLines; ++line) {
        if (first + line >= lines) break;
        StorePart((V)sum[line], count, out + (first + line) * plane.out_width + left);
      }
    }
  }
}

template <int kQuads, int kStride>
void QuadsWithStride(const Plane& plane, const Elements& data, uint8_t missing,
                     const Elements& weights, int64_t top, int64_t lines, float* out) {
  auto compute = PlaneOfQuads<0, kQuads, kStride, 1>;
  if (plane.dilation_y == 1 && plane.window_height == 3) {
    compute = PlaneOfQuads<3, kQuads, kStride, kPlaneLines>;
  } else if (plane.dilation_y == 1 && plane.window_height == 5) {
    compute = PlaneOfQuads<5, kQuads, kStride, kPlaneLines>;
  }
  compute(plane, data, missing, weights, top, lines, out);
}

void ConvolveQuads(const Plane& plane, const uint8_t* data, bool turn, uint8_t missing,
                   const uint8_t* weights, bool turn_weights, int64_t top, int64_t lines,
                   float* out) {
  auto compute = plane.stride == 1 ? QuadsWithStride<1, 1> : QuadsWithStride<1, 2>;
  if (plane.window_width > 4) {
    compute = plane.stride == 1 ? QuadsWithStride<2, 1> : QuadsWithStride<2, 2>;
  }
  compute(plane, {data, turn}, missing, {weights, turn_weights}, top, lines, out);
}

#endif

#endif  // EMULATOR_KERNELS_SIMD_DEPTHWISE_H_
