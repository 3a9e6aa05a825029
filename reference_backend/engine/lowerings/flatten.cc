// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

void Flatten(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.flatten", Flatten);

}  // namespace
}  // namespace npu
