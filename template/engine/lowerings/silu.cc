// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Silu(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], v.Sigmoid(x[0]));
}

REGISTER_ELEMENTWISE("relax.nn.silu", Silu).AsStep(NPU_STEP_SILU);

}  // namespace
}  // namespace npu
