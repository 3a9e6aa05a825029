// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_loops.h
 * \brief The inner loops, for vectors of SIMD_BYTES bytes; see simd.h for what they compute.
 *
 * Written with the vector extensions of GCC and Clang; intrinsics only for the few things that
 * these lack.
 */
#include <type_traits>

#include "simd.h"

#if SIMD_BYTES > 16 || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define SIMD_UNROLL _Pragma("unroll")
#else
#define SIMD_UNROLL _Pragma("GCC unroll 16")
// Functions that pass vectors have internal linkage, so no other code depends on their ABI.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Vector types need typedef, for their attributes, and offsets inside of a panel fit into int.
// NOLINTBEGIN(modernize-use-using,bugprone-implicit-widening-of-multiplication-result)

namespace npu::emulator {

namespace {

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

// ---- Functions of vectors ----

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

template <int kCount>
inline V Polynomial(V x, const float (&coefficients)[kCount]) {
  V sum = Splat(coefficients[kCount - 1]);
  SIMD_UNROLL
  for (int i = kCount - 2; i >= 0; --i) sum = Fma(sum, x, Splat(coefficients[i]));
  return sum;
}

// ln 2 in two parts; a product of the first with an exponent is exact.
constexpr float kLn2High = 0x1.63p-1f;
constexpr float kLn2Low = -0x1.bd0106p-13f;

// e to x is 2 to n times `y`, which is e to r with |r| <= ln(2) / 2. The low bits of `shifted` hold
// n, an integer.
struct Power {
  static constexpr float kShift = 0x1.8p23f;
  V shifted, n, y;

  explicit Power(V x) : shifted(Fma(x, Splat(0x1.715476p0f), Splat(kShift))), n(shifted - kShift) {
    V r = Fma(n, Splat(-kLn2High), x);
    r = Fma(n, Splat(-kLn2Low), r);
    V p = Polynomial(r, {0.5f, 1.666651296e-1f, 4.166618747e-2f, 8.369590294e-3f, 1.395170544e-3f});
    y = Fma(r * r, p, r) + 1;
  }

  // 2 to n where it is a normal number.
  V Scale() const { return (V)(((VU)shifted << 23) + (127u << 23)); }
};

// For -87 <= x <= 88, where results are normal numbers, or all x that Exp needs with AVX-512. NaN
// remains NaN.
inline V ExpInside(V x) {
  const Power power(x);
#if SIMD_BYTES == 64
  return (V)_mm512_maskz_scalef_ps(0xffff, (__m512)power.y, (__m512)power.n);
#else
  return power.y * power.Scale();
#endif
}

// The same plus a number.
inline V ExpInsidePlus(V x, float addend) {
#if SIMD_BYTES == 64
  return ExpInside(x) + addend;
#else
  const Power power(x);
  return Fma(power.y, power.Scale(), Splat(addend));
#endif
}

inline V Exp(V x) {
  // The results beyond are infinity and 0. These comparisons let NaN through.
#if SIMD_BYTES == 64
  x = (V)_mm512_maskz_min_ps(0xffff, (__m512)Splat(89.0f), (__m512)x);
  x = (V)_mm512_maskz_max_ps(0xffff, (__m512)Splat(-104.5f), (__m512)x);
  return ExpInside(x);
#else
#if SIMD_BYTES == 32
  x = (V)_mm256_min_ps((__m256)Splat(89.0f), (__m256)x);
  x = (V)_mm256_max_ps((__m256)Splat(-104.5f), (__m256)x);
#else
  x = x > 89.0f ? Splat(89.0f) : x;
  x = x < -104.5f ? Splat(-104.5f) : x;
#endif
  const Power power(x);
  // In two steps, for results below the normal numbers and for n = 128.
  VI exponent = (VI)((VU)power.shifted - (VU)Splat(Power::kShift));
  VI half = exponent >> 1;
  VU rest = (VU)exponent - (VU)half;
  return power.y * (V)(((VU)half + 127) << 23) * (V)((rest + 127) << 23);
#endif
}

// e * ln(2) + ln(1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
inline V Log(V x) {
  auto subnormal = x < 0x1p-126f;
  V scaled = subnormal ? x * 0x1p23f : x;
  constexpr uint32_t kRootHalf = 0x3f3504f3;
  VU bits = (VU)scaled - kRootHalf;
  V e = __builtin_convertvector((VI)bits >> 23, V) - (subnormal ? Splat(23) : Splat(0));
  V f = (V)((bits & 0x7fffff) + kRootHalf) - 1;
  V p = Polynomial(
      f, {3.333331044e-1f, -2.499998659e-1f, 2.000222661e-1f, -1.666925123e-1f, 1.421865836e-1f,
          -1.238434135e-1f, 1.187296805e-1f, -1.178984717e-1f, 6.915432949e-2f});
  V tail = Fma(f * f, Fma(f, p, Splat(-0.5f)), e * kLn2Low);
  V y = Fma(e, Splat(kLn2High), f + tail);
  y = x < __builtin_inff() ? y : x;
  y = x == 0 ? Splat(-__builtin_inff()) : y;
  return x < 0 ? Splat(__builtin_nanf("")) : y;
}

inline V Tanh(V x) {
  V size = Absolute(x);
  V t = x * x;
  V p = Polynomial(
      t, {-3.333328392e-1f, 1.333149127e-1f, -5.374349696e-2f, 2.065058340e-2f, -5.717040484e-3f});
  V small = Fma(x * t, p, x);
  // From 9.02 on, the result is 1.
  const V limited = size > 10.0f ? Splat(10.0f) : size;
  V large = WithSignOf(1 - 2 / ExpInsidePlus(limited + limited, 1), x);
  return size < 0.625f ? small : large;
}

inline V Sigmoid(V x) {
  // The exponential of a number that is not positive cannot overflow.
  V e = Exp((V)((VI)x | (VI)Splat(-0.0f)));
  return (x < 0 ? e : Splat(1)) / (1 + e);
}

inline V Erf(V x) {
  V size = Absolute(x);
  size = size > 4.0f ? Splat(4.0f) : size;
  V small = x * Polynomial(x * x, {1.128379154f, -3.761252328e-1f, 1.128214083e-1f,
                                   -2.677890924e-2f, 5.011963069e-3f, -6.090360453e-4f});
  // ln(1 - erf(x))
  V p = Polynomial(size, {-1.664442704e-4f, -1.127797257f, -6.369760589e-1f, -1.041137006e-1f,
                          2.231522384e-2f, -3.065493058e-3f, 1.982199411e-4f});
  V large = WithSignOf(-ExpInsidePlus(p, -1), x);
  return size < 0.9f ? small : large;
}

// ---- Conversions ----

// Compilers convert between vectors of these sizes element by element.

template <typename T>
inline VI Widen(const void* data);
template <>
inline VI Widen<int8_t>(const void* data) {
#if SIMD_BYTES == 64
  return (VI)_mm512_maskz_cvtepi8_epi32(0xffff, LoadAs<__m128i>(data));
#elif SIMD_BYTES == 32
  return (VI)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(LoadAs<int64_t>(data)));
#else
  return __builtin_convertvector(LoadAs<VI8>(data), VI);
#endif
}
template <>
inline VI Widen<uint8_t>(const void* data) {
#if SIMD_BYTES == 64
  return (VI)_mm512_maskz_cvtepu8_epi32(0xffff, LoadAs<__m128i>(data));
#elif SIMD_BYTES == 32
  return (VI)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(LoadAs<int64_t>(data)));
#else
  return __builtin_convertvector(LoadAs<VU8>(data), VI);
#endif
}
template <>
inline VI Widen<int16_t>(const void* data) {
  return __builtin_convertvector(LoadAs<VI16>(data), VI);
}

