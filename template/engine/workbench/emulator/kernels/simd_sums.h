// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_sums.h
 * \brief The numbers of products; sums of products, and windows, along a line. A part of
 * simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_SUMS_H_
#define EMULATOR_KERNELS_SIMD_SUMS_H_

// Vector types need typedef, for their attributes, and offsets inside of a panel fit into int.
// NOLINTBEGIN(modernize-use-using,bugprone-implicit-widening-of-multiplication-result)

// The numbers of a matrix product: real ones, or pairs of int16 and sums in int32.
struct Reals {
  using Vector = V;
  using Rows = VR;
  template <typename T>
  static T Spread(const float* value) {
    return Splat<T>(*value);
  }
  template <typename T>
  static T Add(T a, T b) {
    return a + b;
  }
  template <typename T>
  static T MultiplyAdd(T a, T b, T c) {
    return Fma(a, b, c);
  }
};

struct Pairs {
  using Vector = VI;
  using Rows = VRI;
  template <typename T>
  static T Spread(const float* value) {
    return LoadAs<int32_t>(value) - T{};
  }
  template <typename T>
  static T Add(T a, T b) {
    typedef uint32_t U __attribute__((vector_size(sizeof(T))));
    return (T)((U)a + (U)b);
  }
  template <typename T>
  static T MultiplyAdd(T a, T b, T c) {
    return AddPairs(a, b, c);
  }
};

#if defined(__AVX512VNNI__)
struct Quads : Pairs {
  template <typename T>
  static T MultiplyAdd(T a, T b, T c) {
    return AddQuads(a, b, c);
  }
};
#endif

float SumOfLanes(V a) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

float Dot(int64_t depth, const float* a, const float* b) {
  constexpr int kStreams = 4;
  V sum[kStreams] = {};
  int64_t k = 0;
  for (; k + kStreams * kLanes <= depth; k += kStreams * kLanes) {
    SIMD_UNROLL
    for (int s = 0; s < kStreams; ++s) {
      sum[s] = Fma(Load(a + k + s * kLanes), Load(b + k + s * kLanes), sum[s]);
    }
  }
  for (; k + kLanes <= depth; k += kLanes) sum[0] = Fma(Load(a + k), Load(b + k), sum[0]);
  float total = SumOfLanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; k < depth; ++k) total += a[k] * b[k];
  return total;
}

template <Tap kKind, int kVectors>
inline void TapBlock(int64_t taps, const int64_t* offsets, const float* weights, const float* data,
                     float* out) {
  V sum[kVectors];
  SIMD_UNROLL
  for (int j = 0; j < kVectors; ++j) {
    V first = Load(data + offsets[0] + j * kLanes);
    sum[j] = kKind == Tap::kMultiplyAdd ? first * weights[0] : first;
  }
  for (int64_t t = 1; t < taps; ++t) {
    const float* from = data + offsets[t];
    V weight = {};
    if (kKind == Tap::kMultiplyAdd) weight = Splat(weights[t]);
    SIMD_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      V value = Load(from + j * kLanes);
      if (kKind == Tap::kMultiplyAdd) {
        sum[j] = Fma(weight, value, sum[j]);
      } else if (kKind == Tap::kAdd) {
        sum[j] += value;
      } else {
        sum[j] = Maximum(value, sum[j]);
      }
    }
  }
  SIMD_UNROLL
  for (int j = 0; j < kVectors; ++j) Store(sum[j], out + j * kLanes);
}

template <Tap kKind>
void TapsOf(int64_t taps, const int64_t* offsets, const float* weights, const float* data,
            int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    TapBlock<kKind, 4>(taps, offsets, weights, data + i, out + i);
  }
  if (i >= count) return;
  switch ((count - i + kLanes - 1) / kLanes) {
    case 1:
      return TapBlock<kKind, 1>(taps, offsets, weights, data + i, out + i);
    case 2:
      return TapBlock<kKind, 2>(taps, offsets, weights, data + i, out + i);
    case 3:
      return TapBlock<kKind, 3>(taps, offsets, weights, data + i, out + i);
    default:
      return TapBlock<kKind, 4>(taps, offsets, weights, data + i, out + i);
  }
}

// The same for pairs, whose sums are int32.
template <int kVectors>
inline void PairTapBlock(int64_t taps, const int64_t* offsets, const float* weights,
                         const float* data, float* out) {
  VI sum[kVectors] = {};
  for (int64_t t = 0; t < taps; ++t) {
    const float* from = data + offsets[t];
    VI weight = Pairs::Spread<VI>(weights + t);
    SIMD_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      sum[j] = AddPairs(weight, LoadAs<VI>(from + j * kLanes), sum[j]);
    }
  }
  SIMD_UNROLL
  for (int j = 0; j < kVectors; ++j) StoreAs(sum[j], out + j * kLanes);
}

void PairTaps(int64_t taps, const int64_t* offsets, const float* weights, const float* data,
              int64_t count, float* out) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    PairTapBlock<4>(taps, offsets, weights, data + i, out + i);
  }
  for (; i < count; i += kLanes) PairTapBlock<1>(taps, offsets, weights, data + i, out + i);
}

void Taps(Tap kind, int64_t taps, const int64_t* offsets, const float* weights, const float* data,
          int64_t count, float* out) {
  switch (kind) {
    case Tap::kMultiplyAdd:
      return TapsOf<Tap::kMultiplyAdd>(taps, offsets, weights, data, count, out);
    case Tap::kAdd:
      return TapsOf<Tap::kAdd>(taps, offsets, weights, data, count, out);
    case Tap::kMaximum:
      return TapsOf<Tap::kMaximum>(taps, offsets, weights, data, count, out);
    case Tap::kMultiplyAddPairs:
      return PairTaps(taps, offsets, weights, data, count, out);
  }
}

// NOLINTEND(modernize-use-using,bugprone-implicit-widening-of-multiplication-result)

#endif  // EMULATOR_KERNELS_SIMD_SUMS_H_
