// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LeakyRelu(const Lowering& op, VectorBuilder& v, const Values& x) {
  Value scaled = v.Multiply(x[0], v.Constant(op.Float("alpha")));
  return v.Select(v.Less(v.Constant(0), x[0]), x[0], scaled);
}

REGISTER_ELEMENTWISE("relax.nn.leakyrelu", LeakyRelu).AsStep(NPU_STEP_LEAKY_RELU, {"alpha"});

}  // namespace
}  // namespace npu
