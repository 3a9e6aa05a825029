// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Std(Lowering& op) { LowerVariance(op, true); }

REGISTER_LOWERING("relax.std", Std);

}  // namespace
}  // namespace npu
