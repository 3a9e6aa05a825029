// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

// The argument `shape` is the shape of the output.
void Reshape(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.reshape", Reshape);

}  // namespace
}  // namespace npu
