// SPDX-License-Identifier: Apache-2.0
/*!
 * \file byte_convolution.cc
 * \brief Convolution of elements of 8 bits; see byte_products.h.
 */
#include <algorithm>

#include "byte_products.h"
#include "gemm.h"
#include "integer_sums.h"
#include "products.h"
#include "quads.h"
#include "windows.h"

namespace npu::emulator {

namespace {

int64_t TapsOf(const TensorView& weight) {
  int64_t taps = 1;
  for (int d = 2; d < weight.rank; ++d) taps *= weight.dims[d];
  return taps;
}

// Pairs of a packed weight: those of two channels, tap by tap.
int64_t WeightPairs(const TensorView& weight, int64_t groups) {
  int64_t depth = PairsOf(weight.dims[1]) * TapsOf(weight);
  return groups * PanelFloats(weight.dims[0] / groups, depth, kPanelRows);
}

void PackWeightBytes(const TensorView& weight, int64_t groups, char* packed) {
  const char* data = static_cast<const char*>(weight.data);
  if (IsDepthwise(weight, groups)) {
    std::copy_n(data, ElementCount(weight), packed);
    return;
  }
  int64_t channels = weight.dims[1];
  int64_t taps = TapsOf(weight);
  int64_t lines = weight.dims[0] / groups;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t first = 0; first < lines; first += kPanelRows) {
      for (int64_t k = 0; k < PairsOf(channels) * taps; ++k) {
        for (int64_t i = 0; i < int64_t{2} * kPanelRows; ++i) {
          int64_t line = first + i / 2;
          int64_t channel = k / taps * 2 + i % 2;
          bool inside = line < lines && channel < channels;
          int64_t at = ((group * lines + line) * channels + channel) * taps + k % taps;
          *packed++ = inside ? data[at] : 0;
        }
      }
    }
  }
}

// Taps of a depthwise convolution, two by two: where the first one reads, and which they are.
struct TapPairs {
  int64_t* offsets = nullptr;
  int64_t* first = nullptr;
  int64_t* second = nullptr;
  int64_t* taken = nullptr;
};

// Whether sums are those of QuadProducts::plane.
bool HasQuadPlanes(const ConvolutionArgs& args, const Windows& windows) {
  return ActiveSimd().quads != nullptr && windows.IsFlat() && windows.window[2] <= kPlaneTaps &&
         windows.dilations[2] == 1 && windows.strides[2] <= 2 &&
         ZeroOfQuads(args.weight.dtype, args.weight_zero_point, true) == 0;
}

// The choice of the algorithm, and its memory.
struct ConvolutionPlan {
  // Sums that a depthwise one computes at once; they stay in the cache.
  static constexpr int64_t kBlock = 2048;

