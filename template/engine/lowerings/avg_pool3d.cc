// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void AvgPool3D(Lowering& op) { LowerAvgPool(op, 3); }

REGISTER_LOWERING("relax.nn.avg_pool3d", AvgPool3D).TakesQuantized();

}  // namespace
}  // namespace npu
