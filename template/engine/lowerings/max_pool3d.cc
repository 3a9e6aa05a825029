// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void MaxPool3D(Lowering& op) { LowerMaxPool(op, 3); }

REGISTER_LOWERING("relax.nn.max_pool3d", MaxPool3D);

}  // namespace
}  // namespace npu
