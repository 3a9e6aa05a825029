// SPDX-License-Identifier: Apache-2.0
/*!
 * \file convolution.h
 * \brief Shared code of the convolutions.
 */
#ifndef LOWERINGS_CONVOLUTION_H_
#define LOWERINGS_CONVOLUTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {  // A vendor may have an edited copy.

/*! \brief The letters of the spatial dimensions in layouts. */
inline std::string SpatialLetters(int spatial_rank) {
  return std::string("DHW").substr(3 - spatial_rank);
}

/*! \brief A convolution, or a transposed one, of the op's tensors and attributes. */
template <typename Convolution>
Convolution ConvolutionOf(Lowering& op, int spatial_rank) {
  // The type of the output implies the attribute out_dtype.
  const std::vector<int64_t> strides = op.Ints("strides");
  const std::vector<int64_t> dilation = op.Ints("dilation");
  const std::vector<int64_t> padding = op.Ints("padding");
  Convolution convolution = {};
  convolution.data = op.Input(0).id;
  convolution.weight = op.Input(1).id;
  convolution.out = op.Output().id;
  convolution.spatial_rank = spatial_rank;
  for (int i = 0; i < spatial_rank; ++i) {
    convolution.strides[i] = strides.at(i);
    convolution.dilations[i] = dilation.at(i);
    // First the beginnings of all dimensions, then the ends.
    convolution.pads_begin[i] = padding.at(i);
    convolution.pads_end[i] = padding.at(spatial_rank + i);
  }
  convolution.groups = op.Int("groups");
  convolution.epilogue = op.Epilogue();
  return convolution;
}

/*! \brief Lowers a convolution with `spatial_rank` spatial dimensions, channels first. */
inline void LowerConvolution(Lowering& op, int spatial_rank) {
  const std::string letters = SpatialLetters(spatial_rank);
  op.RequireOneOf("data_layout", {"NC" + letters});
  op.RequireOneOf("out_layout", {"NC" + letters});
  op.RequireOneOf("kernel_layout", {"OI" + letters});
  op.Emit(ConvolutionOf<npu_convolution>(op, spatial_rank));
}

/*! \brief The weight [I, O / groups, ...] of a transposed convolution as that of an ordinary one:
 *  [O, I / groups, ...], each kernel back to front. Computed when compiling if it is a constant. */
inline Tensor TransposedWeight(Lowering& op, int spatial_rank, int64_t groups) {
  const Tensor weight = op.Input(1);
  const npu_dim inputs = FixedDim(op.FixedSize(weight, 0) / groups);
  const npu_dim outputs = FixedDim(op.FixedSize(weight, 1));
  const std::vector<npu_dim> kernel(weight.desc.dims + 2, weight.desc.dims + weight.rank());
  std::vector<npu_dim> from = {FixedDim(groups), inputs, outputs};
  std::vector<npu_dim> to = {FixedDim(groups), outputs, inputs};
  std::vector<npu_dim> joined = {FixedDim(groups * outputs.size), inputs};
  for (std::vector<npu_dim>* dims : {&from, &to, &joined}) {
    dims->insert(dims->end(), kernel.begin(), kernel.end());
  }
  const Tensor turned = op.Temporary(weight.desc.dtype, to);
  npu_copy copy = op.CopyOf(op.View(weight, from), turned);
  copy.permutation[1] = 2;
  copy.permutation[2] = 1;
  for (int i = 0; i < spatial_rank; ++i) {
    copy.data_offset[3 + i] = op.FixedSize(weight, 2 + i) - 1;
    copy.data_step[3 + i] = -1;
  }
  op.Emit(copy);
  return op.View(turned, joined);
}

/*! \brief Emits a transposed convolution as one operation. */
inline void EmitTransposedConvolution(Lowering& op, int spatial_rank) {
  auto convolution = ConvolutionOf<npu_transposed_convolution>(op, spatial_rank);
  const std::vector<int64_t> output_padding = op.Ints("output_padding");
  for (int i = 0; i < spatial_rank; ++i) convolution.output_padding[i] = output_padding.at(i);
  op.Emit(convolution);
}

/*!
 * \brief Lowers a transposed convolution with `spatial_rank` spatial dimensions, channels first.
 *
 * For drivers that lack it, it becomes a convolution without strides on data with zeros between the
 * elements.
 */
inline void LowerTransposedConvolution(Lowering& op, int spatial_rank) {
  const std::string letters = SpatialLetters(spatial_rank);
  op.RequireOneOf("data_layout", {"NC" + letters});
  op.RequireOneOf("out_layout", {"NC" + letters});
  op.RequireOneOf("kernel_layout", {"IO" + letters});
  if (!op.IsQuantized() && op.Has(&npu_build_api::add_transposed_convolution)) {
    return EmitTransposedConvolution(op, spatial_rank);
  }
  const std::vector<int64_t> strides = op.Ints("strides");
  const std::vector<int64_t> dilation = op.Ints("dilation");
  const std::vector<int64_t> padding = op.Ints("padding");
  const std::vector<int64_t> output_padding = op.Ints("output_padding");
  const Tensor data = op.Input(0);
  const Tensor weight = op.Input(1);

  npu_convolution convolution = {};
  convolution.spatial_rank = spatial_rank;
  convolution.groups = op.Int("groups");
  bool spread_out = false;
  for (int i = 0; i < spatial_rank; ++i) {
    const int64_t reach = dilation.at(i) * (op.FixedSize(weight, 2 + i) - 1);
    convolution.strides[i] = 1;
    convolution.dilations[i] = dilation[i];
    convolution.pads_begin[i] = reach - padding.at(i);
    convolution.pads_end[i] = reach - padding.at(spatial_rank + i) + output_padding.at(i);
    if (strides.at(i) != 1 || convolution.pads_begin[i] < 0 || convolution.pads_end[i] < 0) {
      spread_out = true;
    }
  }
  convolution.data = data.id;
  if (spread_out) {
    // The copy that spreads the elements out also pads or crops them.
    std::vector<npu_dim> dims = data.dims();
    std::vector<int64_t> first(spatial_rank), skipped(spatial_rank);
    for (int i = 0; i < spatial_rank; ++i) {
      const int64_t size = op.FixedSize(data, 2 + i);
      const int64_t begin = convolution.pads_begin[i];
      skipped[i] = begin < 0 ? (-begin + strides[i] - 1) / strides[i] : 0;
      first[i] = begin + skipped[i] * strides[i];
      dims[2 + i].size = (size - 1) * strides[i] + 1 + begin + convolution.pads_end[i];
      if (skipped[i] >= size || first[i] >= dims[2 + i].size) {
        op.Refuse("its attribute 'padding' leaves nothing of the data");
      }
      convolution.pads_begin[i] = convolution.pads_end[i] = 0;
    }
    const Tensor spread = op.Temporary(data.desc.dtype, dims);
    npu_copy copy = op.CopyOf(data, spread);
    for (int i = 0; i < spatial_rank; ++i) {
      copy.data_offset[2 + i] = skipped[i];
      copy.out_offset[2 + i] = first[i];
      copy.out_step[2 + i] = strides[i];
    }
    copy.fill = 1;
    copy.fill_value = op.ZeroPoint(0);
    op.Emit(copy);
    convolution.data = spread.id;
  }
  convolution.weight = TransposedWeight(op, spatial_rank, convolution.groups).id;
  convolution.out = op.Output().id;
  convolution.epilogue = op.Epilogue();
  op.Emit(convolution);
}

}  // namespace
}  // namespace npu

#endif  // LOWERINGS_CONVOLUTION_H_
