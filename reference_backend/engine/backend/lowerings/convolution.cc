// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv1D(Lowering& op) { LowerConvolution(op, 1); }

REGISTER_LOWERING("relax.nn.conv1d", Conv1D).TakesEpilogue().TakesQuantized(1);

void Conv2D(Lowering& op) { LowerConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d", Conv2D).TakesEpilogue().TakesQuantized(1);

/*! \brief Whether each channel is convolved on its own. */
bool IsDepthwise(const Lowering& op) {
  const npu_dim channels = op.InputDims(0).at(1);
  return channels.symbol < 0 && channels.size == op.Int("groups");
}

// The emulator recognizes depthwise convolutions by their groups. Override this lowering for an NPU
// with an engine for them.
void DepthwiseConv2D(Lowering& op) { LowerConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d", DepthwiseConv2D)
    .When(IsDepthwise)
    .TakesEpilogue()
    .TakesQuantized(1);

void Conv3D(Lowering& op) { LowerConvolution(op, 3); }

REGISTER_LOWERING("relax.nn.conv3d", Conv3D).TakesEpilogue().TakesQuantized(1);

void Conv1DTranspose(Lowering& op) { LowerTransposedConvolution(op, 1); }

REGISTER_LOWERING("relax.nn.conv1d_transpose", Conv1DTranspose).TakesEpilogue().TakesQuantized(1);

void Conv2DTranspose(Lowering& op) { LowerTransposedConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d_transpose", Conv2DTranspose).TakesEpilogue().TakesQuantized(1);

void Conv3DTranspose(Lowering& op) { LowerTransposedConvolution(op, 3); }

REGISTER_LOWERING("relax.nn.conv3d_transpose", Conv3DTranspose).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
