// SPDX-License-Identifier: Apache-2.0
/*!
 * \file simd_gemm.h
 * \brief Matrix products. A part of simd_loops.h.
 */
#ifndef EMULATOR_KERNELS_SIMD_GEMM_H_
#define EMULATOR_KERNELS_SIMD_GEMM_H_

// Offsets inside of a panel fit into int.
// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result)

// The registers hold a tile of this many rows and vectors of columns.
constexpr int kTileRows = SIMD_BYTES == 64 ? 8 : 4;
constexpr int kTileVectors = 2;
// Steps of the depth.
constexpr int kAhead = 64;

// The sums of a tile with `kFirst` rows in one panel and the others in the next one. Few
// rows make chains of dependent additions, so the depth is cut to `streams` sums.
template <typename Kind, int kRows, int kVectors, int kFirst = kRows>
struct GemmTile {
  using T = typename Kind::Vector;
  T sums[kRows][kVectors];

  __attribute__((always_inline)) GemmTile(int64_t depth, const float* a, const float* next,
                                          const float* b, int64_t ldb, const float* tile,
                                          bool accumulate) {
    constexpr int kStreams = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
    T sum[kStreams][kRows][kVectors] = {};
    if (accumulate) {
      SIMD_UNROLL
      for (int i = 0; i < kRows; ++i) {
        SIMD_UNROLL
        for (int j = 0; j < kVectors; ++j) {
          sum[0][i][j] = LoadAs<T>(tile + i * kPanelColumns + j * kLanes);
        }
      }
    }
    auto step = [&](T(&to)[kRows][kVectors]) __attribute__((always_inline)) {
      T right[kVectors];
      // The pieces of the left operand are too short for the processor to prefetch them itself.
      if constexpr (kRows >= kTileRows) __builtin_prefetch(a + kAhead * kPanelRows);
      if constexpr (kFirst < kRows) __builtin_prefetch(next + kAhead * kPanelRows);
      SIMD_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        right[j] = LoadAs<T>(b + j * kLanes);
      }
      SIMD_UNROLL
      for (int i = 0; i < kRows; ++i) {
        T left = Kind::template Spread<T>(i < kFirst ? a + i : next + (i - kFirst));
        SIMD_UNROLL
        for (int j = 0; j < kVectors; ++j) to[i][j] = Kind::MultiplyAdd(left, right[j], to[i][j]);
      }
      a += kPanelRows;
      next += kPanelRows;
      b += ldb;
    };
    int64_t k = 0;
    for (; k + kStreams <= depth; k += kStreams) {
      SIMD_UNROLL
      for (int s = 0; s < kStreams; ++s) step(sum[s]);
    }
    for (; k < depth; ++k) step(sum[0]);
    SIMD_UNROLL
    for (int i = 0; i < kRows; ++i) {
      SIMD_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = sum[0][i][j];
        SIMD_UNROLL
        for (int s = 1; s < kStreams; ++s) sums[i][j] = Kind::Add(sums[i][j], sum[s][i][j]);
      }
    }
  }

  __attribute__((always_inline)) void StoreTo(float* tile) const {
    SIMD_UNROLL
    for (int i = 0; i < kRows; ++i) {
      SIMD_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        StoreAs(sums[i][j], tile + i * kPanelColumns + j * kLanes);
      }
    }
  }
};

template <typename Kind, int kRows, int kVectors>
void GemmPanel(int64_t depth, const float* a, const float* b, int64_t ldb, float* tile,
               bool accumulate) {
  GemmTile<Kind, kRows, kVectors>(depth, a, a, b, ldb, tile, accumulate).StoreTo(tile);
}

// For columns that would fill little of a vector: the rows of a panel lie along the vector instead.
template <typename Kind, int kColumns>
void GemmNarrow(int64_t depth, const float* a, const float* b, int64_t ldb, float* tile,
                bool accumulate) {
  constexpr int kStreams = kColumns == 1 ? 4 : 2;
  using T = typename Kind::Rows;
  constexpr int kParts = kPanelRows * sizeof(float) / sizeof(T);
  T sum[kStreams][kColumns][kParts] = {};
  auto step = [&](T(&to)[kColumns][kParts]) __attribute__((always_inline)) {
    SIMD_UNROLL
    for (int p = 0; p < kParts; ++p) {
      T left = LoadAs<T>(a + p * (kPanelRows / kParts));
      SIMD_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        to[j][p] = Kind::MultiplyAdd(left, Kind::template Spread<T>(b + j), to[j][p]);
      }
    }
    a += kPanelRows;
    b += ldb;
  };
  int64_t k = 0;
  for (; k + kStreams <= depth; k += kStreams) {
    SIMD_UNROLL
    for (int s = 0; s < kStreams; ++s) step(sum[s]);
  }
  for (; k < depth; ++k) step(sum[0]);
  for (int j = 0; j < kColumns; ++j) {
    float totals[kPanelRows] = {};
    for (int i = 0; accumulate && i < kPanelRows; ++i) totals[i] = tile[i * kPanelColumns + j];
    for (int p = 0; p < kParts; ++p) {
      float* to = totals + p * (kPanelRows / kParts);
      T total = sum[0][j][p];
      for (int s = 1; s < kStreams; ++s) total = Kind::Add(total, sum[s][j][p]);
      StoreAs(accumulate ? Kind::Add(LoadAs<T>(to), total) : total, to);
    }
    for (int i = 0; i < kPanelRows; ++i) tile[i * kPanelColumns + j] = totals[i];
  }
}