// The low bits of each number.
inline VU8 ToBytes(VI a) {
#if SIMD_BYTES == 64
  return (VU8)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)a);
#elif SIMD_BYTES == 32
  const __m256i first =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  __m256i bytes = _mm256_shuffle_epi8((__m256i)a, first);
  __m128i joined =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  return LoadAs<VU8>(&joined);
#elif defined(__SSE2__)
  __m128i words = _mm_packs_epi32((__m128i)(a & 0xff), _mm_setzero_si128());
  __m128i bytes = _mm_packus_epi16(words, words);
  return LoadAs<VU8>(&bytes);
#else
  return __builtin_convertvector(a, VU8);
#endif
}

inline V FromHalf(const void* data) {
#if SIMD_BYTES == 64
  return (V)_mm512_maskz_cvtph_ps(0xffff, LoadAs<__m256i>(data));
#elif SIMD_BYTES == 32
  return (V)_mm256_cvtph_ps(LoadAs<__m128i>(data));
#else
  VU bits = __builtin_convertvector(LoadAs<VU16>(data), VU);
  VU size = (bits & 0x7fff) << 13;
  // The product moves the exponent to its new bias, for subnormals too.
  VU finite = (VU)((V)size * 0x1p112f);
  VU special = size | 0x7f800000;
  VU value = (bits & 0x7c00) == 0x7c00 ? special : finite;
  return (V)(value | ((bits & 0x8000) << 16));
#endif
}

inline void ToHalf(V a, void* out) {
#if SIMD_BYTES == 64
  StoreAs(_mm512_maskz_cvtps_ph(0xffff, (__m512)a, _MM_FROUND_TO_NEAREST_INT), out);
#elif SIMD_BYTES == 32
  StoreAs(_mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT), out);
#else
  VU size = (VU)Absolute(a);
  // Below the normal numbers, adding 0.5 rounds to the last bit of a half.
  VU tiny = (VU)((V)size + 0.5f) - (VU)Splat(0.5f);
  VU normal = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
  VU value = size < (113u << 23) ? tiny : normal;
  value = size >= 0x477ff000 ? VU{} + 0x7c00 : value;  // 65520 and more
  value = size > 0x7f800000 ? VU{} + 0x7e00 : value;
  StoreAs(__builtin_convertvector(value | (((VU)a >> 16) & 0x8000), VU16), out);
#endif
}

inline V FromInt64(const void* data) {
  V a;
  for (int i = 0; i < kLanes; ++i) {
    a[i] = static_cast<float>(LoadAs<int64_t>(static_cast<const int64_t*>(data) + i));
  }
  return a;
}

inline V FromBool(const void* data) {
  V a = __builtin_convertvector(Widen<uint8_t>(data), V);
  return a != 0 ? Splat(1) : Splat(0);
}

// To whole numbers in [low, high]; NaN becomes 0.
inline V ToWhole(V a, float low, float high) {
  a = a == a ? a : Splat(0);
  a = a < low ? Splat(low) : a;
  a = a > high ? Splat(high) : a;
  return RoundEven(a);
}

inline VI ToInt32(V a) {
  V whole = ToWhole(a, -0x1p31f, 0x1p31f);
  VI value = __builtin_convertvector(whole < 0x1p31f ? whole : Splat(0), VI);
  return whole < 0x1p31f ? value : VI{} + 0x7fffffff;
}

inline void ToInt64(V a, void* out) {
  V whole = ToWhole(a, -0x1p63f, 0x1p63f);
  for (int i = 0; i < kLanes; ++i) {
    int64_t value = whole[i] < 0x1p63f ? static_cast<int64_t>(whole[i]) : INT64_MAX;
    StoreAs(value, static_cast<int64_t*>(out) + i);
  }
}

