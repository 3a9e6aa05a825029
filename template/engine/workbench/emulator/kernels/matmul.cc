// SPDX-License-Identifier: Apache-2.0
/*!
 * \file matmul.cc
 * \brief Matmul.
 */
#include <algorithm>

#include "evaluator.h"
#include "gemm.h"
#include "internal.h"
#include "products.h"

namespace npu::emulator {

namespace {

// The choice of the algorithm, and its memory.
struct Plan {
  Plan(const MatMulArgs& args, int threads, Scratch scratch)
      : a(SourceOf(args.a, args.transpose_a, true)),
        b(SourceOf(args.b, args.transpose_b, false)),
        batch(BatchCount(args.out)),
        a_count(BatchCount(args.a)),
        b_count(BatchCount(args.b)),
        weight_bits(WeightBits(args.a.dtype, args.b.dtype, args.b_bits)),
        dots(a.lines <= 4 && b.lines_dense && a.lines_dense && args.packed_b == nullptr &&
             a.dtype == NPU_FLOAT32 && b.dtype == NPU_FLOAT32),
        gathered(!dots && args.packed_b == nullptr && !b.lines_dense && b.dtype == NPU_FLOAT32),
        collapsed(b_count == 1 && a_count == batch && batch > 1 && a.lines_dense && !dots) {
    if (collapsed) {
      a.lines *= batch;
      batch = a_count = 1;
    }
    columns.width = std::max<int64_t>(b.lines, 1);
    columns.row_stride = b.lines;
    columns.exact = true;
    a_floats = PanelFloats(a.lines, a.depth, kPanelRows);
    b_floats = PanelFloats(b.lines, b.depth, kPanelColumns);
    weight_bytes = b_floats * weight_bits / 8;
    if (!dots) a_panels = scratch.Take<float>(a_count * a_floats);
    if (gathered) offsets = scratch.Take<int64_t>(b.depth);
    if (weight_bits != 0 && args.packed_b == nullptr) {
      weight_panels = scratch.Take<char>(b_count * weight_bytes);
    } else if (!dots && !gathered && args.packed_b == nullptr) {
      b_panels = scratch.Take<float>(b_count * b_floats);
    }
    if (dots) {
      worker_floats = int64_t{kPanelRows} * kPanelColumns + Evaluator::Registers(args.epilogue);
      workers = scratch.Take<float>(threads * worker_floats);
      bytes = scratch.used();
      return;
    }
    gemm = GemmPlan(a.lines, b.lines, a.depth, batch, gathered ? &columns : nullptr,
                    gathered || weight_bits != 0, Values::kReals,
                    Evaluator::Registers(args.epilogue), threads, &scratch);
    bytes = scratch.used();
  }

  PanelSource a, b;
  int64_t batch, a_count, b_count;
  int32_t weight_bits;
  // Few rows by rows of `b`: not worth packing.
  bool dots;
  // `b` is used in place, or packed panel by panel.
  bool gathered;
  // One product with the rows of all matrices.
  bool collapsed;
  GatheredColumns columns;
  int64_t a_floats = 0, b_floats = 0, weight_bytes = 0, worker_floats = 0;
  float* a_panels = nullptr;
  float* b_panels = nullptr;
  char* weight_panels = nullptr;
  float* workers = nullptr;
  int64_t* offsets = nullptr;
  GemmPlan gemm;
  size_t bytes = 0;
};

// A panel of a matrix; rows are zero-padded to 32 columns.
void PackWeights(const PanelSource& source, int32_t bits, int64_t panel, uint8_t* to) {
  const auto* data = static_cast<const uint8_t*>(source.data);
  constexpr int64_t kHalf = kPanelColumns / 2;
  auto number = [&](int64_t column, int64_t k) -> uint8_t {
    const int64_t line = panel * kPanelColumns + column;
    if (line >= source.lines) return 0;
    return data[source.lines_dense ? line * source.depth + k : k * source.lines + line];
  };
  for (int64_t k = 0; k < source.depth; ++k) {
    if (bits == 8) {
      for (int64_t c = 0; c < kPanelColumns; ++c) *to++ = number(c, k);
    } else {
      for (int64_t c = 0; c < kHalf; ++c) {
        *to++ = static_cast<uint8_t>((number(c, k) & 15) | number(c + kHalf, k) << 4);
      }
    }
  }
}

void PackWeights(const PanelSource& source, int64_t count, int32_t bits,
                 const KernelContext& context, void* packed) {
  const int64_t bytes = kPanelColumns * source.depth * bits / 8;
  auto pack = [&](const PanelSource& matrix, int64_t index, int64_t panel) {
    PackWeights(matrix, bits, index, static_cast<uint8_t*>(packed) + panel * bytes);
  };
  ForEachPanel(source, count, kPanelColumns, context, pack);
}

void Dots(const MatMulArgs& args, const Plan& plan, const Evaluator& evaluator,
          const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  int64_t rows = plan.a.lines;
  int64_t depth = plan.a.depth;
  int64_t panels = CeilDivide(plan.b.lines, kPanelColumns);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* tile = plan.workers + worker * plan.worker_floats;
    float* registers = tile + int64_t{kPanelRows} * kPanelColumns;
    evaluator.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      int64_t batch = i / panels;
      int64_t column = i % panels * kPanelColumns;
      int64_t columns = std::min<int64_t>(kPanelColumns, plan.b.lines - column);
      const float* a =
          static_cast<const float*>(MatrixOf(plan.a, BatchIndex(args.a, args.out, batch)).data);
      const float* b =
          static_cast<const float*>(MatrixOf(plan.b, BatchIndex(args.b, args.out, batch)).data);
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t r = 0; r < rows; ++r) {
          tile[r * kPanelColumns + c] = simd.dot(depth, a + r * depth, b + (column + c) * depth);
        }
      }
      evaluator.StoreTile(tile, rows, columns, batch * rows, column, registers);
    }
  };
  Parallel(context, plan.batch * panels, Grain(rows * depth * kPanelColumns), run);
}

}  // namespace

