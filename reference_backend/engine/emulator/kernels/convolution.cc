// SPDX-License-Identifier: Apache-2.0
/*!
 * \file convolution.cc
 * \brief Convolution: a matrix product whose right operand is gathered from planes of the data, or
 *        sums over windows where each channel is on its own.
 */
#include <algorithm>

#include "evaluator.h"
#include "gemm.h"
#include "internal.h"
#include "products.h"
#include "windows.h"

namespace npu::emulator {

namespace {

// Groups of one input channel and few outputs. Their weights are packed as they are.
bool IsDepthwise(const TensorView& weight, int64_t groups) {
  return groups > 1 && weight.dims[1] == 1 && weight.dims[0] <= 4 * groups &&
         ElementCount(weight) > 0;
}

PanelSource WeightOfGroup(const TensorView& weight, int64_t groups, int64_t group) {
  int64_t depth = 1;
  for (int d = 1; d < weight.rank; ++d) depth *= weight.dims[d];
  int64_t lines = weight.dims[0] / groups;
  size_t bytes = static_cast<size_t>(group * lines * depth) * ElementSize(weight.dtype);
  const char* data = static_cast<const char*>(weight.data);
  return {data == nullptr ? nullptr : data + bytes, weight.dtype, lines, depth, true};
}

int64_t WeightFloats(const TensorView& weight, int64_t groups) {
  if (IsDepthwise(weight, groups)) return ElementCount(weight);
  PanelSource source = WeightOfGroup(weight, groups, 0);
  return groups * PanelFloats(source.lines, source.depth, kPanelRows);
}

void PackWeight(const TensorView& weight, int64_t groups, const KernelContext& context,
                float* packed) {
  if (IsDepthwise(weight, groups)) {
    ActiveSimd().load(weight.dtype, weight.data, ElementCount(weight), packed);
    return;
  }
  PanelSource source = WeightOfGroup(weight, groups, 0);
  int64_t panels = CeilDivide(source.lines, kPanelRows);
  int64_t floats = PanelFloats(source.lines, source.depth, kPanelRows);
  auto pack = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t group = i / panels;
      PackPanels(WeightOfGroup(weight, groups, group), kPanelRows, i % panels, i % panels + 1,
                 packed + group * floats);
    }
  };
  Parallel(context, groups * panels, Grain(source.depth * kPanelRows), pack);
}

// What is computed how, and with which memory.
struct Plan {
  Plan(const ConvolutionArgs& args, int threads, Scratch scratch)
      : windows(args.data, args.out, args.spatial_rank, args.weight.dims + 2, args.strides,
                args.dilations, args.pads_begin),
        depthwise(IsDepthwise(args.weight, args.groups)),
        channels(args.data.dims[1]),
        outputs(args.out.dims[1]),
        depth(ElementCount(args.weight) / args.weight.dims[0]) {
    if (args.packed_weight == nullptr) {
      weight = scratch.Take<float>(WeightFloats(args.weight, args.groups));
    }
    if (depthwise) {
      offsets = scratch.Take<int64_t>(windows.taps);
      line_floats = WholeLines(windows.in[2]);
      plane_floats = WholeLines(windows.plane_size + kSlack);
      worker_floats =
          plane_floats + line_floats + windows.BufferFloats() + Evaluator::Registers(args.epilogue);
      workers = scratch.Take<float>(threads * worker_floats);
    } else {
      offsets = scratch.Take<int64_t>(std::max(depth, windows.taps));
      plain = windows.Trivial();
      if (!plain) {
        planes = scratch.Take<float>(channels * windows.plane_size + kSlack);
        line_floats = WholeLines(windows.in[2]);
        workers = scratch.Take<float>(threads * line_floats);
      }
      GatheredColumns columns = windows.Columns();
      columns.exact = plain;
      gemm = GemmPlan(outputs / args.groups, windows.out_size, depth, args.groups, &columns, true,
                      false, Evaluator::Registers(args.epilogue), threads, &scratch);
    }
    bytes = scratch.used();
  }

  Windows windows;
  bool depthwise;
  // The data is used as it is.
  bool plain = false;
  int64_t channels, outputs, depth;
  int64_t plane_floats = 0, line_floats = 0, worker_floats = 0;
  float* weight = nullptr;
  int64_t* offsets = nullptr;
  float* planes = nullptr;
  float* workers = nullptr;
  GemmPlan gemm;
  size_t bytes = 0;
};

