// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

void OnesLike(Lowering& op) {
  op.Elementwise(op.Output(), [](VectorBuilder& v) { return v.Constant(1); });
}

REGISTER_LOWERING("relax.ones_like", OnesLike);

}  // namespace
}  // namespace npu
