// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_finish.h
 * \brief The most common end of a product, and vectors in part. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_FINISH_H_
#define EMULATOR_KERNELS_SIMD_FINISH_H_

// Some elements of a vector alone, or the first ones; the others are zeros, or not stored.
#if SIMD_BYTES == 32
using Lanes = VI;
inline Lanes FirstLanes(int64_t count) {
  const VI lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  return lanes < static_cast<int32_t>(count);
}
inline V LoadLanes(const float* data, Lanes lanes) {
  return (V)_mm256_maskload_ps(data, (__m256i)lanes);
}
inline V LoadPart(const float* data, int64_t count) { return LoadLanes(data, FirstLanes(count)); }
// Masked stores are slow on many processors. Loops need the registers that this would take.
__attribute__((noinline)) void StorePart(V value, int64_t count, float* out) {
  float part[kLanes];
  Store(value, part);
  if (count >= 4) return CopyEnds<V4>(part, count, out);
  for (int64_t i = 0; i < count; ++i) out[i] = part[i];
}
#elif SIMD_BYTES == 64
using Lanes = __mmask16;
inline Lanes FirstLanes(int64_t count) { return static_cast<Lanes>((1u << count) - 1); }
inline V LoadLanes(const float* data, Lanes lanes) { return (V)_mm512_maskz_loadu_ps(lanes, data); }
inline V LoadPart(const float* data, int64_t count) { return LoadLanes(data, FirstLanes(count)); }
inline void StorePart(V value, int64_t count, float* out) {
  _mm512_mask_storeu_ps(out, FirstLanes(count), (__m512)value);
}
#else
inline V LoadPart(const float* data, int64_t count) {
  V value = {};
  __builtin_memcpy(&value, data, static_cast<size_t>(count) * sizeof(float));
  return value;
}
inline void StorePart(V value, int64_t count, float* out) {
  __builtin_memcpy(out, &value, static_cast<size_t>(count) * sizeof(float));
}
#endif

// Maximum and Minimum, as the limits are numbers.
inline V Limit(V a, V least, V most) {
  a = a <= least ? least : a;
  return a >= most ? most : a;
}

void FinishRows(const Finish& how, const float* sums, int64_t rows, int64_t stride, int64_t columns,
                float* out, int64_t out_stride) {
  V least = Splat(how.least);
  V most = Splat(how.most);
  for (int64_t row = 0; row < rows; ++row) {
    const float* first = how.first + row * how.first_row;
    const float* second = how.second + row * how.second_row;
    V one = Splat(first[0]);
    V other = Splat(second[0]);
    auto compute = [&](V sum) __attribute__((always_inline)) {
      return Limit(sum + one + other, least, most);
    };
    auto at = [&](int64_t i) __attribute__((always_inline)) {
      if (how.first_step != 0) one = Load(first + i);
      if (how.second_step != 0) other = Load(second + i);
      return compute(Load(sums + i));
    };
    bool steps = (how.first_step | how.second_step) != 0;
    // The last vector overlaps the one before, so it is computed before anything is overwritten.
    bool overlaps = columns > kLanes && columns % kLanes != 0;
    V last = overlaps ? at(columns - kLanes) : V{};
    int64_t i = 0;
    constexpr int64_t kPair = int64_t{2} * kLanes;
    for (; !steps && i + kPair <= columns; i += kPair) {
      V sum = Load(sums + i), next = Load(sums + i + kLanes);
      Store(compute(sum), out + i);
      Store(compute(next), out + i + kLanes);
    }
    for (; i + kLanes <= columns; i += kLanes) Store(at(i), out + i);
    if (overlaps) {
      Store(last, out + columns - kLanes);
    } else if (i < columns) {
      if (how.first_step != 0) one = LoadPart(first + i, columns - i);
      if (how.second_step != 0) other = LoadPart(second + i, columns - i);
      StorePart(compute(LoadPart(sums + i, columns - i)), columns - i, out + i);
    }
    sums += stride;
    out += out_stride;
  }
}

#endif  // EMULATOR_KERNELS_SIMD_FINISH_H_