inline VI ToWholeInt(V a, float low, float high) {
  return __builtin_convertvector(ToWhole(a, low, high), VI);
}

inline VU8 ToBool(V a) { return ToBytes(a != 0 ? VI{} + 1 : VI{}); }

// Calls `get` on each vector of elements of `kSize` bytes; the last is padded with zeros.
template <int kSize, typename Get>
inline void LoadLoop(const void* data, int64_t count, float* out, Get get) {
  const char* bytes = static_cast<const char*>(data);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(get(bytes + i * kSize), out + i);
  if (i == count) return;
  char part[kLanes * kSize] = {};
  __builtin_memcpy(part, bytes + i * kSize, static_cast<size_t>(count - i) * kSize);
  V value = get(part);
  __builtin_memcpy(out + i, &value, static_cast<size_t>(count - i) * sizeof(float));
}

template <int kSize, typename Put>
inline void StoreLoop(const float* data, int64_t count, void* out, Put put) {
  char* bytes = static_cast<char*>(out);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) put(Load(data + i), bytes + i * kSize);
  if (i == count) return;
  V value = {};
  __builtin_memcpy(&value, data + i, static_cast<size_t>(count - i) * sizeof(float));
  char part[kLanes * kSize];
  put(value, part);
  __builtin_memcpy(bytes + i * kSize, part, static_cast<size_t>(count - i) * kSize);
}

void LoadElements(npu_dtype dtype, const void* data, int64_t count, float* out) {
  switch (dtype) {
    case NPU_FLOAT32:
      __builtin_memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case NPU_FLOAT16:
      return LoadLoop<2>(data, count, out, FromHalf);
    case NPU_INT8:
      return LoadLoop<1>(data, count, out, [](const void* p) {
        return __builtin_convertvector(Widen<int8_t>(p), V);
      });
    case NPU_UINT8:
      return LoadLoop<1>(data, count, out, [](const void* p) {
        return __builtin_convertvector(Widen<uint8_t>(p), V);
      });
    case NPU_INT16:
      return LoadLoop<2>(data, count, out, [](const void* p) {
        return __builtin_convertvector(Widen<int16_t>(p), V);
      });
    case NPU_INT32:
      return LoadLoop<4>(data, count, out,
                         [](const void* p) { return __builtin_convertvector(LoadAs<VI>(p), V); });
    case NPU_INT64:
      return LoadLoop<8>(data, count, out, FromInt64);
    case NPU_BOOL:
      return LoadLoop<1>(data, count, out, FromBool);
  }
}

void StoreElements(npu_dtype dtype, const float* data, int64_t count, void* out) {
  switch (dtype) {
    case NPU_FLOAT32:
      __builtin_memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case NPU_FLOAT16:
      return StoreLoop<2>(data, count, out, ToHalf);
    case NPU_INT8:
      return StoreLoop<1>(data, count, out,
                          [](V a, void* p) { StoreAs(ToBytes(ToWholeInt(a, -128, 127)), p); });
    case NPU_UINT8:
      return StoreLoop<1>(data, count, out,
                          [](V a, void* p) { StoreAs(ToBytes(ToWholeInt(a, 0, 255)), p); });
    case NPU_INT16:
      return StoreLoop<2>(data, count, out, [](V a, void* p) {
        StoreAs(__builtin_convertvector(ToWholeInt(a, -32768, 32767), VI16), p);
      });
    case NPU_INT32:
      return StoreLoop<4>(data, count, out, [](V a, void* p) { StoreAs(ToInt32(a), p); });
    case NPU_INT64:
      return StoreLoop<8>(data, count, out, ToInt64);
    case NPU_BOOL:
      return StoreLoop<1>(data, count, out, [](V a, void* p) { StoreAs(ToBool(a), p); });
  }
}

// ---- Sums of products ----

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

// ---- Windows ----

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

// ---- Moves ----

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

// ---- Vector programs ----

// Calls `function` on each vector of the operands; the last is padded with zeros.
template <typename Function, typename... Operands>
inline void Map(int64_t count, float* out, Function function, Operands... operands) {
  constexpr int kUnroll = 4;
  static_assert(kUnroll * kLanes <= kSplat, "that many numbers are there");
  int64_t i = 0;
  for (; i + kUnroll * kLanes <= count; i += kUnroll * kLanes) {
    SIMD_UNROLL
    for (int j = 0; j < kUnroll * kLanes; j += kLanes) {
      Store(function(Load(operands.data + (i & operands.mask) + j)...), out + i + j);
    }
  }
  for (; i + kLanes <= count; i += kLanes) {
    Store(function(Load(operands.data + (i & operands.mask))...), out + i);
  }
  if (i == count) return;
  size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  auto part = [=](const VectorOperand& operand) {
    V value = {};
    __builtin_memcpy(&value, operand.data + (i & operand.mask), bytes);
    return value;
  };
  V value = function(part(operands)...);
  __builtin_memcpy(out + i, &value, bytes);
}

void Power(int64_t count, float* out, const VectorOperand& a, const VectorOperand& b) {
  // Models mostly want squares and cubes.
  bool uniform = b.mask == 0;
  if (uniform && b.data[0] == 2) return Map(count, out, [](V x) { return x * x; }, a);
  if (uniform && b.data[0] == 3) return Map(count, out, [](V x) { return x * x * x; }, a);
  ApplyEach(NPU_VECTOR_POWER, a, b, {}, count, out);
}

