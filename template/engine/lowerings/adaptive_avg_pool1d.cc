// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void AdaptiveAvgPool1D(Lowering& op) { LowerAdaptiveAvgPool(op, 1); }

REGISTER_LOWERING("relax.nn.adaptive_avg_pool1d", AdaptiveAvgPool1D).TakesQuantized();

}  // namespace
}  // namespace npu
