// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

/*! \brief Whether each channel is convolved on its own. */
bool IsDepthwise(const Lowering& op) {
  const npu_dim channels = op.InputDims(0).at(1);
  return channels.symbol < 0 && channels.size == op.Int("groups");
}

// The emulator recognizes it by its groups. Override this for an NPU with an engine for depthwise
// convolutions.
void DepthwiseConv2D(Lowering& op) { LowerConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d", DepthwiseConv2D)
    .When(IsDepthwise)
    .TakesEpilogue()
    .TakesQuantized(1);

}  // namespace
}  // namespace npu
