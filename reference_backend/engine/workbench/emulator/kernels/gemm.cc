// SPDX-License-Identifier: Apache-2.0
/*!
 * \file gemm.cc
 * \brief Matrix products.
 *
 * A task computes a block of the result. It goes along the depth in steps, so that a panel of the
 * right operand stays in the first-level cache, and the block's rows of the left one in the second.
 */
#include "gemm.h"

#include <algorithm>
#include <cstring>

#include "quads.h"

namespace npu::emulator {

namespace {

constexpr int64_t kRowBlock = 256;
// Short columns come in larger blocks.
constexpr int64_t kColumnBlock = 64;
constexpr int64_t kMostColumns = 1024;
constexpr int64_t kDepthBlock = 256;
// Panels of a small depth that stay in the first-level cache together. The rows of the result are
// then written in longer pieces, which costs less where it is not in a cache.
constexpr int64_t kMostJoinedFloats = 6144;
constexpr int64_t kMostJoined = 32;
constexpr int64_t kTile = int64_t{kMostRows} * kPanelColumns;
// With fewer rows than this, a panel is not used often enough to be worth copying.
constexpr int64_t kFewRows = 32;

// How many rows lie in panels at the same distance, from `row` on.
int64_t RowsOfPart(const Gemm& gemm, int64_t row, int64_t end) {
  if (gemm.left_part == 0) return end - row;
  return std::min(end - row, gemm.left_part - row % gemm.left_part);
}

}  // namespace

GemmPlan::GemmPlan(int64_t rows, int64_t columns, int64_t depth, int64_t products,
                   const GatheredColumns* gathered, bool copies, Values values, int64_t registers,
                   int threads, Scratch* scratch)
    : rows_(rows),
      columns_(columns),
      depth_(depth),
      gathered_(gathered == nullptr ? GatheredColumns() : *gathered),
      values_(values),
      row_block_(std::min(kRowBlock, CeilDivide(rows, kPanelRows) * kPanelRows)),
      // Steps of the same length: it decides how sums are rounded, so it depends on nothing else.
      depth_block_(CeilDivide(depth, std::max<int64_t>(CeilDivide(depth, kDepthBlock), 1))) {
  static_assert(kDepthBlock <= kMostSteps && kDepthBlock % kAmxBlock == 0);
  // Blocks of a left panel of quads are in one step.
  if (values == Values::kQuads) {
    depth_block_ = std::min(depth, CeilDivide(depth_block_, kAmxBlock) * kAmxBlock);
  }
  row_block_ = std::max<int64_t>(row_block_, kPanelRows);
  column_block_ = kColumnBlock * (kDepthBlock / std::max<int64_t>(depth_block_, 1));
  column_block_ =
      std::min({column_block_, kMostColumns,
                std::max<int64_t>(1, CeilDivide(columns, kPanelColumns)) * kPanelColumns});
  auto count = [&] {
    row_blocks_ = CeilDivide(rows, row_block_);
    column_blocks_ = CeilDivide(columns, column_block_);
    return row_blocks_ * column_blocks_ * products;
  };
  // Every thread needs several tasks, or the last one to finish keeps the others waiting.
  while (threads > 1 && count() < int64_t{3} * threads && row_block_ * column_block_ > 4 * kTile) {
    if (row_block_ >= column_block_) {
      row_block_ = CeilDivide(row_block_ / 2, kPanelRows) * kPanelRows;
    } else {
      column_block_ = CeilDivide(column_block_ / 2, kPanelColumns) * kPanelColumns;
    }
  }
  count();
  if (depth <= depth_block_) {
    joined_ = std::clamp<int64_t>(kMostJoinedFloats / (kPanelColumns * std::max<int64_t>(depth, 1)),
                                  1, kMostJoined);
  }
  panel_floats_ = copies ? depth_block_ * kPanelColumns : 0;
  tile_floats_ = depth > depth_block_ ? row_block_ * column_block_ : kTile;
  const int64_t panels = copies ? joined_ * panel_floats_ + kSlack : 0;
  registers_ = registers;
  worker_floats_ = panels + tile_floats_ + registers;
  workers_ = scratch->Take<float>(threads * worker_floats_);
}

GemmPlan::Panel GemmPlan::RightPanel(const Simd& simd, const Gemm& gemm, int64_t column, int64_t k,
                                     int64_t depth, float* packed) const {
  if (gemm.right != nullptr)
    return {gemm.right + column * depth_ + k * kPanelColumns, kPanelColumns};
  if (gemm.narrow != nullptr) {
    const bool quads = values_ == Values::kQuads;
    const int64_t pairs = CeilDivide(gemm.element_rows, 2);
    const int64_t first = quads ? 2 * k : k;
    const int64_t rows = quads ? std::min(2 * depth, pairs - first) : depth;
    auto join = [&](const uint8_t* from, int64_t row, int64_t count) {
      if (quads) {
        simd.quads->join_pairs(from, count, kPanelColumns, IsTurned(gemm.dtype, false),
                               packed + row / 2 * kPanelColumns);
      } else {
        simd.join(gemm.dtype, from, count * kPanelColumns, gemm.zero_point,
                  packed + row * kPanelColumns);
      }
    };
    auto* data = reinterpret_cast<const uint8_t*>(gemm.narrow);
    const int64_t begin = 2 * (column * pairs + first * kPanelColumns);
    if (!gemm.halved) {
      join(data + begin, 0, rows);
      return {packed, kPanelColumns};
    }
    constexpr int64_t kStep = 32;
    uint8_t widened[2 * kStep * kPanelColumns];
    for (int64_t row = 0; row < rows; row += kStep) {
      const int64_t count = std::min(kStep, rows - row);
      simd.widen(gemm.dtype, data + begin / 2 + row * kPanelColumns, 2 * count * kPanelColumns,
                 widened);
      join(widened, row, count);
    }
    return {packed, kPanelColumns};
  }
  if (gemm.weights != nullptr) {
    Weigh(*gemm.weights, column, k, depth, packed);
    return {packed, kPanelColumns};
  }
  int64_t columns = std::min<int64_t>(kPanelColumns, columns_ - column);
  if (gemm.elements != nullptr && values_ == Values::kQuads) {
    auto* data = reinterpret_cast<const uint8_t*>(gemm.elements) + column;
    for (int64_t i = 0; i < depth; ++i) {
      const uint8_t* rows[4];
      for (int64_t r = 0; r < 4; ++r) {
        int64_t row = 4 * (k + i) + r;
        rows[r] = row < gemm.element_rows ? data + row * columns_ : nullptr;
      }
      simd.quads->join(rows, columns, ZeroByte(gemm.zero_point), IsTurned(gemm.dtype, false),
                       packed + i * kPanelColumns);
    }
    return {packed, kPanelColumns};
  }
  if (gemm.elements != nullptr) {
    for (int64_t i = 0; i < depth; ++i) {
      const char* low = gemm.elements + 2 * (k + i) * columns_ + column;
      const char* high = 2 * (k + i) + 1 < gemm.element_rows ? low + columns_ : nullptr;
      simd.pair(gemm.dtype, low, high, columns, gemm.zero_point, packed + i * kPanelColumns);
    }
    return {packed, kPanelColumns};
  }
  if (gathered_.row_stride != 0 && rows_ <= kFewRows && columns == kPanelColumns) {
    return {gemm.data + k * gathered_.row_stride + column, gathered_.row_stride};
  }
  Segment segments[kPanelColumns];
  int count = 0;
  int64_t line = column / gathered_.width;
  int64_t x = column % gathered_.width;
  for (int64_t done = 0; done < columns; ++line, x = 0) {
    int64_t run = std::min(columns - done, gathered_.width - x);
    int64_t base = line / gathered_.height * gathered_.depth_stride +
                   line % gathered_.height * gathered_.height_stride + x;
    segments[count++] = {base, static_cast<int32_t>(done), static_cast<int32_t>(run)};
    done += run;
  }
  simd.gather(depth, gemm.offsets + k, count, segments, gathered_.exact, gemm.data, packed);
  return {packed, kPanelColumns};
}

void GemmPlan::Run(const Gemm& gemm, const TileStore& store, int64_t task, int worker) const {
  const Simd& simd = ActiveSimd();
  const bool quads = values_ == Values::kQuads;
  const bool reals = values_ == Values::kReals;
  auto multiply = quads ? simd.quads->For(depth_).gemm : simd.gemm_pairs;
  int64_t first_row = task % row_blocks_ * row_block_;
  int64_t first_column = task / row_blocks_ * column_block_;
  int64_t end_row = std::min(first_row + row_block_, rows_);
  int64_t end_column = std::min(first_column + column_block_, columns_);
  float* packed = workers_ + worker * worker_floats_;
  float* registers = workers_ + (worker + 1) * worker_floats_ - registers_;
  float* tiles = registers - tile_floats_;
  store.Begin(registers);
  // One row is read once: there is no need for a panel of real numbers.
  bool single = gemm.weights != nullptr && rows_ == 1;
  int32_t of_columns[kMostJoined][kPanelColumns];
  Panel panels[kMostJoined] = {};
  int64_t k = 0;
  do {
    int64_t depth = std::min(depth_block_, depth_ - k);
    bool last = k + depth == depth_;
    float* tile = tiles;
    // Panels of the right operand stay in the first-level cache while the left one passes.
    const int64_t joined = joined_ * kPanelColumns;
    for (int64_t first = first_column; first < end_column; first += joined) {
      const int64_t end = std::min(first + joined, end_column);
      for (int64_t column = first; column < end; column += kPanelColumns) {
        const int64_t i = (column - first) / kPanelColumns;
        if (single) continue;
        panels[i] = RightPanel(simd, gemm, column, k, depth, packed + i * panel_floats_);
        if (quads && gemm.left_zero != 0) {
          SumColumns(simd, depth, gemm.left_zero, panels[i].data, panels[i].stride, of_columns[i]);
        }
      }
      int64_t rows = 0;
      for (int64_t row = first_row; row < end_row; row += rows) {
        rows = std::min<int64_t>(kPanelRows, end_row - row);
        if (reals && !single) {
          const int64_t panels =
              std::min<int64_t>(simd.rows, RowsOfPart(gemm, row, end_row)) / kPanelRows;
          rows = std::max(rows, panels * kPanelRows);
        }
        const float* left = gemm.left + k * kPanelRows;
        if (gemm.left_part == 0) {
          left += row * depth_;
        } else {
          left += row / gemm.left_part * gemm.left_pitch + row % gemm.left_part * depth_;
        }
        for (int64_t column = first; column < end; column += kPanelColumns) {
          const int64_t i = (column - first) / kPanelColumns;
          const int64_t columns = std::min<int64_t>(kPanelColumns, end_column - column);
          bool stored = false;
          if (single) {
            MultiplyRow(*gemm.weights, column, k, depth, left, tile, k > 0);
          } else if (reals) {
            ProductTile product;
            product.rows = static_cast<int>(rows);
            product.columns = static_cast<int>(columns);
            product.depth = depth;
            product.left = left;
            product.left_pitch = kPanelRows * depth_;
            product.right = panels[i].data;
            product.right_stride = panels[i].stride;
            product.tile = tile;
            product.accumulate = k > 0;
            stored = last && store.Finishes(rows, gemm.out_row + row, column, &product);
            simd.gemm(product);
          } else {
            if (quads && (k == 0 || gemm.left_zero != 0)) {
              simd.quads->start(static_cast<int>(rows), k == 0 ? gemm.of_rows + row : nullptr,
                                gemm.left_zero != 0 ? of_columns[i] : nullptr, tile);
            }
            multiply(static_cast<int>(rows), static_cast<int>(columns), depth, left, panels[i].data,
                     panels[i].stride, tile, quads || k > 0);
          }
          if (last && !stored) {
            store.StoreTile(tile, rows, columns, gemm.out_row + row, column, registers);
          }
        }
        if (depth_ > depth_block_) {
          tile += CeilDivide(rows, kPanelRows) * kPanelRows * kPanelColumns;
        }
      }
    }
    k += depth;
  } while (k < depth_);
}

namespace {

/*! \brief Calls `run` for rows of a panel of weights that share scales, in order, with the rows,
 * how many there are, the zero points and the scales. */
template <typename Run>
void ForEachBlock(const Weights& weights, int64_t column, int64_t k, int64_t rows, const Run& run) {
  const int64_t count = std::min<int64_t>(kPanelColumns, weights.columns - column);
  float zeros[kPanelColumns] = {};
  float scales[kPanelColumns] = {};
  std::fill_n(zeros, count, weights.zero_point);
  std::fill_n(scales, count, 1.0f);
  for (const int64_t end = k + rows; k < end;) {
    int64_t next = end;
    if (weights.block != 0) {
      const int64_t block = k / weights.block;
      const int64_t first = block * weights.columns + column;
      std::copy_n(weights.scales + first, count, scales);
      if (weights.zero_points != nullptr) {
        ActiveSimd().load(weights.dtype, static_cast<const char*>(weights.zero_points) + first,
                          count, zeros);
      }
      next = std::min(end, (block + 1) * weights.block);
    }
    const int64_t elements = column * weights.depth + k * kPanelColumns;
    run(weights.panels + elements * weights.bits / 8, next - k, zeros, scales);
    k = next;
  }
}

}  // namespace

void Weigh(const Weights& weights, int64_t column, int64_t k, int64_t rows, float* out) {
  auto weigh = [&](const char* data, int64_t count, const float* zeros, const float* scales) {
    ActiveSimd().weigh(weights.dtype, weights.bits, data, count, zeros, scales, out);
    out += count * kPanelColumns;
  };
  ForEachBlock(weights, column, k, rows, weigh);
}

void MultiplyRow(const Weights& weights, int64_t column, int64_t k, int64_t rows, const float* a,
                 float* tile, bool accumulate) {
  if (!accumulate) std::fill_n(tile, kPanelColumns, 0.0f);
  auto multiply = [&](const char* data, int64_t count, const float* zeros, const float* scales) {
    ActiveSimd().weigh_row(weights.dtype, weights.bits, data, count, zeros, scales, a, tile);
    a += count * kPanelRows;
  };
  ForEachBlock(weights, column, k, rows, multiply);
}

int64_t PanelFloats(int64_t lines, int64_t depth, int width) {
  return CeilDivide(lines, width) * width * depth;
}

PanelSource SourceOf(const TensorView& tensor, bool transposed, bool left, int32_t zero_point) {
  int64_t rows = tensor.dims[tensor.rank - 2];
  int64_t columns = tensor.dims[tensor.rank - 1];
  bool lines_first = left != transposed;
  return {tensor.data, tensor.dtype, lines_first ? rows : columns, lines_first ? columns : rows,
          lines_first, zero_point};
}

PanelSource MatrixOf(const PanelSource& source, int64_t index) {
  PanelSource matrix = source;
  size_t bytes = static_cast<size_t>(source.lines * source.depth) * ElementSize(source.dtype);
  if (source.data != nullptr) {
    matrix.data = static_cast<const char*>(source.data) + static_cast<size_t>(index) * bytes;
  }
  return matrix;
}

namespace {

void PackPanel(const PanelSource& source, int width, int64_t index, float* panel) {
  const Simd& simd = ActiveSimd();
  const char* data = static_cast<const char*>(source.data);
  int64_t element = static_cast<int64_t>(ElementSize(source.dtype));
  bool plain = source.dtype == NPU_FLOAT32;
  int64_t first = index * width;
  int64_t lines = std::min<int64_t>(width, source.lines - first);
  if (lines < width) std::fill_n(panel, width * source.depth, 0.0f);
  if (!source.lines_dense) {
    for (int64_t k = 0; k < source.depth; ++k) {
      const char* from = data + (k * source.lines + first) * element;
      float* to = panel + k * width;
      // A copy of fixed size is a few instructions.
      if (plain && lines == kPanelRows) {
        std::memcpy(to, from, kPanelRows * sizeof(float));
      } else if (plain && lines == kPanelColumns) {
        std::memcpy(to, from, kPanelColumns * sizeof(float));
      } else {
        simd.load(source.dtype, from, lines, to);
      }
    }
  } else if (plain) {
    const float* from = reinterpret_cast<const float*>(data) + first * source.depth;
    simd.transpose(lines, source.depth, from, source.depth, panel, width);
  } else {
    constexpr int64_t kStep = 128;
    float converted[kPanelColumns * kStep];
    for (int64_t k = 0; k < source.depth; k += kStep) {
      int64_t depth = std::min(kStep, source.depth - k);
      for (int64_t line = 0; line < lines; ++line) {
        const char* from = data + ((first + line) * source.depth + k) * element;
        simd.load(source.dtype, from, depth, converted + line * kStep);
      }
      simd.transpose(lines, depth, converted, kStep, panel + k * width, width);
    }
  }
}

}  // namespace

void PackPanels(const PanelSource& source, int64_t count, int width, const KernelContext& context,
                float* panels) {
  auto pack = [&](const PanelSource& matrix, int64_t index, int64_t panel) {
    PackPanel(matrix, width, index, panels + panel * width * source.depth);
  };
  ForEachPanel(source, count, width, context, pack);
}

}  // namespace npu::emulator
