// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "pool.h"

namespace tvm_example_npu {
namespace {

// The attribute count_include_pad means nothing here: padding is never the maximum.
void MaxPool2D(Lowering& op) { LowerPool2D(op, NPU_POOL_MAX); }

REGISTER_LOWERING("relax.nn.max_pool2d", MaxPool2D);

}  // namespace
}  // namespace tvm_example_npu
