// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Sum(Lowering& op) { LowerReduction(op, NPU_REDUCE_SUM); }

REGISTER_LOWERING("relax.sum", Sum);

}  // namespace
}  // namespace npu
