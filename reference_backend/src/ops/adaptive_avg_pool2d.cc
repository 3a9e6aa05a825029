// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

void AdaptiveAvgPool2D(Lowering& op) {
  op.RequireOneOf("layout", {"NCHW"});
  op.RequireOneOf("out_layout", {"NCHW"});
  // The attribute output_size is in the shape of the output.
  npu_pool pool = {};
  pool.data = op.Input(0).id;
  pool.out = op.Output().id;
  pool.kind = NPU_POOL_AVERAGE_ADAPTIVE;
  pool.spatial_rank = 2;
  op.Emit(pool);
}

REGISTER_LOWERING("relax.nn.adaptive_avg_pool2d", AdaptiveAvgPool2D);

}  // namespace
}  // namespace tvm_example_npu