  ConvolutionPlan(const ConvolutionArgs& args, int threads, Scratch scratch)
      : windows(args.data, args.out, args.spatial_rank, args.weight.dims + 2, args.strides,
                args.dilations, args.pads_begin),
        depthwise(IsDepthwise(args.weight, args.groups)),
        plain(windows.taps == 1 && windows.Dense()),
        outputs(args.out.dims[1]),
        group_channels(args.weight.dims[1]),
        values(!depthwise && ActiveSimd().quads != nullptr ? Values::kQuads : Values::kPairs),
        group_planes(CeilDivide(group_channels, values == Values::kQuads ? 4 : 2)),
        depth(group_planes * windows.taps) {
    int64_t registers = SumStore::Registers(args.epilogue);
    weight_bytes =
        depthwise ? ElementCount(args.weight) : 2 * WeightPairs(args.weight, args.groups);
    if (args.packed_weight == nullptr || args.weight_halved) {
      weight = scratch.Take<char>(weight_bytes);
    }
    channel_floats = WholeLines(windows.in_size);
    if (depthwise && HasQuadPlanes(args, windows)) {
      values = Values::kQuads;
      lines = std::max<int64_t>(kBlock / windows.out[2] / kPlaneLines, 1) * kPlaneLines;
      buffer_floats = WholeLines(std::min(lines, windows.out[1]) * windows.out[2] + kSlack);
      worker_floats = buffer_floats + registers;
    } else if (depthwise && windows.HasLoop(ActiveSimd())) {
      // Real numbers hold the sums of so few products.
      values = Values::kReals;
      weights = scratch.Take<float>(weight_bytes);
      buffer_floats = WholeLines(windows.out_size + kSlack);
      worker_floats = channel_floats + buffer_floats + registers;
    } else if (depthwise) {
      weights = scratch.Take<float>(weight_bytes);
      plane_floats = WholeLines(windows.plane_size + kSlack);
      buffer_floats = windows.BufferFloats();
      for (int64_t** one : {&pairs.offsets, &pairs.first, &pairs.second, &pairs.taken}) {
        *one = scratch.Take<int64_t>(windows.taps);
      }
      worker_floats = plane_floats + channel_floats + buffer_floats + registers;
    } else {
      group_rows = CeilDivide(outputs / args.groups, kPanelRows) * kPanelRows;
      weights = scratch.Take<float>(args.groups * group_rows * depth);
      if (values == Values::kQuads) of_rows = scratch.Take<int32_t>(args.groups * group_rows);
      offsets = scratch.Take<int64_t>(std::max(depth, windows.taps));
      if (!plain) {
        planes = scratch.Take<float>(args.groups * group_planes * windows.plane_size + kSlack);
      }
      worker_floats = channel_floats;
      const GatheredColumns columns = windows.Columns();
      gemm = GemmPlan(outputs / args.groups, windows.out_size, depth, args.groups, &columns, true,
                      values, registers, threads, &scratch);
    }
    workers = scratch.Take<float>(threads * worker_floats);
    parameters = scratch.Take<int32_t>(SumStore::ParameterFloats(outputs));
    bytes = scratch.used();
  }

  Windows windows;
  bool depthwise;
  // The data is used in place.
  bool plain;
  int64_t outputs, group_channels;
  Values values;
  // Otherwise, planes are pairs or quads of channels; if depthwise, of taps, or real numbers.
  int64_t group_planes, depth;
  // Of panels.
  int64_t group_rows = 0;
  // Of the output: what a depthwise one with quads computes at once, a multiple of its loops' 4.
  int64_t lines = 0;
  int64_t weight_bytes = 0, channel_floats = 0, plane_floats = 0, buffer_floats = 0;
  int64_t worker_floats = 0;
  char* weight = nullptr;
  float* weights = nullptr;
  // The addends of rows for a product of quads.
  int32_t* of_rows = nullptr;
  int64_t* offsets = nullptr;
  TapPairs pairs;
  float* planes = nullptr;
  float* workers = nullptr;
  int32_t* parameters = nullptr;
  GemmPlan gemm;
  size_t bytes = 0;
};

// Makes one tap of pairs of two taps that read neighbouring elements. Returns the number of taps.
int64_t PairTaps(const ConvolutionPlan& plan) {
  int64_t taps = plan.windows.taps;
  TapPairs pairs = plan.pairs;
  plan.windows.Offsets(pairs.offsets);
  std::fill_n(pairs.taken, taps, 0);
  int64_t count = 0;
  for (int64_t tap = 0; tap < taps; ++tap) {
    if (pairs.taken[tap] != 0) continue;
    int64_t next =
        std::find(pairs.offsets, pairs.offsets + taps, pairs.offsets[tap] + 1) - pairs.offsets;
    if (next < taps && pairs.taken[next] != 0) next = taps;
    if (next < taps) pairs.taken[next] = 1;
    pairs.taken[tap] = 1;
    pairs.first[count] = tap;
    pairs.second[count++] = next;
  }
  // Taps come in their order, so no offset is overwritten before it is read.
  for (int64_t i = 0; i < count; ++i) pairs.offsets[i] = pairs.offsets[pairs.first[i]];
  return count;
}

