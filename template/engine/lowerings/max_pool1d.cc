// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace npu {
namespace {

void MaxPool1D(Lowering& op) { LowerMaxPool(op, 1); }

REGISTER_LOWERING("relax.nn.max_pool1d", MaxPool1D);

}  // namespace
}  // namespace npu
