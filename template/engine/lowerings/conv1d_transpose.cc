// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"
#include "lowering.h"

namespace npu {
namespace {

void Conv1DTranspose(Lowering& op) { LowerTransposedConvolution(op, 1); }

REGISTER_LOWERING("relax.nn.conv1d_transpose", Conv1DTranspose).TakesEpilogue().TakesQuantized(1);

}  // namespace
}  // namespace npu
