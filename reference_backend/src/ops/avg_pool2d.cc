// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace tvm_example_npu {
namespace {

void AvgPool2D(Lowering& op) {
  LowerPool2D(op, op.Bool("count_include_pad") ? NPU_POOL_AVERAGE_INCLUDE_PAD : NPU_POOL_AVERAGE);
}

REGISTER_LOWERING("relax.nn.avg_pool2d", AvgPool2D);

}  // namespace
}  // namespace tvm_example_npu
