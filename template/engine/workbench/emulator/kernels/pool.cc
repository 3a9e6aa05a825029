// SPDX-License-Identifier: Apache-2.0
/*!
 * \file pool.cc
 * \brief Pooling.
 */
#include <algorithm>
#include <limits>

#include "evaluator.h"
#include "internal.h"
#include "windows.h"

namespace npu::emulator {

namespace {

// ---- Windows of one size ----

struct Plan {
  Plan(const PoolArgs& args, int threads, Scratch scratch)
      : windows(args.data, args.out, args.spatial_rank, args.window, args.strides, args.dilations,
                args.pads_begin) {
    offsets = scratch.Take<int64_t>(windows.taps);
    for (int d = 0; d < 3; ++d) counts[d] = scratch.Take<float>(windows.out[d]);
    plane_floats = WholeLines(windows.plane_size + kSlack);
    line_floats = WholeLines(windows.in[2]);
    worker_floats = plane_floats + line_floats + windows.BufferFloats();
    workers = scratch.Take<float>(threads * worker_floats);
    bytes = scratch.used();
  }

  Windows windows;
  int64_t* offsets;
  // How many taps of a window count, along each dimension.
  float* counts[3];
  int64_t plane_floats, line_floats, worker_floats;
  float* workers;
  size_t bytes;
};

void CountTaps(const PoolArgs& args, const Plan& plan) {
  const Windows& windows = plan.windows;
  bool include_pad = args.kind == NPU_POOL_AVERAGE_INCLUDE_PAD;
  for (int d = 0; d < 3; ++d) {
    int from = d - (3 - args.spatial_rank);
    int64_t low = include_pad ? -windows.pads[d] : 0;
    int64_t high = windows.in[d] + (include_pad && from >= 0 ? args.pads_end[from] : 0);
    for (int64_t i = 0; i < windows.out[d]; ++i) {
      int64_t count = 0;
      for (int64_t tap = 0; tap < windows.window[d]; ++tap) {
        int64_t at = i * windows.strides[d] + tap * windows.dilations[d] - windows.pads[d];
        count += at >= low && at < high;
      }
      plan.counts[d][i] = static_cast<float>(count);
    }
  }
}

void Fixed(const PoolArgs& args, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  Plan plan(args, Threads(context), Scratch(context.scratch));
  const Windows& windows = plan.windows;
  windows.Offsets(plan.offsets);
  bool maximum = args.kind == NPU_POOL_MAX;
  if (!maximum) CountTaps(args, plan);
  float padding = maximum ? -std::numeric_limits<float>::infinity() : 0;
  Evaluator evaluator(VectorProgram(), args.out, windows.out_size);
  int64_t element = static_cast<int64_t>(ElementSize(args.data.dtype));
  auto run = [&](int64_t begin, int64_t end, int worker) {
    float* plane = plan.workers + worker * plan.worker_floats;
    float* line = plane + plan.plane_floats;
    float* buffer = line + plan.line_floats;
    for (int64_t i = begin; i < end; ++i) {
      const char* channel =
          static_cast<const char*>(args.data.data) + i * windows.in_size * element;
      windows.Fill(simd, channel, padding, line, plane);
      auto store = [&](int64_t first, int64_t count, float* values) {
        // Pieces are whole lines. An empty window gives 0.
        for (int64_t at = first; at < first + count && !maximum; at += windows.out[2]) {
          int64_t y = at / windows.out[2];
          float outer = plan.counts[0][y / windows.out[1]] * plan.counts[1][y % windows.out[1]];
          float* values_of_line = values + (at - first);
          for (int64_t x = 0; x < windows.out[2]; ++x) {
            values_of_line[x] /= std::max(outer * plan.counts[2][x], 1.0f);
          }
        }
        evaluator.StoreRun(values, count, i, first, nullptr);
      };
      windows.Apply(simd, maximum ? Tap::kMaximum : Tap::kAdd, plan.offsets, nullptr, plane, buffer,
                    store);
    }
  };
  int64_t channels = args.data.dims[0] * args.data.dims[1];
  Parallel(context, channels, Grain(windows.out_size * windows.taps), run);
}

// ---- Windows that divide the data ----

// Sums converted elements.
constexpr int64_t kPiece = 512;

float SumOfRun(const Simd& simd, npu_dtype dtype, const char* data, int64_t count) {
  if (dtype == NPU_FLOAT32) {
    return simd.reduce(NPU_VECTOR_ADD, reinterpret_cast<const float*>(data), count);
  }
  float total = 0;
  float piece[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    int64_t size = std::min(kPiece, count - i);
    simd.load(dtype, data + i * static_cast<int64_t>(ElementSize(dtype)), size, piece);
    total += simd.reduce(NPU_VECTOR_ADD, piece, size);
  }
  return total;
}

void Adaptive(const PoolArgs& args, const KernelContext& context) {
  const Simd& simd = ActiveSimd();
  int64_t in[3], out[3];
  for (int d = 0; d < 3; ++d) {
    int from = d - (3 - args.spatial_rank);
    in[d] = from >= 0 ? args.data.dims[2 + from] : 1;
    out[d] = from >= 0 ? args.out.dims[2 + from] : 1;
  }
  int64_t in_size = in[0] * in[1] * in[2];
  int64_t out_size = out[0] * out[1] * out[2];
  int64_t element = static_cast<int64_t>(ElementSize(args.data.dtype));
  int64_t out_element = static_cast<int64_t>(ElementSize(args.out.dtype));
  auto run = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t position = i % out_size;
      int64_t at[3] = {position / (out[1] * out[2]), position / out[2] % out[1], position % out[2]};
      int64_t low[3], size[3];
      for (int d = 0; d < 3; ++d) {
        low[d] = at[d] * in[d] / out[d];
        size[d] = CeilDivide((at[d] + 1) * in[d], out[d]) - low[d];
      }
      int64_t count = size[0] * size[1] * size[2];
      // Whole lines, and then whole slices, lie side by side.
      if (size[2] == in[2]) {
        size[2] *= size[1];
        size[1] = 1;
        if (size[2] == in[1] * in[2]) {
          size[2] *= size[0];
          size[0] = 1;
        }
      }
      float total = 0;
      const char* channel =
          static_cast<const char*>(args.data.data) + i / out_size * in_size * element;
      for (int64_t z = low[0]; z < low[0] + size[0]; ++z) {
        for (int64_t y = low[1]; y < low[1] + size[1] && size[2] > 0; ++y) {
          const char* run_begin = channel + ((z * in[1] + y) * in[2] + low[2]) * element;
          total += SumOfRun(simd, args.data.dtype, run_begin, size[2]);
        }
      }
      float mean = total / static_cast<float>(std::max<int64_t>(count, 1));
      simd.store(args.out.dtype, &mean, 1, static_cast<char*>(args.out.data) + i * out_element);
    }
  };
  Parallel(context, ElementCount(args.out), Grain(in_size / out_size), run);
}

