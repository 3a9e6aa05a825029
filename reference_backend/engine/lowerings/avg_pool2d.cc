// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void AvgPool2D(Lowering& op) { LowerAvgPool(op, 2); }

REGISTER_LOWERING("relax.nn.avg_pool2d", AvgPool2D).TakesQuantized();

}  // namespace
}  // namespace npu
