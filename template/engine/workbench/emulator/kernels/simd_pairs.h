// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_pairs.h
 * \brief Elements of integers as pairs and quads; see simd.h. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_PAIRS_H_
#define EMULATOR_KERNELS_SIMD_PAIRS_H_

// Offsets inside of a panel fit into int.
// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result)

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

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

#endif  // EMULATOR_KERNELS_SIMD_PAIRS_H_