void Depthwise(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
               const SumStore& store, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  int64_t channels = args.data.dims[1];
  int64_t each = plan.outputs / channels;
  int64_t taps = plan.windows.taps;
  const char* data = static_cast<const char*>(args.data.data);
  Windows windows = plan.windows;
  windows.taps = PairTaps(plan);
  for (int64_t row = 0; row < plan.outputs; ++row) {
    for (int64_t i = 0; i < windows.taps; ++i) {
      const char* first = weight + row * taps + plan.pairs.first[i];
      bool alone = plan.pairs.second[i] == taps;
      const char* second = alone ? nullptr : weight + row * taps + plan.pairs.second[i];
      simd.pair(args.weight.dtype, first, second, 1, args.weight_zero_point,
                plan.weights + row * taps + i);
    }
  }
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* plane = plan.workers + worker * plan.worker_floats;
    float* channel = plane + plan.plane_floats;
    float* buffer = channel + plan.channel_floats;
    float* registers = buffer + plan.buffer_floats;
    store.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      simd.pair(args.data.dtype, data + i * windows.in_size, nullptr, windows.in_size,
                args.data_zero_point, channel);
      windows.FillCells(simd, channel, 0, plane);
      simd.chain(windows.plane_size, plane);
      for (int64_t row = i * each; row < (i + 1) * each; ++row) {
        const float* weights = plan.weights + row % plan.outputs * taps;
        windows.ApplyTo(store, simd, Tap::kMultiplyAddPairs, plan.pairs.offsets, weights, plane,
                        buffer, row, registers);
      }
    }
  };
  Parallel(context, args.data.dims[0] * channels, Grain(windows.out_size * taps), run);
}

// The padding of planes: zero points.
float PaddingOf(const ConvolutionArgs& args, bool quads) {
  return quads ? ZeroQuad(args.data.dtype, args.data_zero_point) : 0;
}

void DepthwiseQuads(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
                    const SumStore& store, const KernelContext& context) {
  const Windows& windows = plan.windows;
  const int64_t channels = args.data.dims[1];
  const int64_t each = plan.outputs / channels;
  const Plane plane = windows.FlatPlane();
  auto* data = static_cast<const uint8_t*>(args.data.data);
  auto* weights = reinterpret_cast<const uint8_t*>(weight);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* sums = plan.workers + worker * plan.worker_floats;
    float* registers = sums + plan.buffer_floats;
    store.Begin(registers);
    for (int64_t row = begin * each; row < end * each; ++row) {
      for (int64_t top = 0; top < plane.out_height; top += plan.lines) {
        const int64_t lines = std::min(plan.lines, plane.out_height - top);
        ActiveSimd().quads->plane(plane, data + row / each * windows.in_size,
                                  IsTurned(args.data.dtype, false), ZeroByte(args.data_zero_point),
                                  weights + row % plan.outputs * windows.taps,
                                  IsTurned(args.weight.dtype, true), top, lines, sums);
        store.StoreRun(sums, lines * plane.out_width, row, top * plane.out_width, registers);
      }
    }
  };
  Parallel(context, args.data.dims[0] * channels, Grain(windows.out_size * windows.taps), run);
}

// Elements less their zero point.
void LoadDifferences(npu_dtype dtype, const char* data, int64_t count, int32_t zero, float* out) {
  ActiveSimd().load(dtype, data, count, out);
  if (zero == 0) return;
  float zeros[kSplat];
  std::fill_n(zeros, kSplat, static_cast<float>(zero));
  ActiveSimd().apply(NPU_VECTOR_SUBTRACT, {out}, {zeros, 0}, {}, count, out);
}

