// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

void ZerosLike(Lowering& op) {
  op.Elementwise(op.Output(), [](VectorBuilder& v) { return v.Constant(0); });
}

REGISTER_LOWERING("relax.zeros_like", ZerosLike);

}  // namespace
}  // namespace npu
