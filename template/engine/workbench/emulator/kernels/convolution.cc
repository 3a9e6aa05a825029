// SPDX-License-Identifier: Apache-2.0
/*!
 * \file convolution.cc
 * \brief Convolution: a matrix product whose right operand is gathered from planes of the data, or
 *        sums over windows where each channel is on its own.
 */
#include <algorithm>
#include <numeric>

#include "evaluator.h"
#include "gemm.h"
#include "internal.h"
#include "products.h"
#include "windows.h"

namespace npu::emulator {

namespace {

// The weight of the first group; the others follow.
PanelSource WeightOf(const TensorView& weight, int64_t groups) {
  int64_t depth = 1;
  for (int d = 1; d < weight.rank; ++d) depth *= weight.dims[d];
  return {weight.data, weight.dtype, weight.dims[0] / groups, depth, true};
}

int64_t WeightFloats(const TensorView& weight, int64_t groups) {
  if (IsDepthwise(weight, groups)) return ElementCount(weight);
  PanelSource source = WeightOf(weight, groups);
  return groups * PanelFloats(source.lines, source.depth, kPanelRows);
}

void PackWeight(const TensorView& weight, int64_t groups, const KernelContext& context,
                float* packed) {
  if (IsDepthwise(weight, groups)) {
    ActiveSimd().load(weight.dtype, weight.data, ElementCount(weight), packed);
    return;
  }
  PackPanels(WeightOf(weight, groups), groups, kPanelRows, context, packed);
}

// The choice of the algorithm, and its memory.
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
                      Values::kReals, Evaluator::Registers(args.epilogue), threads, &scratch);
    }
    bytes = scratch.used();
  }

  Windows windows;
  bool depthwise;
  // The data is used in place.
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

// Computes one channel without a copy of it.
void ConvolveDirectly(const ConvolutionArgs& args, const Plan& plan, const float* weight,
                      int64_t channel, const Evaluator& evaluator) {
  const Windows& w = plan.windows;
  const Plane plane = w.FlatPlane();
  auto* data = reinterpret_cast<const float*>(Channel(args, plan, channel));
  const int64_t each = plan.outputs / plan.channels;
  for (int64_t row = channel * each; row < (channel + 1) * each; ++row) {
    ActiveSimd().plane(plane, data, weight + row % plan.outputs * w.taps,
                       evaluator.FinishOfRow(row), evaluator.PlaceOfRow(row));
  }
}

void Depthwise(const ConvolutionArgs& args, const Plan& plan, const float* weight,
               const Evaluator& evaluator, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  const Windows& windows = plan.windows;
  int64_t each = plan.outputs / plan.channels;
  windows.Offsets(plan.offsets);
  const bool direct =
      windows.HasLoop(simd) && evaluator.StoresLines() && args.data.dtype == NPU_FLOAT32;
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* plane = plan.workers + worker * plan.worker_floats;
    float* line = plane + plan.plane_floats;
    float* buffer = line + plan.line_floats;
    float* registers = buffer + windows.BufferFloats();
    evaluator.Begin(registers);
    for (int64_t i = begin; i < end; ++i) {
      if (direct) {
        ConvolveDirectly(args, plan, weight, i, evaluator);
        continue;
      }
      windows.Fill(simd, Channel(args, plan, i), 0, line, plane, i == begin);
      for (int64_t row = i * each; row < (i + 1) * each; ++row) {
        const float* weights = weight + row % plan.outputs * windows.taps;
        windows.ApplyTo(evaluator, simd, Tap::kMultiplyAdd, plan.offsets, weights, plane, buffer,
                        row, registers);
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
        gemm.left_part = args.weight_part;
        gemm.left_pitch = args.weight_pitch / static_cast<int64_t>(sizeof(float));
        gemm.data = planes + group * group_channels * windows.plane_size;
        gemm.offsets = plan.offsets;
        gemm.out_row = n * plan.outputs + group * rows;
        plan.gemm.Run(gemm, evaluator, i % tasks, worker);
      }
    };
    Parallel(context, args.groups * tasks, Grain(plan.gemm.cost()), run);
  }
}

// ---- Data with zeros between its elements ----

/*!
 * \brief A transposed convolution, as lowerings write it.
 *
 * Outputs at the same place modulo the spread meet nonzero elements with the same taps: for each
 * such place, these taps are a convolution of their own, on the data without its zeros.
 */
