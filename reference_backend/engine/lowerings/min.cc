// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Min(Lowering& op) { LowerReduction(op, NPU_REDUCE_MIN); }

REGISTER_LOWERING("relax.min", Min);

}  // namespace
}  // namespace npu
