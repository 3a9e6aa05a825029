// SPDX-License-Identifier: Apache-2.0
/*!
 * \file products.cc
 * \brief Products of matrices.
 */
#include "isa_emulator/products.h"

#include <algorithm>
#include <cstring>

namespace npu::isa {
namespace {

constexpr int64_t kColumns = 16, kTileRows = 4;
/*! \brief Sums of so many products of bytes are exact in float32. */
constexpr int64_t kSteps = 512;

// The same loops for several instruction sets, one of which is taken when the library is loaded.
// None contracts multiplications with additions, so all have the same sums.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define NPU_ISA_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define NPU_ISA_WIDE
#endif

/*! \brief sums[r][c] += a[r][i] * weights[i][c]. */
NPU_ISA_WIDE void AddTile(const float* __restrict a, const float* __restrict weights, int64_t steps,
                          float* __restrict sums) {
  float tile[kTileRows][kColumns];
  std::memcpy(tile, sums, sizeof(tile));
  for (int64_t i = 0; i < steps; ++i) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      const float factor = a[r * kSteps + i];
      for (int64_t c = 0; c < kColumns; ++c) tile[r][c] += factor * weights[i * kColumns + c];
    }
  }
  std::memcpy(sums, tile, sizeof(tile));
}

template <typename T>
void ToFloat(const uint8_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = static_cast<float>(value);
  }
}

using Widen = void (*)(const uint8_t* from, int64_t count, float* to);

/*! \brief Integers wrap in `Sum`. */
template <typename Data, typename Weight, typename Wide, typename Sum>
void AddProducts(const uint8_t* row, const uint8_t* weights, uint8_t* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    Data a;
    Weight b;
    Sum sum;
    std::memcpy(&a, row + at * sizeof(Data), sizeof(Data));
    std::memcpy(&b, weights + at * sizeof(Weight), sizeof(Weight));
    std::memcpy(&sum, sums + at * sizeof(Sum), sizeof(Sum));
    sum += static_cast<Sum>(static_cast<Wide>(a) * static_cast<Wide>(b));
    std::memcpy(sums + at * sizeof(Sum), &sum, sizeof(Sum));
  }
}

Widen WidenOf(Name type) {
  switch (type) {
    case Name::kF32:
      return ToFloat<float>;
    case Name::kI8:
      return ToFloat<int8_t>;
    case Name::kU8:
      return ToFloat<uint8_t>;
    default:
      kit::Refuse("products are of f32, i8 and u8");
  }
}

}  // namespace

void MultiplyRows(State& s, const uint8_t* const* rows, int64_t count, Name type,
                  const Weights& weights, void* totals) {
  const bool is_real = type == Name::kF32;
  const int64_t size = is_real ? 4 : 1, weight_size = weights.type == Name::kF32 ? 4 : 1;
  const Widen widen = WidenOf(type), widen_weights = WidenOf(weights.type);
  const auto floats = [&s](int64_t number) {
    return reinterpret_cast<float*>(s.Borrow(static_cast<size_t>(number) * sizeof(float)));
  };
  float* const panel = floats(kSteps * kColumns);
  float* const tile = floats(kTileRows * kSteps);
  float* const sums = floats(kMostRows * kColumns);
  std::memset(tile, 0, static_cast<size_t>(kTileRows * kSteps) * sizeof(float));
  auto* const total = static_cast<uint8_t*>(totals);
  for (int64_t column = 0; column < weights.n; column += kColumns) {
    const int64_t columns = std::min(kColumns, weights.n - column);
    std::memset(panel, 0, static_cast<size_t>(kSteps * kColumns) * sizeof(float));
    for (int64_t step = 0; step < weights.k; step += kSteps) {
      const int64_t steps = std::min(kSteps, weights.k - step);
      for (int64_t i = 0; i < steps; ++i) {
        widen_weights(weights.data + (step + i) * weights.stride + column * weight_size, columns,
                      panel + i * kColumns);
      }
      if (step == 0 || !is_real) {
        std::memset(sums, 0, static_cast<size_t>(kMostRows * kColumns) * sizeof(float));
      }
      for (int64_t row = 0; row < count; row += kTileRows) {
        for (int64_t r = row; r < std::min(row + kTileRows, count); ++r) {
          widen(rows[r] + step * size, steps, tile + (r - row) * kSteps);
        }
        AddTile(tile, panel, steps, sums + row * kColumns);
      }
      for (int64_t row = 0; row < count; ++row) {
        uint8_t* const to = total + 4 * (row * weights.n + column);
        const float* const from = sums + row * kColumns;
        if (is_real) {
          std::memcpy(to, from, static_cast<size_t>(4 * columns));
          continue;
        }
        for (int64_t c = 0; c < columns; ++c) {
          uint32_t sum = 0;
          if (step > 0) std::memcpy(&sum, to + 4 * c, sizeof(sum));
          sum += static_cast<uint32_t>(static_cast<int32_t>(from[c]));
          std::memcpy(to + 4 * c, &sum, sizeof(sum));
        }
      }
    }
  }
}

ProductRow ProductRowOf(Name type) {
  switch (type) {
    case Name::kF32:
      return AddProducts<float, float, float, float>;
    case Name::kI8:
      return AddProducts<int8_t, int8_t, int32_t, uint32_t>;
    case Name::kU8:
      return AddProducts<uint8_t, int8_t, int32_t, uint32_t>;
    default:
      kit::Refuse("products are of f32, i8 and u8");
  }
}

}  // namespace npu::isa
