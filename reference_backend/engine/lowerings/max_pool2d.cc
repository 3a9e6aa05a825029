// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void MaxPool2D(Lowering& op) { LowerMaxPool(op, 2); }

REGISTER_LOWERING("relax.nn.max_pool2d", MaxPool2D);

}  // namespace
}  // namespace npu
