// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_amx.cc
 * \brief Products of quads with AMX.
 *
 * A right panel has the order that tiles need: a row of a tile is a step of the depth. The left one
 * must have its rows in blocks; see QuadProducts::block.
 */
#include "simd.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)

#include <immintrin.h>

namespace npu::emulator {

namespace {

// Which register is what. Two sums for each half of the columns, as an instruction has to wait for
// the one before on the same sum; and the last steps of the depth are blocks of another size.
constexpr int kSums = 0, kLeft = 4, kRight = 5, kLeftRest = 6, kRightRest = 7;
constexpr int kTileColumns = 16;

struct Configuration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

Configuration ConfigurationOf(int rows, int rest) {
  Configuration made;
  auto set = [&](int tile, int tile_rows, int columns) {
    made.rows[tile] = static_cast<uint8_t>(tile_rows);
    made.row_bytes[tile] = static_cast<uint16_t>(columns * 4);
  };
  for (int tile = kSums; tile < kLeft; ++tile) set(tile, rows, kTileColumns);
  set(kLeft, rows, kAmxBlock);
  set(kRight, kAmxBlock, kTileColumns);
  if (rest > 0) {
    set(kLeftRest, rows, rest);
    set(kRightRest, rest, kTileColumns);
  }
  return made;
}

void Gemm(int rows, int columns, int64_t depth, const float* a, const float* b, int64_t ldb,
          float* tile, bool accumulate) {
  constexpr int64_t kSumBytes = kPanelColumns * sizeof(float);
  const bool two = columns > kTileColumns;
  const auto rest = static_cast<int>(depth % kAmxBlock);
  const int64_t right_bytes = ldb * static_cast<int64_t>(sizeof(float));
  alignas(64) const Configuration configuration = ConfigurationOf(rows, rest);
  _tile_loadconfig(&configuration);
  if (accumulate) {
    _tile_loadd(0, tile, kSumBytes);
    if (two) _tile_loadd(1, tile + kTileColumns, kSumBytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  _tile_zero(2);
  _tile_zero(3);
  constexpr int64_t kLeftFloats = int64_t{kPanelRows} * kAmxBlock;
  const int64_t right_floats = ldb * kAmxBlock;
  const int64_t blocks = depth / kAmxBlock;
  int64_t i = 0;
  for (; i + 2 <= blocks; i += 2, a += 2 * kLeftFloats, b += 2 * right_floats) {
    _tile_loadd(4, a, kAmxBlock * 4);
    _tile_loadd(5, b, right_bytes);
    _tile_dpbsud(0, 4, 5);
    if (two) {
      _tile_loadd(5, b + kTileColumns, right_bytes);
      _tile_dpbsud(1, 4, 5);
    }
    _tile_loadd(4, a + kLeftFloats, kAmxBlock * 4);
    _tile_loadd(5, b + right_floats, right_bytes);
    _tile_dpbsud(2, 4, 5);
    if (two) {
      _tile_loadd(5, b + right_floats + kTileColumns, right_bytes);
      _tile_dpbsud(3, 4, 5);
    }
  }
  if (i < blocks) {
    _tile_loadd(4, a, kAmxBlock * 4);
    _tile_loadd(5, b, right_bytes);
    _tile_dpbsud(0, 4, 5);
    if (two) {
      _tile_loadd(5, b + kTileColumns, right_bytes);
      _tile_dpbsud(1, 4, 5);
    }
    a += kLeftFloats;
    b += right_floats;
  }
  if (rest > 0) {
    _tile_loadd(6, a, rest * 4);
    _tile_loadd(7, b, right_bytes);
    _tile_dpbsud(2, 6, 7);
    if (two) {
      _tile_loadd(7, b + kTileColumns, right_bytes);
      _tile_dpbsud(3, 6, 7);
    }
  }
  _tile_stored(0, tile, kSumBytes);
  if (two) _tile_stored(1, tile + kTileColumns, kSumBytes);
  if (depth > kAmxBlock || rest > 0) {
    alignas(64) int32_t more[kPanelRows * kPanelColumns];
    _tile_stored(2, more, kSumBytes);
    if (two) _tile_stored(3, more + kTileColumns, kSumBytes);
    const int vectors = two ? 2 : 1;
    for (int row = 0; row < rows; ++row) {
      for (int v = 0; v < vectors; ++v) {
        const int at = row * kPanelColumns + v * kTileColumns;
        __m512i sum = _mm512_loadu_si512(tile + at);
        sum = _mm512_maskz_add_epi32(0xffff, sum, _mm512_load_si512(more + at));
        _mm512_storeu_si512(tile + at, sum);
      }
    }
  }
  _tile_release();
}

}  // namespace

decltype(QuadProducts::gemm) AmxGemm() { return Gemm; }

}  // namespace npu::emulator

#else  // Another architecture, or a compiler without AMX.

namespace npu::emulator {

decltype(QuadProducts::gemm) AmxGemm() { return nullptr; }

}  // namespace npu::emulator

#endif
