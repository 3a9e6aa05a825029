// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_moves.h
 * \brief Elements to other places. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_MOVES_H_
#define EMULATOR_KERNELS_SIMD_MOVES_H_

// Offsets inside of a panel fit into int.
// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result)

void Gather(int64_t depth, const int64_t* offsets, int segments, const Segment* segment, bool exact,
            const float* data, float* panel) {
  for (int s = 0; s < segments; ++s) {
    const float* from = data + segment[s].base;
    int column = segment[s].column;
    int count = segment[s].count;
    float* to = panel + column;
    if (count >= kLanes) {
      // The last vector overlaps the one before.
      int last = count - kLanes;
      for (int64_t k = 0; k < depth; ++k, to += kPanelColumns) {
        const float* row = from + offsets[k];
        for (int i = 0; i < last; i += kLanes) Store(Load(row + i), to + i);
        Store(Load(row + last), to + last);
      }
    } else if (!exact && column + kLanes <= kPanelColumns) {
      // Excess elements are overwritten by the next segment or lie outside the columns.
      for (int64_t k = 0; k < depth; ++k, to += kPanelColumns) Store(Load(from + offsets[k]), to);
    } else {
      for (int64_t k = 0; k < depth; ++k, to += kPanelColumns) {
        for (int i = 0; i < count; ++i) to[i] = from[offsets[k] + i];
      }
    }
  }
}

inline V4 Shuffle0(V4 a, V4 b) { return V4{a[0], b[0], a[1], b[1]}; }
inline V4 Shuffle1(V4 a, V4 b) { return V4{a[2], b[2], a[3], b[3]}; }

void Transpose(int64_t rows, int64_t columns, const float* data, int64_t data_stride, float* out,
               int64_t out_stride) {
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const float* from = data + r * data_stride + c;
      V4 a = LoadAs<V4>(from);
      V4 b = LoadAs<V4>(from + data_stride);
      V4 d = LoadAs<V4>(from + 2 * data_stride);
      V4 e = LoadAs<V4>(from + 3 * data_stride);
      V4 ad0 = Shuffle0(a, d), ad1 = Shuffle1(a, d), be0 = Shuffle0(b, e), be1 = Shuffle1(b, e);
      float* to = out + c * out_stride + r;
      StoreAs(Shuffle0(ad0, be0), to);
      StoreAs(Shuffle1(ad0, be0), to + out_stride);
      StoreAs(Shuffle0(ad1, be1), to + 2 * out_stride);
      StoreAs(Shuffle1(ad1, be1), to + 3 * out_stride);
    }
    for (; r < rows; ++r) {
      for (int i = 0; i < 4; ++i) out[(c + i) * out_stride + r] = data[r * data_stride + c + i];
    }
  }
  for (; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * out_stride + r] = data[r * data_stride + c];
  }
}

// Exactly these elements: a rest shorter than a vector is copied in pieces that overlap.
template <typename T>
inline void CopyEnds(const float* from, int64_t count, float* to) {
  T first = LoadAs<T>(from);
  int64_t rest = count - static_cast<int64_t>(sizeof(T) / sizeof(float));
  T last = LoadAs<T>(from + rest);
  StoreAs(first, to);
  StoreAs(last, to + rest);
}

inline void CopyLine(const float* from, int64_t count, float* to) {
  if (count >= kLanes) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) Store(Load(from + i), to + i);
    if (i < count) Store(Load(from + count - kLanes), to + count - kLanes);
    return;
  }
  if (kLanes > 8 && count >= 8) return CopyEnds<VR>(from, count, to);
  if (count >= 4) return CopyEnds<V4>(from, count, to);
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// Every second element of two vectors that lie side by side, and those between.
#if SIMD_BYTES == 64
inline V Evens(V low, V high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return (V)_mm512_permutex2var_ps((__m512)low, even, (__m512)high);
}
inline V Odds(V low, V high) {
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return (V)_mm512_permutex2var_ps((__m512)low, odd, (__m512)high);
}
#elif SIMD_BYTES == 32
inline V Evens(V low, V high) {
  __m256d pairs = (__m256d)_mm256_shuffle_ps((__m256)low, (__m256)high, 0x88);
  return (V)_mm256_permute4x64_pd(pairs, 0xd8);
}
inline V Odds(V low, V high) {
  __m256d pairs = (__m256d)_mm256_shuffle_ps((__m256)low, (__m256)high, 0xdd);
  return (V)_mm256_permute4x64_pd(pairs, 0xd8);
}
#endif

inline void TakeEven(const float* from, int64_t count, float* to) {
  int64_t i = 0;
  // Exclude the last element: nothing after it may be read.
#if SIMD_BYTES >= 32
  for (; i + kLanes < count; i += kLanes) {
    Store(Evens(Load(from + 2 * i), Load(from + 2 * i + kLanes)), to + i);
  }
#endif
  for (; i + 4 < count; i += 4) {
    V4 a = LoadAs<V4>(from + 2 * i);
    V4 b = LoadAs<V4>(from + 2 * i + 4);
    StoreAs(V4{a[0], a[2], b[0], b[2]}, to + i);
  }
  for (; i < count; ++i) to[i] = from[2 * i];
}

void Take(int64_t lines, int64_t count, const float* data, int64_t line_stride, int64_t stride,
          float* out, int64_t out_stride) {
  for (int64_t line = 0; line < lines; ++line) {
    const float* from = data + line * line_stride;
    float* to = out + line * out_stride;
    if (stride == 1) {
      CopyLine(from, count, to);
    } else if (stride == 2) {
      TakeEven(from, count, to);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
    }
  }
}

void Fill(float value, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = value;
}

void Spread(int64_t rows, const float* values, float* tile) {
  for (int64_t i = 0; i < rows; ++i) {
    SIMD_UNROLL
    for (int j = 0; j < kPanelColumns; j += kLanes) {
      StoreAs(LoadAs<int32_t>(values + i) - VI{}, tile + i * kPanelColumns + j);
    }
  }
}

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

#endif  // EMULATOR_KERNELS_SIMD_MOVES_H_
