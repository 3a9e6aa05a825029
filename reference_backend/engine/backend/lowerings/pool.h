// SPDX-License-Identifier: Apache-2.0
/*!
 * \file pool.h
 * \brief Shared code of the pools.
 */
#ifndef LOWERINGS_POOL_H_
#define LOWERINGS_POOL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief Begins a pool with `spatial_rank` spatial dimensions, channels first. */
inline npu_pool MakePool(Lowering& op, int spatial_rank, npu_pool_kind kind) {
  const std::string layout = "NC" + std::string("DHW").substr(3 - spatial_rank);
  op.RequireOneOf("layout", {layout});
  op.RequireOneOf("out_layout", {layout});
  npu_pool pool = {};
  pool.data = op.Input(0).id;
  pool.kind = kind;
  pool.spatial_rank = spatial_rank;
  return pool;
}

/*! \brief Refuses windows of padding alone, whose maximum and mean are undefined. */
inline void RequireData(Lowering& op, const npu_pool& pool) {
  const Tensor data = op.Input(0);
  const std::vector<npu_dim> out = op.OutputDims();
  for (int i = 0; i < pool.spatial_rank; ++i) {
    const int64_t size = op.FixedSize(data, i + 2);
    for (int64_t position = 0; position < out[i + 2].size; ++position) {
      const int64_t begin = position * pool.strides[i] - pool.pads_begin[i];
      bool holds = false;
      for (int64_t k = 0; k < pool.window[i] && !holds; ++k) {
        const int64_t at = begin + k * pool.dilations[i];
        holds = at >= 0 && at < size;
      }
      if (!holds) {
        op.Refuse("window " + std::to_string(position) + " of spatial dimension " +
                  std::to_string(i) + " lies wholly in the padding");
      }
    }
  }
}

/*! \brief The number of elements in the window at each position. */
inline std::vector<double> ElementCounts(const std::vector<std::vector<int64_t>>& counts) {
  std::vector<double> all = {1};
  for (const std::vector<int64_t>& of_dimension : counts) {
    std::vector<double> next;
    for (double before : all) {
      for (int64_t count : of_dimension) next.push_back(before * static_cast<double>(count));
    }
    all = std::move(next);
  }
  return all;
}

/*! \brief Lowers a mean of integers: the sums are a depthwise convolution by ones, for which
 * padding is the zero point, and the rescaling divides. */
inline void LowerAverageOfIntegers(Lowering& op, const npu_pool& pool) {
  const Tensor data = op.Input(0);
  const std::vector<npu_dim> out = op.OutputDims();
  npu_convolution sums = {};
  sums.data = data.id;
  sums.out = op.Output().id;
  sums.spatial_rank = pool.spatial_rank;
  sums.groups = op.FixedSize(data, 1);
  std::vector<npu_dim> kernel = {FixedDim(sums.groups), FixedDim(1)};
  int64_t weights = sums.groups;
  std::vector<std::vector<int64_t>> counts;
  for (int i = 0; i < pool.spatial_rank; ++i) {
    const int64_t size = op.FixedSize(data, i + 2);
    const int64_t last = (out[i + 2].size - 1) * pool.strides[i] - pool.pads_begin[i];
    const int64_t beyond = last + (pool.window[i] - 1) * pool.dilations[i] + 1 - size;
    sums.strides[i] = pool.strides[i];
    sums.dilations[i] = pool.dilations[i];
    sums.pads_begin[i] = pool.pads_begin[i];
    sums.pads_end[i] = std::max(pool.pads_end[i], beyond);  // For ceil mode.
    kernel.push_back(FixedDim(pool.window[i]));
    weights *= pool.window[i];
    const bool padded = pool.kind == NPU_POOL_AVERAGE_INCLUDE_PAD;
    const int64_t least = padded ? -pool.pads_begin[i] : 0;
    const int64_t end = size + (padded ? pool.pads_end[i] : 0);
    std::vector<int64_t>& inside = counts.emplace_back();
    for (int64_t position = 0; position < out[i + 2].size; ++position) {
      int64_t& count = inside.emplace_back(0);
      for (int64_t k = 0; k < pool.window[i]; ++k) {
        const int64_t at = position * pool.strides[i] - pool.pads_begin[i] + k * pool.dilations[i];
        if (at >= least && at < end) ++count;
      }
    }
  }
  sums.weight = op.Constant(kernel, std::vector<int8_t>(weights, 1)).id;
  op.AverageOver(ElementCounts(counts), {out.begin() + 2, out.end()});
  sums.epilogue = op.Epilogue();
  op.Emit(sums);
}