class SpreadConvolution {
 public:
  SpreadConvolution(const ConvolutionArgs& args, int threads, Scratch scratch) : args_(args) {
    for (int d = 0; d < 3; ++d) {
      int from = d - (3 - args.spatial_rank);
      size_[d] = from < 0 ? 1 : args.out.dims[2 + from];
      spread_[d] = from < 0 ? 1 : args.spread[from];
      out_size_ *= size_[d];
    }
    rows_ = args.out.dims[0] * args.out.dims[1];
    part_ = args;
    part_.is_spread = false;
    part_.epilogue = VectorProgram();
    part_.out.dtype = NPU_FLOAT32;
    for (int d = 0; d < args.spatial_rank; ++d) {
      int64_t size = args.data.dims[2 + d] - args.spread_first[d];
      part_.data.dims[2 + d] = std::max<int64_t>(0, CeilDivide(size, args.spread[d]));
    }
    int64_t weights = WeightFloats(args.weight, 1);
    weight_ = scratch.Take<float>(weights);
    chosen_ = scratch.Take<float>(weights);
    sums_ = scratch.Take<float>(rows_ * out_size_);
    lines_ = std::clamp<int64_t>(kMostJoined / size_[2], 1, size_[0] * size_[1]);
    joined_ = scratch.Take<float>(threads * lines_ * size_[2]);
    registers_ = scratch.Take<float>(threads * Evaluator::Registers(args.epilogue));
    rest_ = scratch.Take<char>(0);
    size_t most = 0;
    ForEachPart([&](bool taps) {
      if (taps) most = std::max(most, ScratchBytes(part_, threads));
    });
    bytes = scratch.used() + most;
  }

  void Run(const KernelContext& context) {
    const float* weight = static_cast<const float*>(args_.packed_weight);
    if (weight == nullptr) {
      PackWeight(args_.weight, 1, context, weight_);
      weight = weight_;
    }
    KernelContext inner = context;
    inner.scratch = rest_;
    part_.packed_weight = chosen_;
    ForEachPart([&](bool taps) {
      if (taps) {
        Choose(weight);
        Execute(part_, inner);
      } else {
        std::fill_n(static_cast<float*>(part_.out.data), ElementCount(part_.out), 0.0f);
      }
    });
    Evaluator evaluator(args_.epilogue, args_.out, out_size_);
    Parallel(context, rows_, Grain(out_size_), [&](int64_t begin, int64_t end, int worker) {
      float* registers = registers_ + worker * Evaluator::Registers(args_.epilogue);
      evaluator.Begin(registers);
      for (int64_t row = begin; row < end; ++row) {
        JoinRow(row, evaluator, joined_ + worker * lines_ * size_[2], registers);
      }
    });
  }

  size_t bytes = 0;

 private:
  // This many elements fit into the first-level cache along with their parts.
  static constexpr int64_t kMostJoined = 2048;

  // Where the sums of a part begin, and the size of its output.
  struct Part {
    int64_t begin, depth, height, width;
  };

  // Sets up `part_` and its taps, and calls `body(whether there are taps)`.
  template <typename Body>
  void ForEachPart(const Body& body) {
    int64_t begin = 0;
    for (int64_t i = 0; i < spread_[0] * spread_[1] * spread_[2]; ++i) {
      int64_t place[3] = {i / spread_[2] / spread_[1], i / spread_[2] % spread_[1], i % spread_[2]};
      int64_t size[3];
      bool taps = true, outputs = true;
      for (int d = 0; d < 3; ++d) {
        size[d] = CeilDivide(size_[d] - place[d], spread_[d]);
        outputs = outputs && size[d] > 0;
        first_[d] = 0;
        step_[d] = count_[d] = 1;
        int from = d - (3 - args_.spatial_rank);
        if (from < 0) continue;
        int64_t spread = spread_[d], dilation = args_.dilations[from];
        int64_t window = args_.weight.dims[2 + from];
        step_[d] = spread / std::gcd(spread, dilation);
        auto meets = [&](int64_t tap) {
          int64_t at = place[d] + tap * dilation - args_.pads_begin[from];
          return (at - args_.spread_first[from]) % spread == 0;
        };
        while (first_[d] < std::min(step_[d], window) && !meets(first_[d])) ++first_[d];
        taps = taps && first_[d] < std::min(step_[d], window);
        count_[d] = std::max<int64_t>(1, CeilDivide(window - first_[d], step_[d]));
        part_.weight.dims[2 + from] = count_[d];
        part_.out.dims[2 + from] = size[d];
        int64_t before = args_.pads_begin[from] - place[d] - first_[d] * dilation;
        part_.dilations[from] = step_[d] * dilation / spread;
        part_.pads_begin[from] = (before + args_.spread_first[from]) / spread;
      }
      parts_[i] = {begin, size[0], size[1], size[2]};
      if (!outputs) continue;
      part_.out.data = sums_ == nullptr ? nullptr : sums_ + begin;
      begin += ElementCount(part_.out);
      body(taps);
    }
  }

