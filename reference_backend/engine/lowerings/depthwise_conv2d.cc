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

// The emulator sees by the groups that this is depthwise. An NPU with an engine of its own for such
// convolutions is programmed here.
void DepthwiseConv2D(Lowering& op) { LowerConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d", DepthwiseConv2D).When(IsDepthwise).TakesEpilogue();

}  // namespace
}  // namespace npu
