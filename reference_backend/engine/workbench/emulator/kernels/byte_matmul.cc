// SPDX-License-Identifier: Apache-2.0
/*!
 * \file byte_matmul.cc
 * \brief MatMul of elements of 8 bits; see byte_products.h.
 */
#include <algorithm>

#include "byte_products.h"
#include "gemm.h"
#include "integer_sums.h"
#include "quads.h"

namespace npu::emulator {

namespace {

void PackPairs(const Simd& simd, const PanelSource& matrix, int width, int64_t index,
               float* panel) {
  auto* data = static_cast<const char*>(matrix.data);
  int64_t pairs = PairsOf(matrix.depth);
  int64_t first = index * width;
  int64_t lines = std::min<int64_t>(width, matrix.lines - first);
  if (lines < width) std::fill_n(panel, width * pairs, 0.0f);
  if (!matrix.lines_dense) {
    for (int64_t k = 0; k < pairs; ++k) {
      const char* low = data + 2 * k * matrix.lines + first;
      const char* high = 2 * k + 1 < matrix.depth ? low + matrix.lines : nullptr;
      simd.pair(matrix.dtype, low, high, lines, matrix.zero_point, panel + k * width);
    }
    return;
  }
  constexpr int64_t kStep = 128;
  float joined[kPanelColumns * kStep];
  for (int64_t k = 0; k < pairs; k += kStep) {
    int64_t count = std::min(kStep, pairs - k);
    int64_t whole = std::min(count, matrix.depth / 2 - k);
    for (int64_t line = 0; line < lines; ++line) {
      const char* from = data + (first + line) * matrix.depth + 2 * k;
      float* to = joined + line * kStep;
      simd.join(matrix.dtype, from, whole, matrix.zero_point, to);
      if (whole == count) continue;
      simd.pair(matrix.dtype, from + 2 * whole, nullptr, 1, matrix.zero_point, to + whole);
    }
    simd.transpose(lines, count, joined, kStep, panel + k * width, width);
  }
}

void Pack(const PanelSource& source, int64_t count, int width, const KernelContext& context,
          float* panels) {
  const int64_t floats = width * PairsOf(source.depth);
  auto pack = [&](const PanelSource& matrix, int64_t index, int64_t panel) {
    PackPairs(ActiveSimd(), matrix, width, index, panels + panel * floats);
  };
  ForEachPanel(source, count, width, context, pack);
}

// The same for a panel of quads, padded with the zero point.
void PackQuadPanel(const Simd& simd, const PanelSource& matrix, bool left, int64_t index,
                   float* panel) {
  const int width = left ? kPanelRows : kPanelColumns;
  const bool turn = IsTurned(matrix.dtype, left);
  const uint8_t missing = ZeroByte(matrix.zero_point);
  const int64_t quads = CeilDivide(matrix.depth, 4);
  const int64_t first = index * width;
  const int64_t lines = std::min<int64_t>(width, matrix.lines - first);
  auto* data = static_cast<const uint8_t*>(matrix.data);
  if (lines < width) std::fill_n(panel, width * quads, 0.0f);
  if (!matrix.lines_dense) {
    for (int64_t k = 0; k < quads; ++k) {
      const uint8_t* rows[4];
      for (int64_t r = 0; r < 4; ++r) {
        bool inside = 4 * k + r < matrix.depth;
        rows[r] = inside ? data + (4 * k + r) * matrix.lines + first : nullptr;
      }
      simd.quads->join(rows, lines, missing, turn, panel + k * width);
    }
    return;
  }
  constexpr int64_t kStep = 128;
  uint8_t bytes[kStep * kPanelColumns * 4];
  for (int64_t k = 0; k < quads; k += kStep) {
    const int64_t count = std::min(kStep, quads - k);
    const int64_t whole = std::min(4 * count, matrix.depth - 4 * k);
    for (int64_t line = 0; line < lines; ++line) {
      uint8_t* to = bytes + line * 4 * kStep;
      const uint8_t* from = data + (first + line) * matrix.depth + 4 * k;
      const uint8_t sign = turn ? 0x80 : 0;
      for (int64_t i = 0; i < whole; ++i) to[i] = from[i] ^ sign;
      for (int64_t i = whole; i < 4 * count; ++i) to[i] = missing ^ sign;
    }
    simd.transpose(lines, count, reinterpret_cast<const float*>(bytes), kStep, panel + k * width,
                   width);
  }
}

void PackQuads(const PanelSource& source, int64_t count, bool left, const KernelContext& context,
               float* panels, int32_t right_zero = 0, int32_t* of_rows = nullptr) {
  const Simd& simd = ActiveSimd();
  const int width = left ? kPanelRows : kPanelColumns;
  const int64_t quads = CeilDivide(source.depth, 4);
  const int32_t left_zero = ZeroOfQuads(source.dtype, source.zero_point, true);
  auto pack = [&](const PanelSource& matrix, int64_t index, int64_t panel) {
    float* to = panels + panel * width * quads;
    PackQuadPanel(simd, matrix, left, index, to);
    if (left) FinishLeftPanel(simd, quads, left_zero, right_zero, to, of_rows + panel * kPanelRows);
  };
  ForEachPanel(source, count, width, context, pack);
}

// With few rows, summing columns would take as long as the product.
bool HasQuads(int64_t rows, npu_dtype left, int32_t left_zero_point) {
  constexpr int64_t kFewRows = 8;
  return ActiveSimd().quads != nullptr &&
         (rows >= kFewRows || ZeroOfQuads(left, left_zero_point, true) == 0);
}

// The choice of the algorithm, and its memory.
struct MatMulPlan {
  MatMulPlan(const MatMulArgs& args, int threads, Scratch scratch)
      : a(SourceOf(args.a, args.transpose_a, true, args.a_zero_point)),
        b(SourceOf(args.b, args.transpose_b, false, args.b_zero_point)),
        batch(BatchCount(args.out)),
        a_count(BatchCount(args.a)),
        b_count(BatchCount(args.b)),
        collapsed(b_count == 1 && a_count == batch && batch > 1 && a.lines_dense) {
    if (collapsed) {
      a.lines *= batch;
      batch = a_count = 1;
    }
    values = HasQuads(a.lines, a.dtype, a.zero_point) ? Values::kQuads : Values::kPairs;
    int64_t steps = values == Values::kQuads ? CeilDivide(a.depth, 4) : PairsOf(a.depth);
    a_floats = PanelFloats(a.lines, steps, kPanelRows);
    b_floats = PanelFloats(b.lines, steps, kPanelColumns);
    b_bytes = 2 * PanelFloats(b.lines, PairsOf(a.depth), kPanelColumns);
    bool packed = args.packed_b != nullptr;
    a_panels = scratch.Take<float>(a_count * a_floats);
    if (!packed) b_panels = scratch.Take<float>(b_count * b_floats);
    a_panel_rows = CeilDivide(a.lines, kPanelRows) * kPanelRows;
    if (values == Values::kQuads) of_rows = scratch.Take<int32_t>(a_count * a_panel_rows);
    gemm = GemmPlan(a.lines, b.lines, steps, batch, nullptr, packed, values,
                    SumStore::Registers(args.epilogue), threads, &scratch);
    parameters = scratch.Take<int32_t>(SumStore::ParameterFloats(b.lines));
    bytes = scratch.used();
  }

