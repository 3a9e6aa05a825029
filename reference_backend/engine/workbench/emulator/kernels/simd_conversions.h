// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_conversions.h
 * \brief Elements of all types to float32 or int32, and back. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_CONVERSIONS_H_
#define EMULATOR_KERNELS_SIMD_CONVERSIONS_H_

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

#endif  // EMULATOR_KERNELS_SIMD_CONVERSIONS_H_
