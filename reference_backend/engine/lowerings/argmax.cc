// SPDX-License-Identifier: Apache-2.0
#include "along_axis.h"
#include "lowering.h"

namespace npu {
namespace {

void ArgMax(Lowering& op) { LowerArgument(op, true); }

REGISTER_LOWERING("relax.argmax", ArgMax);

}  // namespace
}  // namespace npu
