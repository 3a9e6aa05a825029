// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

void ZerosLike(Lowering& op) {
  op.Elementwise(op.Output(), [](VectorBuilder& v) { return v.Constant(0); });
}

REGISTER_LOWERING("relax.zeros_like", ZerosLike);

}  // namespace
}  // namespace tvm_example_npu
