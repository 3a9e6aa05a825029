// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv2D(Lowering& op) { LowerConvolution(op, 2); }

REGISTER_LOWERING("relax.nn.conv2d", Conv2D).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