void Apply(npu_vector_opcode opcode, const VectorOperand& a, const VectorOperand& b,
           const VectorOperand& c, int64_t count, float* out) {
  switch (opcode) {
    case NPU_VECTOR_ADD:
      return Map(count, out, [](V x, V y) { return x + y; }, a, b);
    case NPU_VECTOR_SUBTRACT:
      return Map(count, out, [](V x, V y) { return x - y; }, a, b);
    case NPU_VECTOR_MULTIPLY:
      return Map(count, out, [](V x, V y) { return x * y; }, a, b);
    case NPU_VECTOR_DIVIDE:
      return Map(count, out, [](V x, V y) { return x / y; }, a, b);
    case NPU_VECTOR_MAXIMUM:
      return Map(count, out, Maximum<V>, a, b);
    case NPU_VECTOR_MINIMUM:
      return Map(count, out, Minimum<V>, a, b);
    case NPU_VECTOR_EXP:
      return Map(count, out, Exp, a);
    case NPU_VECTOR_LOG:
      return Map(count, out, Log, a);
    case NPU_VECTOR_SQRT:
      return Map(count, out, SquareRoot, a);
    case NPU_VECTOR_TANH:
      return Map(count, out, Tanh, a);
    case NPU_VECTOR_ERF:
      return Map(count, out, Erf, a);
    case NPU_VECTOR_SIGMOID:
      return Map(count, out, Sigmoid, a);
    case NPU_VECTOR_FLOOR:
      return Map(count, out, Floor, a);
    case NPU_VECTOR_ROUND_EVEN:
      return Map(count, out, RoundEven, a);
    case NPU_VECTOR_ROUND_AWAY:
      return Map(count, out, RoundAway, a);
    case NPU_VECTOR_LESS:
      return Map(count, out, [](V x, V y) { return x < y ? Splat(1) : Splat(0); }, a, b);
    case NPU_VECTOR_SELECT:
      return Map(count, out, [](V x, V y, V z) { return x != 0 ? y : z; }, a, b, c);
    case NPU_VECTOR_EQUAL:
      return Map(count, out, [](V x, V y) { return x == y ? Splat(1) : Splat(0); }, a, b);
    case NPU_VECTOR_ABSOLUTE:
      return Map(count, out, Absolute, a);
    case NPU_VECTOR_TRUNCATE:
      return Map(count, out, Truncate, a);
    case NPU_VECTOR_FLOOR_DIVIDE:
      return Map(count, out, [](V x, V y) { return Floor(x / y); }, a, b);
    case NPU_VECTOR_POWER:
      return Power(count, out, a, b);
    default:
      return ApplyEach(opcode, a, b, c, count, out);
  }
}

#include "simd_finish.h"
#include "simd_gemm.h"
#if SIMD_BYTES >= 32
#include "simd_depthwise.h"
#else
constexpr decltype(Simd::plane) ConvolvePlane = nullptr;
#endif

// ---- Integers ----

template <typename T>
inline void PairRows(const T* low, const T* high, int64_t count, int32_t zero, float* out) {
  auto pair = [=](const T* from, const T* other) {
    VI first = Widen<T>(from);
    VI second = VI{} + zero;
    if (high != nullptr) second = Widen<T>(other);
    return ((first - zero) & 0xffff) | (VI)((VU)(second - zero) << 16);
  };
  int64_t i = 0;
  if (high == nullptr && zero == 0) {
    for (; i + kLanes <= count; i += kLanes) StoreAs(Widen<T>(low + i) & 0xffff, out + i);
  }
  for (; i + kLanes <= count; i += kLanes) StoreAs(pair(low + i, high + i), out + i);
  if (i == count) return;
  if (i > 0) {
    i = count - kLanes;
    return StoreAs(pair(low + i, high + i), out + i);
  }
  T part[2][kLanes] = {};
  auto size = static_cast<size_t>(count);
  __builtin_memcpy(part[0], low, size);
  if (high != nullptr) __builtin_memcpy(part[1], high, size);
  VI value = pair(part[0], part[1]);
  __builtin_memcpy(out, &value, size * sizeof(float));
}

void Pair(npu_dtype dtype, const void* low, const void* high, int64_t count, int32_t zero,
          float* out) {
  if (dtype == NPU_INT8) {
    PairRows(static_cast<const int8_t*>(low), static_cast<const int8_t*>(high), count, zero, out);
  } else {
    PairRows(static_cast<const uint8_t*>(low), static_cast<const uint8_t*>(high), count, zero, out);
  }
}

void Chain(int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreAs(LoadAs<VI>(out + i) | (VI)(LoadAs<VU>(out + i + 1) << 16), out + i);
  }
  for (; i < count; ++i) {
    StoreAs(LoadAs<uint32_t>(out + i) | LoadAs<uint32_t>(out + i + 1) << 16, out + i);
  }
}

template <typename T, typename Narrow>
inline void JoinNeighbours(const T* data, int64_t count, int32_t zero, float* out) {
  int64_t i = 0;
  VH less = VH{} + static_cast<int16_t>(zero);
  for (; i + kLanes <= count; i += kLanes) {
    StoreAs(__builtin_convertvector(LoadAs<Narrow>(data + 2 * i), VH) - less, out + i);
  }
  for (; i < count; ++i) {
    int32_t second = data[2 * i + 1] - zero;
    StoreAs(((data[2 * i] - zero) & 0xffff) | (int32_t)((uint32_t)second << 16), out + i);
  }
}

void Join(npu_dtype dtype, const void* data, int64_t count, int32_t zero, float* out) {
  if (dtype == NPU_INT8) {
    JoinNeighbours<int8_t, VH8>(static_cast<const int8_t*>(data), count, zero, out);
  } else {
    JoinNeighbours<uint8_t, VHU8>(static_cast<const uint8_t*>(data), count, zero, out);
  }
}

