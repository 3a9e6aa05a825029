// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_rescale.h
 * \brief Sums of integers to integers of 8 bits. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_RESCALE_H_
#define EMULATOR_KERNELS_SIMD_RESCALE_H_

// Vector types need typedef, for their attributes.
// NOLINTBEGIN(modernize-use-using)

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

// NOLINTEND(modernize-use-using)

#endif  // EMULATOR_KERNELS_SIMD_RESCALE_H_