/*! \brief Lowers an adaptive mean of integers: windows that divide the data evenly are those of an
 *  ordinary pool; other sums are products with a matrix of ones and zeros. */
inline void LowerAdaptiveAverageOfIntegers(Lowering& op, npu_pool pool) {
  const Tensor data = op.Input(0);
  const std::vector<npu_dim> out = op.OutputDims();
  std::vector<int64_t> axes;
  bool is_one = true, is_even = true;
  for (int i = 0; i < pool.spatial_rank; ++i) {
    const int64_t size = op.FixedSize(data, i + 2);
    const int64_t positions = out[i + 2].size;
    axes.push_back(i + 2);
    is_one = is_one && positions == 1;
    is_even = is_even && size % positions == 0;
    pool.window[i] = pool.strides[i] = size / positions;
    pool.dilations[i] = 1;
  }
  if (is_one) return op.Reduce(NPU_REDUCE_MEAN, data, axes, op.Output());
  if (is_even) return LowerAverageOfIntegers(op, pool);

  std::vector<std::vector<int64_t>> counts;
  std::vector<int8_t> matrix = {1};
  int64_t rows = 1, columns = 1;
  for (int64_t axis : axes) {
    const int64_t size = data.dims()[axis].size;
    const int64_t positions = out[axis].size;
    std::vector<int8_t> next(rows * size * columns * positions, 0);
    std::vector<int64_t>& inside = counts.emplace_back();
    for (int64_t position = 0; position < positions; ++position) {
      const int64_t begin = position * size / positions;
      const int64_t end = ((position + 1) * size + positions - 1) / positions;
      inside.push_back(end - begin);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          for (int64_t at = begin; at < end; ++at) {
            next[(row * size + at) * columns * positions + column * positions + position] =
                matrix[row * columns + column];
          }
        }
      }
    }
    matrix = std::move(next);
    rows *= size;
    columns *= positions;
  }
  const npu_dim images = op.Joined({data.dims()[0], data.dims()[1]});
  const Tensor means = op.Temporary(op.OutputDtype(), {images, FixedDim(columns)});
  npu_matmul sums = {};
  sums.a = op.View(data, {images, FixedDim(rows)}).id;
  sums.b = op.Constant({FixedDim(rows), FixedDim(columns)}, matrix).id;
  sums.out = means.id;
  op.AverageOver(ElementCounts(counts), {FixedDim(columns)});
  sums.epilogue = op.Epilogue();
  op.Emit(sums);
  op.SetOutput(0, op.View(means, out));
}

/*! \brief Lowers a pool with an explicit window. */
inline void LowerPool(Lowering& op, int spatial_rank, npu_pool_kind kind) {
  // The shape of the output implies ceil_mode.
  const std::vector<int64_t> window = op.Ints("pool_size");
  const std::vector<int64_t> strides = op.Ints("strides");
  const std::vector<int64_t> dilation = op.Ints("dilation");
  const std::vector<int64_t> padding = op.Ints("padding");
  npu_pool pool = MakePool(op, spatial_rank, kind);
  for (int i = 0; i < spatial_rank; ++i) {
    pool.window[i] = window.at(i);
    pool.strides[i] = strides.at(i);
    pool.dilations[i] = dilation.at(i);
    // First the beginnings of all dimensions, then the ends.
    pool.pads_begin[i] = padding.at(i);
    pool.pads_end[i] = padding.at(spatial_rank + i);
  }
  RequireData(op, pool);
  if (op.IsQuantized()) return LowerAverageOfIntegers(op, pool);
  pool.out = op.Output().id;
  op.Emit(pool);
}

/*! \brief Lowers a maximum pool. It ignores count_include_pad: padding is never the maximum. */
inline void LowerMaxPool(Lowering& op, int spatial_rank) {
  LowerPool(op, spatial_rank, NPU_POOL_MAX);
}

/*! \brief Lowers a mean. */
inline void LowerAvgPool(Lowering& op, int spatial_rank) {
  LowerPool(op, spatial_rank,
            op.Bool("count_include_pad") ? NPU_POOL_AVERAGE_INCLUDE_PAD : NPU_POOL_AVERAGE);
}

/*! \brief Lowers an adaptive mean; the shape of the output implies output_size. */
inline void LowerAdaptiveAvgPool(Lowering& op, int spatial_rank) {
  npu_pool pool = MakePool(op, spatial_rank, NPU_POOL_AVERAGE_ADAPTIVE);
  if (op.IsQuantized()) return LowerAdaptiveAverageOfIntegers(op, pool);
  pool.out = op.Output().id;
  op.Emit(pool);
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_POOL_H_
