// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv2DTranspose(Lowering& op) { LowerTransposedConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d_transpose", Conv2DTranspose).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