  PanelSource a, b;
  int64_t batch, a_count, b_count;
  // One product with the rows of all matrices.
  bool collapsed;
  Values values = Values::kPairs;
  int64_t a_floats = 0, b_floats = 0, a_panel_rows = 0;
  // For a matrix that is packed as 8-bit elements.
  int64_t b_bytes = 0;
  float* a_panels = nullptr;
  float* b_panels = nullptr;
  // The addends of rows for a product of quads.
  int32_t* of_rows = nullptr;
  int32_t* parameters = nullptr;
  GemmPlan gemm;
  size_t bytes = 0;
};

}  // namespace

size_t ScratchOf(const MatMulArgs& args, int threads) {
  return MatMulPlan(args, threads, Scratch(nullptr)).bytes;
}

void Multiply(const MatMulArgs& args, const KernelContext& context) {
  MatMulPlan plan(args, Threads(context), Scratch(context.scratch));
  SumStore store(args.epilogue, args.out, plan.b.lines,
                 SumsOf(FactorsOf(args.a.dtype, args.a_zero_point),
                        FactorsOf(args.b.dtype, args.b_zero_point), plan.a.depth),
                 plan.b.lines, true, plan.parameters);
  const bool quads = plan.values == Values::kQuads;
  if (quads) {
    PackQuads(plan.a, plan.a_count, true, context, plan.a_panels,
              ZeroOfQuads(plan.b.dtype, plan.b.zero_point, false), plan.of_rows);
    if (args.packed_b == nullptr) PackQuads(plan.b, plan.b_count, false, context, plan.b_panels);
  } else {
    Pack(plan.a, plan.a_count, kPanelRows, context, plan.a_panels);
    if (args.packed_b == nullptr) Pack(plan.b, plan.b_count, kPanelColumns, context, plan.b_panels);
  }
  auto run = [&](Gemm& gemm, int64_t a_index, int64_t b_index, int64_t task, int worker) {
    if (args.packed_b == nullptr) {
      gemm.right = plan.b_panels + b_index * plan.b_floats;
    } else {
      const int64_t begin = b_index * plan.b_bytes / (args.b_halved ? 2 : 1);
      gemm.narrow = static_cast<const char*>(args.packed_b) + begin;
      gemm.halved = args.b_halved;
      gemm.element_rows = plan.b.depth;
      gemm.dtype = args.b.dtype;
      gemm.zero_point = args.b_zero_point;
    }
    if (quads) {
      gemm.left_zero = ZeroOfQuads(plan.a.dtype, plan.a.zero_point, true);
      gemm.of_rows = plan.of_rows + a_index * plan.a_panel_rows;
    }
    plan.gemm.Run(gemm, store, task, worker);
  };
  ForEachProduct(args, plan, context, run);
}

size_t PackedByteMatMulBBytes(const TensorView& b, bool transpose_b) {
  PanelSource matrix = SourceOf(b, transpose_b, false);
  return static_cast<size_t>(2 * BatchCount(b) *
                             PanelFloats(matrix.lines, PairsOf(matrix.depth), kPanelColumns));
}

void PackByteMatMulB(const TensorView& b, bool transpose_b, void* packed) {
  const PanelSource matrix = SourceOf(b, transpose_b, false);
  const char* data = static_cast<const char*>(matrix.data);
  char* out = static_cast<char*>(packed);
  for (int64_t i = 0; i < BatchCount(b); ++i) {
    for (int64_t first = 0; first < matrix.lines; first += kPanelColumns) {
      for (int64_t pair = 0; pair < PairsOf(matrix.depth); ++pair) {
        for (int64_t j = 0; j < int64_t{2} * kPanelColumns; ++j) {
          int64_t line = first + j / 2;
          int64_t k = 2 * pair + j % 2;
          bool inside = line < matrix.lines && k < matrix.depth;
          int64_t at = matrix.lines_dense ? line * matrix.depth + k : k * matrix.lines + line;
          *out++ = inside ? data[at] : 0;
        }
      }
    }
    data += matrix.lines * matrix.depth;
  }
}

}  // namespace npu::emulator
