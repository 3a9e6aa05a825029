// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

void OnesLike(Lowering& op) {
  op.Elementwise(op.Output(), [](VectorBuilder& v) { return v.Constant(1); });
}

REGISTER_LOWERING("relax.ones_like", OnesLike);

}  // namespace
}  // namespace tvm_example_npu