/*! \brief An adaptive pool whose windows are all alike is an ordinary one, which is faster. */
PoolArgs Simplified(const PoolArgs& args) {
  if (args.kind != NPU_POOL_AVERAGE_ADAPTIVE || ElementCount(args.out) == 0) return args;
  PoolArgs result = args;
  result.kind = NPU_POOL_AVERAGE;
  bool is_global = true;
  for (int d = 0; d < args.spatial_rank; ++d) {
    int64_t in = args.data.dims[2 + d];
    int64_t out = args.out.dims[2 + d];
    // A global pool stays: it is one long sum.
    is_global = is_global && out == 1;
    if (in % out != 0 || in == 0) return args;
    result.window[d] = result.strides[d] = in / out;
    result.dilations[d] = 1;
    result.pads_begin[d] = result.pads_end[d] = 0;
  }
  return is_global ? args : result;
}

}  // namespace

size_t ScratchBytes(const PoolArgs& args, int threads) {
  PoolArgs simplified = Simplified(args);
  if (simplified.kind == NPU_POOL_AVERAGE_ADAPTIVE || ElementCount(args.out) == 0) return 0;
  return Plan(simplified, threads, Scratch(nullptr)).bytes;
}

void Execute(const PoolArgs& args, const KernelContext& context) {
  if (ElementCount(args.out) == 0) return;
  PoolArgs simplified = Simplified(args);
  if (simplified.kind == NPU_POOL_AVERAGE_ADAPTIVE) {
    Adaptive(simplified, context);
  } else {
    Fixed(simplified, context);
  }
}

}  // namespace npu::emulator
