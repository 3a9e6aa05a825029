// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_vectors.h
 * \brief Vectors, and what processors do with them. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_VECTORS_H_
#define EMULATOR_KERNELS_SIMD_VECTORS_H_

// Vector types need typedef, for their attributes.
// NOLINTBEGIN(modernize-use-using)

constexpr int kLanes = SIMD_BYTES / 4;

typedef float V __attribute__((vector_size(SIMD_BYTES)));
typedef int32_t VI __attribute__((vector_size(SIMD_BYTES)));
typedef uint32_t VU __attribute__((vector_size(SIMD_BYTES)));
typedef int8_t VI8 __attribute__((vector_size(SIMD_BYTES / 4)));
typedef uint8_t VU8 __attribute__((vector_size(SIMD_BYTES / 4)));
typedef uint16_t VU16 __attribute__((vector_size(SIMD_BYTES / 2)));
typedef int16_t VI16 __attribute__((vector_size(SIMD_BYTES / 2)));
typedef int64_t VL __attribute__((vector_size(SIMD_BYTES)));
typedef uint64_t VUL __attribute__((vector_size(SIMD_BYTES)));
typedef int16_t VH __attribute__((vector_size(SIMD_BYTES)));
typedef int8_t VH8 __attribute__((vector_size(SIMD_BYTES / 2)));
typedef uint8_t VHU8 __attribute__((vector_size(SIMD_BYTES / 2)));
typedef int8_t VB __attribute__((vector_size(SIMD_BYTES)));
typedef float V4 __attribute__((vector_size(16)));
typedef int32_t VI4 __attribute__((vector_size(16)));
// The rows of a panel are one or two of these.
typedef float VR __attribute__((vector_size(SIMD_BYTES < 32 ? SIMD_BYTES : 32)));
typedef int32_t VRI __attribute__((vector_size(SIMD_BYTES < 32 ? SIMD_BYTES : 32)));

template <typename T>
inline T LoadAs(const void* data) {
  T value;
  __builtin_memcpy(&value, data, sizeof(T));
  return value;
}
template <typename T>
inline void StoreAs(T value, void* out) {
  __builtin_memcpy(out, &value, sizeof(T));
}
inline V Load(const float* data) { return LoadAs<V>(data); }
inline void Store(V value, float* out) { StoreAs(value, out); }
template <typename T = V>
inline T Splat(float value) {
  return value - T{};  // a sum would make 0 of -0
}

// a * b + c, fused where the processor can.
inline V4 Fma(V4 a, V4 b, V4 c) {
#if defined(__FMA__)
  return (V4)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
  return (V4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
#if SIMD_BYTES >= 32
inline VR Fma(VR a, VR b, VR c) { return (VR)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#endif
#if SIMD_BYTES == 64
inline V Fma(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#endif

// The sum of two products of int16 in each int32, added to what there is. Wraps.
inline VI4 AddPairs(VI4 a, VI4 b, VI4 c) {
#if defined(__SSE2__)
  return (VI4)_mm_add_epi32((__m128i)c, _mm_madd_epi16((__m128i)a, (__m128i)b));
#else
  typedef uint32_t VU4 __attribute__((vector_size(16)));
  VI4 low = ((VI4)((VU4)a << 16) >> 16) * ((VI4)((VU4)b << 16) >> 16);
  VI4 high = (a >> 16) * (b >> 16);
  return (VI4)((VU4)c + (VU4)low + (VU4)high);
#endif
}
#if SIMD_BYTES >= 32
inline VRI AddPairs(VRI a, VRI b, VRI c) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return (VRI)_mm256_dpwssd_epi32((__m256i)c, (__m256i)a, (__m256i)b);
#else
  return (VRI)_mm256_add_epi32((__m256i)c, _mm256_madd_epi16((__m256i)a, (__m256i)b));
#endif
}
#endif
#if SIMD_BYTES == 64
inline VI AddPairs(VI a, VI b, VI c) {
#if defined(__AVX512VNNI__)
  return (VI)_mm512_dpwssd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
#else
  return (VI)_mm512_add_epi32((__m512i)c, _mm512_madd_epi16((__m512i)a, (__m512i)b));
#endif
}
#endif

#if defined(__AVX512VNNI__)
// The sum of four products in each int32, added to what there is; those of `a` are signed.
inline VI AddQuads(VI a, VI b, VI c) {
  return (VI)_mm512_dpbusd_epi32((__m512i)c, (__m512i)b, (__m512i)a);
}
inline VRI AddQuads(VRI a, VRI b, VRI c) {
  return (VRI)_mm256_dpbusd_epi32((__m256i)c, (__m256i)b, (__m256i)a);
}
#endif

inline V SquareRoot(V a) {
#if SIMD_BYTES == 64
  return (V)_mm512_maskz_sqrt_ps(0xffff, (__m512)a);
#elif SIMD_BYTES == 32
  return (V)_mm256_sqrt_ps((__m256)a);
#elif defined(__SSE2__)
  return (V)_mm_sqrt_ps((__m128)a);
#elif defined(__aarch64__)
  return (V)vsqrtq_f32((float32x4_t)a);
#else
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}

inline V Absolute(V a) { return (V)((VI)a & 0x7fffffff); }
inline V WithSignOf(V a, V sign) { return (V)((VI)a | ((VI)sign & (VI)Splat(-0.0f))); }
template <typename T>
inline T Maximum(T a, T b) {
  return ((a > b) | (a != a)) ? a : b;
}
template <typename T>
constexpr T Minimum(T a, T b) {
  return ((a < b) | (a != a)) ? a : b;
}

// As Maximum and Minimum, but a NaN as the first operand is lost.
template <typename T>
inline T Greater(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
inline T Less(T a, T b) {
  return a < b ? a : b;
}
#if SIMD_BYTES == 64
inline V Greater(V a, V b) { return (V)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
inline V Less(V a, V b) { return (V)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#elif SIMD_BYTES == 32
inline V Greater(V a, V b) { return (V)_mm256_max_ps((__m256)a, (__m256)b); }
inline V Less(V a, V b) { return (V)_mm256_min_ps((__m256)a, (__m256)b); }
#endif

// Adding 2^23 leaves no room for a fraction.
inline V RoundEven(V a) {
  V size = Absolute(a);
  V rounded = (size + 0x1p23f) - 0x1p23f;
  return size < 0x1p23f ? WithSignOf(rounded, a) : a;
}

inline V Floor(V a) {
  V rounded = RoundEven(a);
  return rounded > a ? rounded - 1 : rounded;
}

inline V Truncate(V a) {
  V size = Absolute(a);
  return size < 0x1p23f ? WithSignOf(Floor(size), a) : a;
}

inline V RoundAway(V a) {
  V size = Absolute(a);
  V down = Floor(size);
  V rounded = size - down >= 0.5f ? down + 1 : down;
  return size < 0x1p23f ? WithSignOf(rounded, a) : a;
}

// NOLINTEND(modernize-use-using)

#endif  // EMULATOR_KERNELS_SIMD_VECTORS_H_
