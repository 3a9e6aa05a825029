// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv3DTranspose(Lowering& op) { LowerTransposedConvolution(op, 3); }

REGISTER_LOWERING("relax.nn.conv3d_transpose", Conv3DTranspose).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