size_t PackedMatMulBBytes(const TensorView& b, bool transpose_b, int32_t weight_bits) {
  if (IsInteger(b.dtype) && weight_bits == 0) return PackedIntegerMatMulBBytes(b, transpose_b);
  PanelSource source = SourceOf(b, transpose_b, false);
  int64_t floats = BatchCount(b) * PanelFloats(source.lines, source.depth, kPanelColumns);
  if (weight_bits != 0) return static_cast<size_t>(floats * weight_bits / 8);
  return static_cast<size_t>(floats) * sizeof(float);
}

void PackMatMulB(const TensorView& b, bool transpose_b, int32_t weight_bits, void* packed) {
  const PanelSource source = SourceOf(b, transpose_b, false);
  if (weight_bits != 0) {
    return PackWeights(source, BatchCount(b), weight_bits, KernelContext(), packed);
  }
  if (IsInteger(b.dtype)) return PackIntegerMatMulB(b, transpose_b, packed);
  PackPanels(source, BatchCount(b), kPanelColumns, KernelContext(), static_cast<float*>(packed));
}

size_t ScratchBytes(const MatMulArgs& args, int threads) {
  if (IsInteger(args.a.dtype)) return IntegerMatMulScratch(args, threads);
  return Plan(args, threads, Scratch(nullptr)).bytes;
}

void Execute(const MatMulArgs& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  if (IsInteger(args.a.dtype)) return IntegerMatMul(args, context);
  Plan plan(args, Threads(context), Scratch(context.scratch));
  Evaluator evaluator(args.epilogue, args.out, plan.b.lines);
  if (plan.dots) return Dots(args, plan, evaluator, context);
  PackPanels(plan.a, plan.a_count, kPanelRows, context, plan.a_panels);
  if (plan.gathered) {
    for (int64_t k = 0; k < plan.b.depth; ++k) plan.offsets[k] = k * plan.b.lines;
  } else if (plan.weight_bits != 0) {
    if (args.packed_b == nullptr) {
      PackWeights(plan.b, plan.b_count, plan.weight_bits, context, plan.weight_panels);
    }
  } else if (args.packed_b == nullptr) {
    PackPanels(plan.b, plan.b_count, kPanelColumns, context, plan.b_panels);
  }
  const float* right = static_cast<const float*>(args.packed_b);
  if (right == nullptr) right = plan.b_panels;
  Weights weights;
  if (plan.weight_bits != 0) {
    weights.panels = static_cast<const char*>(args.packed_b);
    if (weights.panels == nullptr) weights.panels = plan.weight_panels;
    weights.dtype = args.b.dtype;
    weights.bits = plan.weight_bits;
    weights.depth = plan.b.depth;
    weights.columns = plan.b.lines;
    weights.zero_point = static_cast<float>(args.b_zero_point);
    weights.block = args.b_block;
    weights.scales = static_cast<const float*>(args.b_scales.data);
    weights.zero_points = args.b_zero_points.data;
  }
  auto run = [&](Gemm& gemm, int64_t, int64_t b_index, int64_t task, int worker) {
    Weights matrix = weights;
    if (plan.gathered) {
      gemm.data = static_cast<const float*>(MatrixOf(plan.b, b_index).data);
      gemm.offsets = plan.offsets;
    } else if (plan.weight_bits != 0) {
      matrix.panels += b_index * plan.weight_bytes;
      gemm.weights = &matrix;
    } else {
      gemm.right = right + b_index * plan.b_floats;
    }
    plan.gemm.Run(gemm, evaluator, task, worker);
  };
  ForEachProduct(args, plan, context, run);
}

}  // namespace npu::emulator