  // Packs the weights of these taps; panels hold kPanelRows values for each.
  void Choose(const float* weight) {
    const int64_t* dims = args_.weight.dims + 2 - (3 - args_.spatial_rank);
    int64_t height = args_.spatial_rank < 2 ? 1 : dims[1];
    int64_t width = dims[2];
    int64_t taps = ElementCount(args_.weight) / args_.weight.dims[0] / args_.weight.dims[1];
    float* to = chosen_;
    int64_t blocks = CeilDivide(args_.weight.dims[0], kPanelRows) * args_.weight.dims[1];
    for (int64_t block = 0; block < blocks; ++block, weight += taps * kPanelRows) {
      for (int64_t z = 0; z < count_[0]; ++z) {
        for (int64_t y = 0; y < count_[1]; ++y) {
          for (int64_t x = 0; x < count_[2]; ++x, to += kPanelRows) {
            int64_t tap = (first_[0] + z * step_[0]) * height + first_[1] + y * step_[1];
            tap = tap * width + first_[2] + x * step_[2];
            std::copy_n(weight + tap * kPanelRows, kPanelRows, to);
          }
        }
      }
    }
  }

  // Assembles a row of the output from its parts, several lines at a time.
  void JoinRow(int64_t row, const Evaluator& evaluator, float* joined, float* registers) const {
    int64_t begin = 0, end = 0;
    auto store = [&] {
      const int64_t count = (end - begin) * size_[2];
      evaluator.StoreRun(joined, count, row, begin * size_[2], registers);
      begin = end;
    };
    for (int64_t z = 0; z < size_[0]; ++z) {
      const Part* plane = parts_ + z % spread_[0] * spread_[1] * spread_[2];
      const int64_t from = row * plane->depth + z / spread_[0];
      for (int64_t y = 0; y < size_[1]; ++y) {
        const Part* parts = plane + y % spread_[1] * spread_[2];
        const int64_t line = from * parts->height + y / spread_[1];
        JoinLine(parts, line, joined + (end - begin) * size_[2]);
        if (++end - begin == lines_) store();
      }
    }
    if (begin < end) store();
  }

  // The common stride has a loop that compilers vectorize.
  void JoinLine(const Part* parts, int64_t line, float* out) const {
    if (spread_[2] == 2) {
      const int64_t pairs = parts[1].width;
      const float* even = sums_ + parts[0].begin + line * parts[0].width;
      const float* odd = sums_ + parts[1].begin + line * pairs;
      for (int64_t x = 0; x < pairs; ++x) {
        out[2 * x] = even[x];
        out[2 * x + 1] = odd[x];
      }
      if (parts[0].width > pairs) out[2 * pairs] = even[pairs];
      return;
    }
    for (int64_t place = 0; place < spread_[2]; ++place) {
      const int64_t width = parts[place].width;
      const float* sums = sums_ + parts[place].begin + line * width;
      for (int64_t x = 0; x < width; ++x) out[place + x * spread_[2]] = sums[x];
    }
  }

  const ConvolutionArgs& args_;
  int64_t size_[3], spread_[3];
  int64_t out_size_ = 1, rows_;
  ConvolutionArgs part_;
  // The taps of the part: the first, their distance, and how many there are.
  int64_t first_[3], step_[3], count_[3];
  // How many lines are joined at once.
  int64_t lines_;
  float* weight_;
  float* chosen_;
  // The sums of the parts, part by part.
  float* sums_;
  Part parts_[kMostSpread];
  float* joined_;
  float* registers_;
  char* rest_;
};

}  // namespace

size_t PackedConvolutionWeightBytes(const TensorView& weight, int64_t groups) {
  if (IsInteger(weight.dtype)) return PackedIntegerConvolutionWeightBytes(weight, groups);
  return static_cast<size_t>(WeightFloats(weight, groups)) * sizeof(float);
}

void PackConvolutionWeight(const TensorView& weight, int64_t groups, void* packed) {
  if (IsInteger(weight.dtype)) return PackIntegerConvolutionWeight(weight, groups, packed);
  PackWeight(weight, groups, KernelContext(), static_cast<float*>(packed));
}

size_t ScratchBytes(const ConvolutionArgs& args, int threads) {
  if (ElementCount(args.out) == 0) return 0;
  if (IsInteger(args.data.dtype)) return IntegerConvolutionScratch(args, threads);
  if (args.is_spread) return SpreadConvolution(args, threads, Scratch(nullptr)).bytes;
  return Plan(args, threads, Scratch(nullptr)).bytes;
}

void Execute(const ConvolutionArgs& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  if (IsInteger(args.data.dtype)) return IntegerConvolution(args, context);
  if (args.is_spread) {
    return SpreadConvolution(args, Threads(context), Scratch(context.scratch)).Run(context);
  }
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
