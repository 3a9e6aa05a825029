// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Prod(Lowering& op) { LowerReduction(op, NPU_REDUCE_PRODUCT); }

REGISTER_LOWERING("relax.prod", Prod);

}  // namespace
}  // namespace npu