void WidenHalves(npu_dtype dtype, const uint8_t* halves, int64_t count, uint8_t* out) {
  // The sign bit of four bits is worth 8.
  const int8_t sign = dtype == NPU_INT8 ? 8 : 0;
  const VB signs = VB{} + sign;
  int64_t i = 0;
  for (; i + SIMD_BYTES <= count; i += SIMD_BYTES) {
    VH both = __builtin_convertvector(LoadAs<VHU8>(halves + i / 2), VH);
    StoreAs(((VB)((both | both << 4) & 0x0f0f) ^ signs) - signs, out + i);
  }
  for (; i < count; ++i) {
    int number = halves[i / 2] >> i % 2 * 4 & 15;
    out[i] = static_cast<uint8_t>((number ^ sign) - sign);
  }
}

#if defined(__AVX512VNNI__)

void GemmQuads(int rows, int columns, int64_t depth, const float* a, const float* b, int64_t ldb,
               float* tile, bool accumulate) {
  GemmOf<Quads>(rows, columns, depth, a, b, ldb, tile, accumulate);
}

void JoinRows(const uint8_t* const* rows, int64_t count, uint8_t missing, bool turn, float* out) {
  constexpr int64_t kStep = 16;
  const __m128i sign = _mm_set1_epi8(turn ? -128 : 0);
  const __m128i nothing = _mm_set1_epi8(static_cast<char>(missing));
  auto join = [&](int64_t i, float* to) __attribute__((always_inline)) {
    __m128i row[4];
    SIMD_UNROLL
    for (int r = 0; r < 4; ++r) {
      __m128i value = rows[r] == nullptr ? nothing : LoadAs<__m128i>(rows[r] + i);
      row[r] = _mm_xor_si128(value, sign);
    }
    __m128i low = _mm_unpacklo_epi8(row[0], row[1]), high = _mm_unpackhi_epi8(row[0], row[1]);
    __m128i low2 = _mm_unpacklo_epi8(row[2], row[3]), high2 = _mm_unpackhi_epi8(row[2], row[3]);
    StoreAs(_mm_unpacklo_epi16(low, low2), to);
    StoreAs(_mm_unpackhi_epi16(low, low2), to + 4);
    StoreAs(_mm_unpacklo_epi16(high, high2), to + 8);
    StoreAs(_mm_unpackhi_epi16(high, high2), to + 12);
  };
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) join(i, out + i);
  if (i == count) return;
  if (i > 0) return join(count - kStep, out + count - kStep);
  uint8_t part[4][kStep] = {};
  const uint8_t* parts[4];
  for (int r = 0; r < 4; ++r) {
    parts[r] = rows[r] == nullptr ? nullptr : part[r];
    if (rows[r] != nullptr) __builtin_memcpy(part[r], rows[r], static_cast<size_t>(count));
  }
  float joined[kStep];
  rows = parts;
  join(0, joined);
  __builtin_memcpy(out, joined, static_cast<size_t>(count) * sizeof(float));
}

void JoinPairs(const uint8_t* pairs, int64_t rows, int64_t count, bool turn, float* out) {
  const __m128i sign = _mm_set1_epi8(turn ? -128 : 0);
  for (int64_t row = 0; row < rows; row += 2, pairs += 4 * count) {
    bool two = row + 1 < rows;
    for (int64_t i = 0; i < count; i += 8, out += 8) {
      __m128i low = _mm_xor_si128(LoadAs<__m128i>(pairs + 2 * i), sign);
      __m128i high = _mm_setzero_si128();
      if (two) high = LoadAs<__m128i>(pairs + 2 * (count + i));
      high = _mm_xor_si128(high, sign);
      StoreAs(_mm_unpacklo_epi16(low, high), out);
      StoreAs(_mm_unpackhi_epi16(low, high), out + 4);
    }
  }
}

void StartTile(int rows, const int32_t* of_rows, const int32_t* of_columns, float* tile) {
  for (int i = 0; i < rows; ++i) {
    SIMD_UNROLL
    for (int j = 0; j < kPanelColumns; j += kLanes) {
      float* to = tile + i * kPanelColumns + j;
      VI value = of_rows != nullptr ? of_rows[i] - VI{} : LoadAs<VI>(to);
      if (of_columns != nullptr) value = Pairs::Add(value, LoadAs<VI>(of_columns + j));
      StoreAs(value, to);
    }
  }
}

#endif

constexpr int kPanelVectors = kPanelColumns / kLanes;

// A row of a panel of weights as int32.
template <typename T, int kBits>
inline void WidenWeights(const char* data, VI* row) {
  if constexpr (kBits == 8) {
    SIMD_UNROLL
    for (int v = 0; v < kPanelVectors; ++v) row[v] = Widen<T>(data + v * kLanes);
  } else {
    // The sign bit of four bits is worth 8.
    constexpr int kSign = T(-1) < 0 ? 8 : 0;
    SIMD_UNROLL
    for (int v = 0; v < kPanelVectors / 2; ++v) {
      VI both = Widen<uint8_t>(data + v * kLanes);
      row[v] = ((both & 15) ^ kSign) - kSign;
      row[v + kPanelVectors / 2] = ((both >> 4) ^ kSign) - kSign;
    }
  }
}

template <typename T, int kBits>
struct WeighRows {
  static void Run(const char* data, int64_t rows, const float* zeros, const float* scales,
                  float* out) {
    V zero[kPanelVectors], scale[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      zero[v] = Load(zeros + v * kLanes);
      scale[v] = Load(scales + v * kLanes);
    }
    for (int64_t k = 0; k < rows; ++k, out += kPanelColumns) {
      VI row[kPanelVectors];
      WidenWeights<T, kBits>(data + k * kPanelColumns * kBits / 8, row);
      SIMD_UNROLL
      for (int v = 0; v < kPanelVectors; ++v) {
        Store((__builtin_convertvector(row[v], V) - zero[v]) * scale[v], out + v * kLanes);
      }
    }
  }
};

