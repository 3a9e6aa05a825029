// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file convolution.h
 * \brief What the convolutions have in common.
 */
#ifndef OPS_CONVOLUTION_H_
#define OPS_CONVOLUTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace tvm_example_npu {

/*! \brief Lowers a convolution with `spatial_rank` spatial dimensions in these layouts. */
inline void LowerConvolution(Lowering& op, int spatial_rank, const std::string& data_layout,
                             const std::string& kernel_layout) {
  op.RequireOneOf("data_layout", {data_layout});
  op.RequireOneOf("out_layout", {data_layout});
  op.RequireOneOf("kernel_layout", {kernel_layout});
  // The attribute out_dtype is in the type of the output.
  const std::vector<int64_t> strides = op.Ints("strides");
  const std::vector<int64_t> dilation = op.Ints("dilation");
  const std::vector<int64_t> padding = op.Ints("padding");
  npu_convolution convolution = {};
  convolution.data = op.Input(0).id;
  convolution.weight = op.Input(1).id;
  convolution.out = op.Output().id;
  convolution.spatial_rank = spatial_rank;
  for (int i = 0; i < spatial_rank; ++i) {
    convolution.strides[i] = strides.at(i);
    convolution.dilations[i] = dilation.at(i);
    // First the beginning of every dimension, then the end of every dimension.
    convolution.pads_begin[i] = padding.at(i);
    convolution.pads_end[i] = padding.at(spatial_rank + i);
  }
  convolution.groups = op.Int("groups");
  convolution.epilogue = op.Epilogue();
  op.Emit(convolution);
}

}  // namespace tvm_example_npu

#endif  // OPS_CONVOLUTION_H_