// So few columns are not worth a vector.
constexpr int kFewColumns = 4;

template <typename Kind>
void GemmOf(int rows, int columns, int64_t depth, const float* a, const float* b, int64_t ldb,
            float* tile, bool accumulate) {
  using Function = void (*)(int64_t, const float*, const float*, int64_t, float*, bool);
  static constexpr Function kNarrow[kFewColumns] = {GemmNarrow<Kind, 1>, GemmNarrow<Kind, 2>,
                                                    GemmNarrow<Kind, 3>, GemmNarrow<Kind, 4>};
  static constexpr Function kTiles[][kTileVectors] = {
      {GemmPanel<Kind, 1, 1>, GemmPanel<Kind, 1, 2>},
      {GemmPanel<Kind, 2, 1>, GemmPanel<Kind, 2, 2>},
      {GemmPanel<Kind, 3, 1>, GemmPanel<Kind, 3, 2>},
      {GemmPanel<Kind, 4, 1>, GemmPanel<Kind, 4, 2>},
#if SIMD_BYTES == 64
      {GemmPanel<Kind, 5, 1>, GemmPanel<Kind, 5, 2>},
      {GemmPanel<Kind, 6, 1>, GemmPanel<Kind, 6, 2>},
      {GemmPanel<Kind, 7, 1>, GemmPanel<Kind, 7, 2>},
      {GemmPanel<Kind, 8, 1>, GemmPanel<Kind, 8, 2>},
#endif
  };
  if (columns <= kFewColumns && rows > columns) {
    return kNarrow[columns - 1](depth, a, b, ldb, tile, accumulate);
  }
#if SIMD_BYTES == 64
  // A vector, and columns that would fill little of the next one.
  if (columns > kLanes && columns <= kLanes + kFewColumns && rows == kTileRows) {
    GemmPanel<Kind, kTileRows, 1>(depth, a, b, ldb, tile, accumulate);
    return kNarrow[columns - kLanes - 1](depth, a, b + kLanes, ldb, tile + kLanes, accumulate);
  }
#endif
  int vectors = (columns + kLanes - 1) / kLanes;
#if SIMD_BYTES == 32
  // So few sums would not hide the latency of an addition.
  if (vectors == 1 && rows == 8) return GemmPanel<Kind, 8, 1>(depth, a, b, ldb, tile, accumulate);
  if (vectors == 3 && rows == 8) {
    GemmPanel<Kind, 4, 3>(depth, a, b, ldb, tile, accumulate);
    return GemmPanel<Kind, 4, 3>(depth, a + 4, b, ldb, tile + 4 * kPanelColumns, accumulate);
  }
#endif
  for (int j = 0; j < vectors; j += kTileVectors) {
    int wide = vectors - j < kTileVectors ? vectors - j : kTileVectors;
    for (int i = 0; i < rows; i += kTileRows) {
      int high = rows - i < kTileRows ? rows - i : kTileRows;
      kTiles[high - 1][wide - 1](depth, a + i, b + j * kLanes, ldb,
                                 tile + i * kPanelColumns + j * kLanes, accumulate);
    }
  }
}