template <typename T, int kBits>
struct WeighRow {
  static void Run(const char* data, int64_t rows, const float* zeros, const float* scales,
                  const float* a, float* sums) {
    // As many sums as hide the latency of an addition.
    constexpr int kStreams = kPanelVectors < 8 ? 8 / kPanelVectors : 1;
    VI zero[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      zero[v] = __builtin_convertvector(Load(zeros + v * kLanes), VI);
    }
    V sum[kStreams][kPanelVectors] = {};
    auto add = [&](int64_t k, int s) {
      VI row[kPanelVectors];
      WidenWeights<T, kBits>(data + k * kPanelColumns * kBits / 8, row);
      V factor = Splat(a[k * kPanelRows]);
      SIMD_UNROLL
      for (int v = 0; v < kPanelVectors; ++v) {
        sum[s][v] = Fma(__builtin_convertvector(row[v] - zero[v], V), factor, sum[s][v]);
      }
    };
    int64_t k = 0;
    for (; k + kStreams <= rows; k += kStreams) {
      SIMD_UNROLL
      for (int s = 0; s < kStreams; ++s) add(k + s, s);
    }
    for (; k < rows; ++k) add(k, 0);
    for (int v = 0; v < kPanelVectors; ++v) {
      for (int s = 1; s < kStreams; ++s) sum[0][v] += sum[s][v];
      float* to = sums + v * kLanes;
      Store(Fma(sum[0][v], Load(scales + v * kLanes), Load(to)), to);
    }
  }
};

// Calls the loop for a type and a number of bits.
template <template <typename, int> class How, typename... Arguments>
inline void OfWeights(npu_dtype dtype, int bits, const void* data, Arguments... arguments) {
  const char* bytes = static_cast<const char*>(data);
  if (dtype == NPU_INT8) {
    if (bits == 4) return How<int8_t, 4>::Run(bytes, arguments...);
    return How<int8_t, 8>::Run(bytes, arguments...);
  }
  if (bits == 4) return How<uint8_t, 4>::Run(bytes, arguments...);
  How<uint8_t, 8>::Run(bytes, arguments...);
}

void Weigh(npu_dtype dtype, int bits, const void* data, int64_t rows, const float* zeros,
           const float* scales, float* out) {
  OfWeights<WeighRows>(dtype, bits, data, rows, zeros, scales, out);
}

void MultiplyWeights(npu_dtype dtype, int bits, const void* data, int64_t rows, const float* zeros,
                     const float* scales, const float* a, float* sums) {
  OfWeights<WeighRow>(dtype, bits, data, rows, zeros, scales, a, sums);
}

template <typename T>
inline V WidenTo32(const void* data) {
  return (V)Widen<T>(data);
}

void LoadAsInt32(npu_dtype dtype, const void* data, int64_t count, float* out) {
  switch (dtype) {
    case NPU_INT8:
      return LoadLoop<1>(data, count, out, WidenTo32<int8_t>);
    case NPU_UINT8:
      return LoadLoop<1>(data, count, out, WidenTo32<uint8_t>);
    case NPU_INT16:
      return LoadLoop<2>(data, count, out, WidenTo32<int16_t>);
    case NPU_INT32:
      __builtin_memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case NPU_INT64:
      for (int64_t i = 0; i < count; ++i) {
        StoreAs(static_cast<int32_t>(LoadAs<int64_t>(static_cast<const int64_t*>(data) + i)),
                out + i);
      }
      return;
    case NPU_BOOL:
      return LoadLoop<1>(data, count, out, [](const void* p) {
        return (V)(Widen<uint8_t>(p) != 0 ? VI{} + 1 : VI{});
      });
    case NPU_FLOAT32:
    case NPU_FLOAT16:
      return;
  }
}

void StoreFromInt32(npu_dtype dtype, const float* data, int64_t count, void* out) {
  switch (dtype) {
    case NPU_INT8:
    case NPU_UINT8:
      return StoreLoop<1>(data, count, out, [](V a, void* p) { StoreAs(ToBytes((VI)a), p); });
    case NPU_INT16:
      return StoreLoop<2>(data, count, out,
                          [](V a, void* p) { StoreAs(__builtin_convertvector((VI)a, VI16), p); });
    case NPU_INT32:
      __builtin_memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case NPU_INT64:
      for (int64_t i = 0; i < count; ++i) {
        StoreAs(static_cast<int64_t>(LoadAs<int32_t>(data + i)), static_cast<int64_t*>(out) + i);
      }
      return;
    case NPU_BOOL:
      return StoreLoop<1>(data, count, out, [](V value, void* p) {
        StoreAs(ToBytes((VI)value != 0 ? VI{} + 1 : VI{}), p);
      });
    case NPU_FLOAT32:
    case NPU_FLOAT16:
      return;
  }
}

// (p + what the rounding adds) >> c, with c from 0 to 62.
template <npu_rounding kRounding, typename Signed, typename Unsigned>
inline Signed Quotient(Signed p, Signed a, Unsigned c) {
  Unsigned one = Unsigned{} + 1;
  Unsigned half = (one << c) >> 1;
  // 0 where there is nothing to round, else 1.
  Unsigned rounds = (Unsigned)(c != 0) & one;
  Unsigned negative = (Unsigned)(p < 0);
  Unsigned add = half;
  if (kRounding == NPU_ROUND_DOUBLE) {
    Unsigned turn = (Unsigned)(a < 0);
    Unsigned more = ((one << 30) ^ turn) - turn;
    add += more & (Unsigned)(c > 31);
  } else if (kRounding == NPU_ROUND_HALF_EVEN) {
    add += (((Unsigned)p >> c) & rounds) - rounds;
  } else if (kRounding == NPU_ROUND_HALF_AWAY) {
    add -= negative & rounds;
  } else if (kRounding == NPU_ROUND_DOWN) {
    add = Unsigned{};
  } else if (kRounding == NPU_ROUND_TO_ZERO) {
    add = ((one << c) - 1) & negative;
  }
  Unsigned sum = (Unsigned)p + add;
  // An arithmetic shift of 64 bits, which not all processors have.
  Unsigned sign = (Unsigned)((Signed)sum < 0);
  return (Signed)(((sum ^ sign) >> c) ^ sign);
}

