// SPDX-License-Identifier: Apache-2.0
#include "along_axis.h"
#include "lowering.h"

namespace npu {
namespace {

void ArgMin(Lowering& op) { LowerArgument(op, false); }

REGISTER_LOWERING("relax.argmin", ArgMin);

}  // namespace
}  // namespace npu