void DepthwiseReals(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
                    const SumStore& store, const KernelContext& context) {
  const Windows& windows = plan.windows;
  const int64_t channels = args.data.dims[1];
  const int64_t each = plan.outputs / channels;
  Plane plane = windows.FlatPlane();
  plane.whole = true;
  const float zero = 0;
  Finish how;
  how.first = how.second = &zero;
  const auto* data = static_cast<const char*>(args.data.data);
  LoadDifferences(args.weight.dtype, weight, plan.weight_bytes, args.weight_zero_point,
                  plan.weights);
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* channel = plan.workers + worker * plan.worker_floats;
    float* sums = channel + plan.channel_floats;
    float* registers = sums + plan.buffer_floats;
    store.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      LoadDifferences(args.data.dtype, data + i * windows.in_size, windows.in_size,
                      args.data_zero_point, channel);
      for (int64_t row = i * each; row < (i + 1) * each; ++row) {
        const float* weights = plan.weights + row % plan.outputs * windows.taps;
        ActiveSimd().plane(plane, channel, weights, how, sums);
        store.StoreRun(sums, windows.out_size, row, 0, registers);
      }
    }
  };
  Parallel(context, args.data.dims[0] * channels, Grain(windows.out_size * windows.taps), run);
}

// Packed weights as quads.
void WidenToQuads(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
                  const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const int64_t pairs = PairsOf(plan.group_channels);
  const int64_t bytes = int64_t{2} * kPanelRows * pairs * plan.windows.taps;
  const int64_t panels = args.groups * plan.group_rows / kPanelRows;
  const npu_dtype dtype = args.weight.dtype;
  Parallel(context, panels, Grain(plan.depth * kPanelRows), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* panel = plan.weights + i * kPanelRows * plan.depth;
      simd.quads->join_pairs(reinterpret_cast<const uint8_t*>(weight) + i * bytes, pairs,
                             kPanelRows * plan.windows.taps, IsTurned(dtype, true), panel);
      FinishLeftPanel(simd, plan.depth, ZeroOfQuads(dtype, args.weight_zero_point, true),
                      ZeroOfQuads(args.data.dtype, args.data_zero_point, false), panel,
                      plan.of_rows + i * kPanelRows);
    }
  });
}

// Fills a plane of quads with up to four of `channels` channels, from `channel` on.
void FillQuads(const ConvolutionArgs& args, const ConvolutionPlan& plan, int64_t channel,
               int64_t channels, float* cells, float* plane) {
  const Simd& simd = ActiveSimd();
  auto* data = static_cast<const uint8_t*>(args.data.data) + channel * plan.windows.in_size;
  const uint8_t* rows[4];
  for (int64_t r = 0; r < 4; ++r) {
    rows[r] = r < channels ? data + r * plan.windows.in_size : nullptr;
  }
  simd.quads->join(rows, plan.windows.in_size, ZeroByte(args.data_zero_point),
                   IsTurned(args.data.dtype, false), cells);
  plan.windows.FillCells(simd, cells, PaddingOf(args, true), plane);
}