template <npu_rounding kRounding>
inline V Rescale(V value, V multiplier, V shift) {
  VI c = (VI)shift;
  c = c > 0 ? c : VI{};
  c = c < 62 ? c : VI{} + 62;
#if SIMD_BYTES >= 32
  // Products of the even lanes, and of the odd ones.
  auto part = [](VI a, VI b, VI by) __attribute__((always_inline)) {
#if SIMD_BYTES == 64
    VL p = (VL)_mm512_maskz_mul_epi32(0xff, (__m512i)a, (__m512i)b);
#else
    VL p = (VL)_mm256_mul_epi32((__m256i)a, (__m256i)b);
#endif
    return Quotient<kRounding>(p, (VL)((VUL)a << 32), (VUL)by & 0xffffffff);
  };
  auto odd = [](VI a) __attribute__((always_inline)) { return (VI)((VUL)a >> 32); };
  VL low = part((VI)value, (VI)multiplier, c);
  VL high = part(odd((VI)value), odd((VI)multiplier), odd(c));
  return (V)(((VUL)low & 0xffffffff) | ((VUL)high << 32));
#else
  typedef int64_t One __attribute__((vector_size(8)));
  typedef uint64_t OneUnsigned __attribute__((vector_size(8)));
  VI result = {};
  for (int i = 0; i < kLanes; ++i) {
    int64_t a = ((VI)value)[i];
    int64_t p = a * ((VI)multiplier)[i];
    One quotient = Quotient<kRounding>(One{p}, One{a}, OneUnsigned{static_cast<uint64_t>(c[i])});
    result[i] = static_cast<int32_t>(quotient[0]);
  }
  return (V)result;
#endif
}

// The same as HALF_UP where shifts are 32 or more: the upper halves of products are enough then.
inline VI RescaleHigh(VI value, VI multiplier, VUL even_addend, VUL odd_addend, VI shift) {
#if SIMD_BYTES >= 32
  auto product = [](VI a, VI b) __attribute__((always_inline)) {
#if SIMD_BYTES == 64
    return (VUL)_mm512_maskz_mul_epi32(0xff, (__m512i)a, (__m512i)b);
#else
    return (VUL)_mm256_mul_epi32((__m256i)a, (__m256i)b);
#endif
  };
  VUL even = product(value, multiplier) + even_addend;
  VUL odd = product((VI)((VUL)value >> 32), (VI)((VUL)multiplier >> 32)) + odd_addend;
#if SIMD_BYTES == 64
  // The upper halves of `even` go to the lanes below those of `odd`.
  VI upper = (VI)_mm512_mask_shuffle_epi32((__m512i)odd, 0x5555, (__m512i)even, _MM_PERM_DDBB);
#else
  VI upper = (VI)((even >> 32) | (odd >> 32 << 32));
#endif
  return upper >> (shift - 32);
#else
  (void)even_addend;
  (void)odd_addend;
  return (VI)Rescale<NPU_ROUND_HALF_UP>((V)value, (V)multiplier, (V)shift);
#endif
}

template <npu_rounding kRounding, bool kHigh, bool kByColumn>
void RequantizeRows(const Requantization& how, const float* sums, int64_t rows, int64_t stride,
                    int64_t columns, int64_t channel, uint8_t* out, int64_t out_stride) {
  auto parameter = [&](const int32_t* all, int64_t at) __attribute__((always_inline)) {
    return kByColumn ? LoadAs<VI>(all + channel + at) : all[channel] - VI{};
  };
  const VUL one = VUL{} + 1;
  constexpr bool kAddend = kHigh && !kByColumn && SIMD_BYTES >= 32;
  for (int64_t row = 0; row < rows; ++row) {
    VI bias, multiplier, shift;
    VUL even_addend, odd_addend;
    auto set = [&](int64_t at) __attribute__((always_inline)) {
      multiplier = parameter(how.multiplier, at);
      shift = parameter(how.shift, at);
      if (kAddend) {
        even_addend = odd_addend = static_cast<uint64_t>(how.addend[channel]) - VUL{};
        return;
      }
      bias = parameter(how.bias, at);
      even_addend = one << (((VUL)shift & 0xffffffff) - 1);
      odd_addend = one << (((VUL)shift >> 32) - 1);
    };
    set(0);
    auto compute = [&](int64_t at) __attribute__((always_inline)) {
      if (kByColumn) set(at);
      VI value = LoadAs<VI>(sums + at);
      if (!kAddend) value += bias;
      if (kHigh) {
        value = RescaleHigh(value, multiplier, even_addend, odd_addend, shift);
      } else {
        value = (VI)Rescale<kRounding>((V)value, (V)multiplier, (V)shift);
      }
      if (!kAddend) value += how.zero_point;
#if SIMD_BYTES == 64
      if (how.saturates) return (VU8)_mm512_maskz_cvtsepi32_epi8(0xffff, (__m512i)value);
      value = (VI)_mm512_maskz_max_epi32(0xffff, (__m512i)value, (__m512i)(VI{} + how.least));
      value = (VI)_mm512_maskz_min_epi32(0xffff, (__m512i)value, (__m512i)(VI{} + how.most));
#else
      value = value > how.least ? value : VI{} + how.least;
      value = value < how.most ? value : VI{} + how.most;
#endif
      return ToBytes(value);
    };
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) StoreAs(compute(i), out + i);
    if (i < columns && i > 0) {
      StoreAs(compute(columns - kLanes), out + columns - kLanes);
    } else if (i < columns) {
      VU8 value = compute(i);
      for (; i < columns; ++i) out[i] = value[i];
    }
    sums += stride;
    out += out_stride;
    if (!kByColumn && !how.one_channel) ++channel;
  }
}

