// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "reduction.h"

namespace npu {
namespace {

void Variance(Lowering& op) { LowerVariance(op, false); }

REGISTER_LOWERING("relax.variance", Variance);

}  // namespace
}  // namespace npu
