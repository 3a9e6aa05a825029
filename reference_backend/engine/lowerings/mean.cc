// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Mean(Lowering& op) { LowerReduction(op, NPU_REDUCE_MEAN); }

REGISTER_LOWERING("relax.mean", Mean).TakesQuantized();

}  // namespace
}  // namespace npu
