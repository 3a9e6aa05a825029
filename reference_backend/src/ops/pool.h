// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file pool.h
 * \brief What the pools with a window have in common.
 */
#ifndef OPS_POOL_H_
#define OPS_POOL_H_

#include <cstdint>
#include <vector>

#include "lowering.h"

namespace tvm_example_npu {

/*! \brief Lowers a 2-D pool. */
inline void LowerPool2D(Lowering& op, npu_pool_kind kind) {
  op.RequireOneOf("layout", {"NCHW"});
  op.RequireOneOf("out_layout", {"NCHW"});
  // The attribute ceil_mode is in the shape of the output.
  const std::vector<int64_t> window = op.Ints("pool_size");
  const std::vector<int64_t> strides = op.Ints("strides");
  const std::vector<int64_t> dilation = op.Ints("dilation");
  const std::vector<int64_t> padding = op.Ints("padding");
  npu_pool pool = {};
  pool.data = op.Input(0).id;
  pool.out = op.Output().id;
  pool.kind = kind;
  pool.spatial_rank = 2;
  for (int i = 0; i < 2; ++i) {
    pool.window[i] = window.at(i);
    pool.strides[i] = strides.at(i);
    pool.dilations[i] = dilation.at(i);
    // Top and left, then bottom and right.
    pool.pads_begin[i] = padding.at(i);
    pool.pads_end[i] = padding.at(2 + i);
  }
  op.Emit(pool);
}

}  // namespace tvm_example_npu

#endif  // OPS_POOL_H_
