// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv1D(Lowering& op) { LowerConvolution(op, 1); }

REGISTER_LOWERING("relax.nn.conv1d", Conv1D).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
