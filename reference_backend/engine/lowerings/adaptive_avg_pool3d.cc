// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void AdaptiveAvgPool3D(Lowering& op) { LowerAdaptiveAvgPool(op, 3); }

REGISTER_LOWERING("relax.nn.adaptive_avg_pool3d", AdaptiveAvgPool3D).TakesQuantized();

}  // namespace
}  // namespace npu