void Product(const ConvolutionArgs& args, const ConvolutionPlan& plan, const char* weight,
             const SumStore& store, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const Windows& windows = plan.windows;
  int64_t tasks = plan.gemm.tasks();
  int64_t rows = plan.outputs / args.groups;
  int64_t weight_floats = PanelFloats(rows, plan.depth, kPanelRows);
  const bool quads = plan.values == Values::kQuads;
  if (quads) {
    WidenToQuads(args, plan, weight, context);
  } else {
    Parallel(context, plan.weight_bytes / 2, Grain(1), [&](int64_t begin, int64_t end, int) {
      simd.join(args.weight.dtype, weight + 2 * begin, end - begin, args.weight_zero_point,
                plan.weights + begin);
    });
  }
  windows.Offsets(plan.offsets);
  for (int64_t k = windows.taps; k < plan.depth; ++k) {
    plan.offsets[k] = plan.offsets[k - windows.taps] + windows.plane_size;
  }
  int64_t planes = args.groups * plan.group_planes;
  for (int64_t n = 0; n < args.data.dims[0]; ++n) {
    auto fill = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t p = begin; p < end; ++p) {
        int64_t pair = p % plan.group_planes;
        int64_t channel = n * args.data.dims[1] + p / plan.group_planes * plan.group_channels;
        if (quads) {
          FillQuads(args, plan, channel + 4 * pair, plan.group_channels - 4 * pair,
                    plan.workers + worker * plan.worker_floats,
                    plan.planes + p * windows.plane_size);
          continue;
        }
        const char* low =
            static_cast<const char*>(args.data.data) + (channel + 2 * pair) * windows.in_size;
        const char* high = 2 * pair + 1 < plan.group_channels ? low + windows.in_size : nullptr;
        float* cells = plan.workers + worker * plan.worker_floats;
        simd.pair(args.data.dtype, low, high, windows.in_size, args.data_zero_point, cells);
        windows.FillCells(simd, cells, PaddingOf(args, false),
                          plan.planes + p * windows.plane_size);
      }
    };
    if (!plan.plain) Parallel(context, planes, Grain(windows.plane_size), fill);
    auto run = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t group = i / tasks;
        Gemm gemm;
        gemm.left = plan.weights + group * weight_floats;
        if (plan.plain) {
          int64_t channel = n * args.data.dims[1] + group * plan.group_channels;
          gemm.elements = static_cast<const char*>(args.data.data) + channel * windows.in_size;
          gemm.element_rows = plan.group_channels;
          gemm.dtype = args.data.dtype;
          gemm.zero_point = args.data_zero_point;
        } else {
          gemm.data = plan.planes + group * plan.group_planes * windows.plane_size;
          gemm.offsets = plan.offsets;
        }
        if (quads) {
          gemm.left_zero = ZeroOfQuads(args.weight.dtype, args.weight_zero_point, true);
          gemm.of_rows = plan.of_rows + group * plan.group_rows;
        }
        gemm.out_row = n * plan.outputs + group * rows;
        plan.gemm.Run(gemm, store, i % tasks, worker);
      }
    };
    Parallel(context, args.groups * tasks, Grain(plan.gemm.cost()), run);
  }
}

}  // namespace

size_t ScratchOf(const ConvolutionArgs& args, int threads) {
  return ConvolutionPlan(args, threads, Scratch(nullptr)).bytes;
}

void Multiply(const ConvolutionArgs& args, const KernelContext& context) {
  ConvolutionPlan plan(args, Threads(context), Scratch(context.scratch));
  SumStore store(args.epilogue, args.out, plan.windows.out_size,
                 SumsOf(FactorsOf(args.data.dtype, args.data_zero_point),
                        FactorsOf(args.weight.dtype, args.weight_zero_point),
                        plan.group_channels * plan.windows.taps),
                 plan.outputs, false, plan.parameters);
  const char* weight = static_cast<const char*>(args.packed_weight);
  if (weight == nullptr) {
    PackWeightBytes(args.weight, args.groups, plan.weight);
    weight = plan.weight;
  } else if (args.weight_halved) {
    auto* halves = reinterpret_cast<const uint8_t*>(weight);
    auto* widened = reinterpret_cast<uint8_t*>(plan.weight);
    auto widen = [&](int64_t begin, int64_t end, int) {
      const int64_t count = std::min(2 * end, plan.weight_bytes) - 2 * begin;
      ActiveSimd().widen(args.weight.dtype, halves + begin, count, widened + 2 * begin);
    };
    Parallel(context, CeilDivide(plan.weight_bytes, 2), Grain(1), widen);
    weight = plan.weight;
  }
  auto compute = !plan.depthwise                 ? Product
                 : plan.values == Values::kQuads ? DepthwiseQuads
                 : plan.values == Values::kReals ? DepthwiseReals
                                                 : Depthwise;
  compute(args, plan, weight, store, context);
}

size_t PackedIntegerConvolutionWeightBytes(const TensorView& weight, int64_t groups) {
  if (IsDepthwise(weight, groups)) return static_cast<size_t>(ElementCount(weight));
  return static_cast<size_t>(2 * WeightPairs(weight, groups));
}

void PackIntegerConvolutionWeight(const TensorView& weight, int64_t groups, void* packed) {
  PackWeightBytes(weight, groups, static_cast<char*>(packed));
}

}  // namespace npu::emulator
