// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv3D(Lowering& op) { LowerConvolution(op, 3); }

REGISTER_LOWERING("relax.nn.conv3d", Conv3D).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
