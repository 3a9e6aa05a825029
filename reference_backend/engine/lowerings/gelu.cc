// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Gelu(const Lowering&, VectorBuilder& v, const Values& x) {
  // x * (1 + erf(x / sqrt(2))) / 2
  Value erf = v.Erf(v.Multiply(x[0], v.Constant(0.70710678118654752)));
  return v.Multiply(x[0], v.Add(v.Constant(0.5), v.Multiply(erf, v.Constant(0.5))));
}

REGISTER_ELEMENTWISE("relax.nn.gelu", Gelu).AsStep(NPU_STEP_GELU);

}  // namespace
}  // namespace npu
