// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void AvgPool1D(Lowering& op) { LowerAvgPool(op, 1); }

REGISTER_LOWERING("relax.nn.avg_pool1d", AvgPool1D).TakesQuantized();

}  // namespace
}  // namespace npu
