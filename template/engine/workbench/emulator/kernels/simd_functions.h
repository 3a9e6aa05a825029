// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_functions.h
 * \brief Exponentials and their relatives. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_FUNCTIONS_H_
#define EMULATOR_KERNELS_SIMD_FUNCTIONS_H_

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

#endif  // EMULATOR_KERNELS_SIMD_FUNCTIONS_H_
