// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

Value Relu(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.nn.relu", Relu).AsStep(NPU_STEP_RELU);

Value Clip(const Lowering& op, VectorBuilder& v, const Values& x) {
  const double min = op.Float("min");
  const double max = op.Float("max");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Value value = x[0];
  // Front ends write an absent limit as infinity, also for integers.
  if (min != -kInfinity) value = v.Maximum(value, v.Constant(min));
  if (max != kInfinity) value = v.Minimum(value, v.Constant(max));
  return value;
}

REGISTER_ELEMENTWISE("relax.clip", Clip).AsStep(NPU_STEP_CLIP, {"min", "max"});

Value Sigmoid(const Lowering&, VectorBuilder& v, const Values& x) { return v.Sigmoid(x[0]); }

REGISTER_ELEMENTWISE("relax.sigmoid", Sigmoid).AsStep(NPU_STEP_SIGMOID);

Value Tanh(const Lowering&, VectorBuilder& v, const Values& x) { return v.Tanh(x[0]); }

REGISTER_ELEMENTWISE("relax.tanh", Tanh).AsStep(NPU_STEP_TANH);

Value Gelu(const Lowering&, VectorBuilder& v, const Values& x) {
  // x * (1 + erf(x / sqrt(2))) / 2
  Value erf = v.Erf(v.Multiply(x[0], v.Constant(0.70710678118654752)));
  return v.Multiply(x[0], v.Add(v.Constant(0.5), v.Multiply(erf, v.Constant(0.5))));
}

REGISTER_ELEMENTWISE("relax.nn.gelu", Gelu).AsStep(NPU_STEP_GELU);

Value Silu(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], v.Sigmoid(x[0]));
}

REGISTER_ELEMENTWISE("relax.nn.silu", Silu).AsStep(NPU_STEP_SILU);

Value LeakyRelu(const Lowering& op, VectorBuilder& v, const Values& x) {
  Value scaled = v.Multiply(x[0], v.Constant(op.Float("alpha")));
  return v.Select(v.Less(v.Constant(0), x[0]), x[0], scaled);
}

REGISTER_ELEMENTWISE("relax.nn.leakyrelu", LeakyRelu).AsStep(NPU_STEP_LEAKY_RELU, {"alpha"});

void PRelu(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor alpha = op.Input(1);
  const int64_t axis = (op.Int("axis") + data.rank()) % data.rank();
  std::vector<npu_dim> dims = alpha.dims();
  dims.resize(data.rank() - axis, FixedDim(1));
  const Tensor slope = op.View(alpha, dims);
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    Value x = v.Load(data);
    Value factor = v.Load(slope);
    Value result = v.Select(v.Less(v.Constant(0), x), x, v.Multiply(x, factor));
    return v.AsStep(NPU_STEP_PRELU, "relax.nn.prelu", {x, factor}, result);
  });
}

REGISTER_LOWERING("relax.nn.prelu", PRelu);

Value Selu(const Lowering&, VectorBuilder& v, const Values& x) {
  // The paper's constants, which make a network self-normalizing.
  Value alpha = v.Constant(1.6732632423543772);
  Value negative = v.Multiply(alpha, v.Subtract(v.Exp(x[0]), v.Constant(1)));
  Value result = v.Select(v.Less(v.Constant(0), x[0]), x[0], negative);
  return v.Multiply(result, v.Constant(1.0507009873554805));
}

REGISTER_ELEMENTWISE("relax.nn.selu", Selu).AsStep(NPU_STEP_SELU);

Value GeluTanh(const Lowering&, VectorBuilder& v, const Values& x) {
  // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2
  Value square = v.Multiply(x[0], x[0]);
  Value factor = v.Add(v.Constant(1), v.Multiply(square, v.Constant(0.044715)));
  Value inner = v.Multiply(v.Multiply(x[0], v.Constant(0.79788456080286536)), factor);
  Value half = v.Constant(0.5);
  return v.Multiply(x[0], v.Add(half, v.Multiply(v.Tanh(inner), half)));
}

REGISTER_ELEMENTWISE("relax.nn.gelu_tanh", GeluTanh).AsStep(NPU_STEP_GELU_TANH);

Value Softplus(const Lowering& op, VectorBuilder& v, const Values& x) {
  const double beta = op.Float("beta");
  // log(1 + exp(s)) = max(s, 0) + log(1 + exp(-|s|)), which cannot overflow.
  Value scaled = v.Multiply(x[0], v.Constant(beta));
  Value small = v.Exp(v.Multiply(v.Absolute(scaled), v.Constant(-1)));
  Value rest = v.Log(v.Add(v.Constant(1), small));
  Value soft = v.Add(v.Maximum(scaled, v.Constant(0)), rest);
  Value linear = v.Less(v.Constant(op.Float("threshold")), scaled);
  return v.Select(linear, x[0], v.Multiply(soft, v.Constant(1 / beta)));
}

REGISTER_ELEMENTWISE("relax.nn.softplus", Softplus)
    .AsStep(NPU_STEP_SOFTPLUS, {"beta", "threshold"});

}  // namespace
}  // namespace npu
