// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void AdaptiveAvgPool2D(Lowering& op) { LowerAdaptiveAvgPool(op, 2); }

REGISTER_LOWERING("relax.nn.adaptive_avg_pool2d", AdaptiveAvgPool2D).TakesQuantized();

}  // namespace
}  // namespace npu
