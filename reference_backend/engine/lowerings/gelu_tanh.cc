// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value GeluTanh(const Lowering&, VectorBuilder& v, const Values& x) {
  // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2
  Value square = v.Multiply(x[0], x[0]);
  Value factor = v.Add(v.Constant(1), v.Multiply(square, v.Constant(0.044715)));
  Value inner = v.Multiply(v.Multiply(x[0], v.Constant(0.79788456080286536)), factor);
  Value half = v.Constant(0.5);
  return v.Multiply(x[0], v.Add(half, v.Multiply(v.Tanh(inner), half)));
}

REGISTER_ELEMENTWISE("relax.nn.gelu_tanh", GeluTanh).AsStep(NPU_STEP_GELU_TANH);

}  // namespace
}  // namespace npu