const char* Channel(const ConvolutionArgs& args, const Plan& plan, int64_t channel) {
  int64_t element = static_cast<int64_t>(ElementSize(args.data.dtype));
  return static_cast<const char*>(args.data.data) + channel * plan.windows.in_size * element;
}

void Depthwise(const ConvolutionArgs& args, const Plan& plan, const float* weight,
               const Evaluator& evaluator, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const Windows& windows = plan.windows;
  int64_t each = plan.outputs / plan.channels;
  windows.Offsets(plan.offsets);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* plane = plan.workers + worker * plan.worker_floats;
    float* line = plane + plan.plane_floats;
    float* buffer = line + plan.line_floats;
    float* registers = buffer + windows.BufferFloats();
    evaluator.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      windows.Fill(simd, Channel(args, plan, i), 0, line, plane);
      for (int64_t row = i * each; row < (i + 1) * each; ++row) {
        const float* weights = weight + row % plan.outputs * windows.taps;
        windows.Apply(simd, Tap::kMultiplyAdd, plan.offsets, weights, plane, buffer,
                      [&](int64_t first, int64_t count, const float* values) {
                        evaluator.StoreRun(values, count, row, first, registers);
                      });
      }
    }
  };
  Parallel(context, args.data.dims[0] * plan.channels, Grain(windows.out_size * windows.taps), run);
}

void Product(const ConvolutionArgs& args, const Plan& plan, const float* weight,
             const Evaluator& evaluator, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const Windows& windows = plan.windows;
  int64_t tasks = plan.gemm.tasks();
  int64_t rows = plan.outputs / args.groups;
  int64_t weight_floats = PanelFloats(rows, plan.depth, kPanelRows);
  int64_t group_channels = args.weight.dims[1];
  windows.Offsets(plan.offsets);
  for (int64_t k = windows.taps; k < plan.depth; ++k) {
    plan.offsets[k] = plan.offsets[k - windows.taps] + windows.plane_size;
  }
  for (int64_t n = 0; n < args.data.dims[0]; ++n) {
    auto fill = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t c = begin; c < end; ++c) {
        windows.Fill(simd, Channel(args, plan, n * plan.channels + c), 0,
                     plan.workers + worker * plan.line_floats,
                     plan.planes + c * windows.plane_size);
      }
    };
    if (!plan.plain) Parallel(context, plan.channels, Grain(windows.plane_size), fill);
    const float* planes = plan.planes;
    if (plan.plain) {
      planes = reinterpret_cast<const float*>(Channel(args, plan, n * plan.channels));
    }
    auto run = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t group = i / tasks;
        Gemm gemm;
        gemm.left = weight + group * weight_floats;
        gemm.data = planes + group * group_channels * windows.plane_size;
        gemm.offsets = plan.offsets;
        gemm.out_row = n * plan.outputs + group * rows;
        plan.gemm.Run(gemm, evaluator, i % tasks, worker);
      }
    };
    Parallel(context, args.groups * tasks, Grain(plan.gemm.cost()), run);
  }
}

}  // namespace

size_t PackedConvolutionWeightBytes(const TensorView& weight, int64_t groups) {
  if (IsInteger(weight.dtype)) return PackedIntegerConvolutionWeightBytes(weight, groups);
  return static_cast<size_t>(WeightFloats(weight, groups)) * sizeof(float);
}

void PackConvolutionWeight(const TensorView& weight, int64_t groups, void* packed) {
  if (IsInteger(weight.dtype)) return PackIntegerConvolutionWeight(weight, groups, packed);
  PackWeight(weight, groups, KernelContext(), static_cast<float*>(packed));
}

size_t ConvolutionScratch(const ConvolutionArgs& args, int threads) {
  if (ElementCount(args.out) == 0) return 0;
  if (IsInteger(args.data.dtype)) return IntegerConvolutionScratch(args, threads);
  return Plan(args, threads, Scratch(nullptr)).bytes;
}

void Convolution(const ConvolutionArgs& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  if (IsInteger(args.data.dtype)) return IntegerConvolution(args, context);
  Plan plan(args, Threads(context), Scratch(context.scratch));
  const float* weight = static_cast<const float*>(args.packed_weight);
  if (weight == nullptr) {
    PackWeight(args.weight, args.groups, context, plan.weight);
    weight = plan.weight;
  }
  Evaluator evaluator(args.epilogue, args.out, plan.windows.out_size);
  auto compute = plan.depthwise ? Depthwise : Product;
  compute(args, plan, weight, evaluator, context);
}

}  // namespace npu::emulator
