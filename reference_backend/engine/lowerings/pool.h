// SPDX-License-Identifier: Apache-2.0
/*!
 * \file pool.h
 * \brief Shared code of the pools.
 */
#ifndef OPS_POOL_H_
#define OPS_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {

/*! \brief Begins a pool with `spatial_rank` spatial dimensions, channels first. */
inline npu_pool MakePool(Lowering& op, int spatial_rank, npu_pool_kind kind) {
  const std::string layout = "NC" + std::string("DHW").substr(3 - spatial_rank);
  op.RequireOneOf("layout", {layout});
  op.RequireOneOf("out_layout", {layout});
  npu_pool pool = {};
  pool.data = op.Input(0).id;
  pool.out = op.Output().id;
  pool.kind = kind;
  pool.spatial_rank = spatial_rank;
  return pool;
}

/*! \brief Refuses windows with only padding, whose maximum and mean are undefined, so that no
 * driver sees them. */
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
  op.Emit(MakePool(op, spatial_rank, NPU_POOL_AVERAGE_ADAPTIVE));
}

}  // namespace npu

#endif  // OPS_POOL_H_