template <npu_rounding kRounding, bool kHigh>
void RequantizeAs(const Requantization& how, const float* sums, int64_t rows, int64_t stride,
                  int64_t columns, int64_t channel, uint8_t* out, int64_t out_stride) {
  auto function = how.by_column ? RequantizeRows<kRounding, kHigh, true>
                                : RequantizeRows<kRounding, kHigh, false>;
  function(how, sums, rows, stride, columns, channel, out, out_stride);
}

void Requantize(const Requantization& how, const float* sums, int64_t rows, int64_t stride,
                int64_t columns, int64_t channel, uint8_t* out, int64_t out_stride) {
  using Function = void (*)(const Requantization&, const float*, int64_t, int64_t, int64_t, int64_t,
                            uint8_t*, int64_t);
  static constexpr Function kRoundings[] = {
      RequantizeAs<NPU_ROUND_HALF_UP, false>,   RequantizeAs<NPU_ROUND_DOUBLE, false>,
      RequantizeAs<NPU_ROUND_HALF_EVEN, false>, RequantizeAs<NPU_ROUND_HALF_AWAY, false>,
      RequantizeAs<NPU_ROUND_DOWN, false>,      RequantizeAs<NPU_ROUND_TO_ZERO, false>,
  };
  Function function = kRoundings[how.rounding];
  if (how.high && how.rounding == NPU_ROUND_HALF_UP)
    function = RequantizeAs<NPU_ROUND_HALF_UP, true>;
  function(how, sums, rows, stride, columns, channel, out, out_stride);
}

template <typename Function>
inline auto OnIntegers(Function function) {
  return [=](auto... values) __attribute__((always_inline)) { return (V)function((VI)values...); };
}

void ApplyInt32(const npu_vector_instruction& instruction, const VectorOperand& a,
                const VectorOperand& b, const VectorOperand& c, int64_t count, float* out) {
  const VI zero = {};
  const VI one = zero + 1;
  switch (instruction.opcode) {
    case NPU_VECTOR_ADD:
      return Map(count, out, OnIntegers([](VI x, VI y) { return (VI)((VU)x + (VU)y); }), a, b);
    case NPU_VECTOR_SUBTRACT:
      return Map(count, out, OnIntegers([](VI x, VI y) { return (VI)((VU)x - (VU)y); }), a, b);
    case NPU_VECTOR_MULTIPLY:
      return Map(count, out, OnIntegers([](VI x, VI y) { return (VI)((VU)x * (VU)y); }), a, b);
    case NPU_VECTOR_MAXIMUM:
      return Map(count, out, OnIntegers([](VI x, VI y) { return x > y ? x : y; }), a, b);
    case NPU_VECTOR_MINIMUM:
      return Map(count, out, OnIntegers([](VI x, VI y) { return x < y ? x : y; }), a, b);
    case NPU_VECTOR_LESS:
      return Map(count, out, OnIntegers([=](VI x, VI y) { return x < y ? one : zero; }), a, b);
    case NPU_VECTOR_EQUAL:
      return Map(count, out, OnIntegers([=](VI x, VI y) { return x == y ? one : zero; }), a, b);
    case NPU_VECTOR_SELECT:
      return Map(count, out, OnIntegers([](VI x, VI y, VI z) { return x != 0 ? y : z; }), a, b, c);
    case NPU_VECTOR_ABSOLUTE:
      return Map(count, out, OnIntegers([](VI x) { return x < 0 ? (VI)(0 - (VU)x) : x; }), a);
    case NPU_VECTOR_RESCALE:
      switch (static_cast<npu_rounding>(instruction.immediate)) {
        case NPU_ROUND_HALF_UP:
          return Map(count, out, Rescale<NPU_ROUND_HALF_UP>, a, b, c);
        case NPU_ROUND_DOUBLE:
          return Map(count, out, Rescale<NPU_ROUND_DOUBLE>, a, b, c);
        case NPU_ROUND_HALF_EVEN:
          return Map(count, out, Rescale<NPU_ROUND_HALF_EVEN>, a, b, c);
        case NPU_ROUND_HALF_AWAY:
          return Map(count, out, Rescale<NPU_ROUND_HALF_AWAY>, a, b, c);
        case NPU_ROUND_DOWN:
          return Map(count, out, Rescale<NPU_ROUND_DOWN>, a, b, c);
        case NPU_ROUND_TO_ZERO:
          return Map(count, out, Rescale<NPU_ROUND_TO_ZERO>, a, b, c);
      }
      return;
    default:
      return;
  }
}

#include "simd_rows.h"

constexpr Simd Table(const char* name) {
  return {name,          SIMD_BYTES >= 32 ? kMostRows : kPanelRows,
          Gemm,          Dot,
          Taps,          Gather,
          Transpose,     Take,
          LoadElements,  StoreElements,
          Fill,          Spread,
          Apply,         GemmPairs,
          Pair,          Join,
          WidenHalves,   Chain,
          LoadAsInt32,   StoreFromInt32,
          ApplyInt32,    Requantize,
          Weigh,         MultiplyWeights,
          FinishRows,    ReduceElements,
          ConvolvePlane, SoftmaxRows,
          VariancesOf,   Normalize};
}

}  // namespace

}  // namespace npu::emulator

// NOLINTEND(modernize-use-using,bugprone-implicit-widening-of-multiplication-result)
