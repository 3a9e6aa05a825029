// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Max(Lowering& op) { LowerReduction(op, NPU_REDUCE_MAX); }

REGISTER_LOWERING("relax.max", Max);

}  // namespace
}  // namespace npu
