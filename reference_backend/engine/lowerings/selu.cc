// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Selu(const Lowering&, VectorBuilder& v, const Values& x) {
  // The paper's constants, which make a network self-normalizing.
  Value alpha = v.Constant(1.6732632423543772);
  Value negative = v.Multiply(alpha, v.Subtract(v.Exp(x[0]), v.Constant(1)));
  Value result = v.Select(v.Less(v.Constant(0), x[0]), x[0], negative);
  return v.Multiply(result, v.Constant(1.0507009873554805));
}

REGISTER_ELEMENTWISE("relax.nn.selu", Selu).AsStep(NPU_STEP_SELU);

}  // namespace
}  // namespace npu