#if SIMD_BYTES >= 32
// Rows from `kRow` on; sums are finished in registers.
template <int kVectors, int kRow, int kRows>
void FinishTile(const ProductTile& of, int column, bool finish) {
  constexpr int kFirst = Minimum(kRows, kPanelRows - kRow % kPanelRows);
  const float* panel = of.left + kRow / kPanelRows * of.left_pitch;
  const float* next = kFirst < kRows ? panel + of.left_pitch : panel;
  float* tile = of.tile + kRow * kPanelColumns + column;
  const GemmTile<Reals, kRows, kVectors, kFirst> result(of.depth, panel + kRow % kPanelRows, next,
                                                        of.right + column, of.right_stride, tile,
                                                        of.accumulate);
  if (!finish) return result.StoreTo(tile);
  const Finish& how = of.how;
  const V least = Splat(how.least), most = Splat(how.most);
  const float* first = how.first + kRow * how.first_row + column * how.first_step;
  const float* second = how.second + kRow * how.second_row + column * how.second_step;
  float* out = of.out + kRow * of.out_stride + column;
  SIMD_UNROLL
  for (int i = 0; i < kRows; ++i) {
    V one = Splat(first[0]), other = Splat(second[0]);
    SIMD_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      if (how.first_step != 0) one = Load(first + j * kLanes);
      if (how.second_step != 0) other = Load(second + j * kLanes);
      Store(Limit(result.sums[i][j] + one + other, least, most), out + j * kLanes);
    }
    first += how.first_row;
    second += how.second_row;
    out += of.out_stride;
  }
}

template <int kVectors, int kRow, int kRows, int... kOthers>
void FinishTiles(const ProductTile& of, int column, bool finish) {
  FinishTile<kVectors, kRow, kRows>(of, column, finish);
  if constexpr (sizeof...(kOthers) > 0) {
    FinishTiles<kVectors, kRow + kRows, kOthers...>(of, column, finish);
  }
}

// Tiles of two panels use the registers better than tiles of one.
template <int kVectors>
void FinishPanels(const ProductTile& of, int column, bool finish) {
#if SIMD_BYTES == 64
  if (of.rows == 3 * kPanelRows) return FinishTiles<kVectors, 0, 12, 12>(of, column, finish);
  if (of.rows == 2 * kPanelRows) return FinishTiles<kVectors, 0, 8, 8>(of, column, finish);
  return FinishTiles<kVectors, 0, 8>(of, column, finish);
#else
  if (of.rows == 3 * kPanelRows) return FinishTiles<kVectors, 0, 6, 6, 6, 6>(of, column, finish);
  if (of.rows == 2 * kPanelRows) return FinishTiles<kVectors, 0, 6, 6, 4>(of, column, finish);
  return FinishTiles<kVectors, 0, 4, 4>(of, column, finish);
#endif
}
#endif

void Gemm(const ProductTile& of) {
  int column = 0;
#if SIMD_BYTES >= 32
  const bool panels = of.rows % kPanelRows == 0;
  const bool whole = panels && of.columns % kLanes == 0;
#if SIMD_BYTES == 64
  if (whole || (panels && of.rows > kPanelRows && of.columns > kFewColumns)) {
    const bool two = of.columns > kLanes + kFewColumns;
    const bool finish = whole && of.out != nullptr;
    two ? FinishPanels<2>(of, 0, finish) : FinishPanels<1>(of, 0, finish);
    if (finish) return;
    column = two ? 2 * kLanes : kLanes;
  }
#else
  // What fills one vector more is for tiles of one panel.
  const int rest = of.columns % (2 * kLanes);
  if (panels && (rest <= kFewColumns || rest > kLanes)) {
    const int wide = rest > kLanes ? of.columns : of.columns - rest;
    const bool finish = whole && of.out != nullptr;
    for (; column < wide; column += 2 * kLanes) FinishPanels<2>(of, column, finish);
    if (finish) return;
  }
#endif
#endif
  for (int row = 0; row < of.rows && column < of.columns; row += kPanelRows) {
    GemmOf<Reals>(Minimum(of.rows - row, kPanelRows), of.columns - column, of.depth,
                  of.left + row / kPanelRows * of.left_pitch, of.right + column, of.right_stride,
                  of.tile + row * kPanelColumns + column, of.accumulate);
  }
  if (of.out != nullptr) {
    FinishRows(of.how, of.tile, of.rows, kPanelColumns, of.columns, of.out, of.out_stride);
  }
}

void GemmPairs(int rows, int columns, int64_t depth, const float* a, const float* b, int64_t ldb,
               float* tile, bool accumulate) {
  GemmOf<Pairs>(rows, columns, depth, a, b, ldb, tile, accumulate);
}

#if defined(__AVX512VNNI__)
void GemmQuads(int rows, int columns, int64_t depth, const float* a, const float* b, int64_t ldb,
               float* tile, bool accumulate) {
  GemmOf<Quads>(rows, columns, depth, a, b, ldb, tile, accumulate);
}
#endif

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)

#endif  // EMULATOR_KERNELS_SIMD_GEMM_H_
