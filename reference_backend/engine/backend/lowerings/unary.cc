// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Erf(const Lowering&, VectorBuilder& v, const Values& x) { return v.Erf(x[0]); }

REGISTER_ELEMENTWISE("relax.erf", Erf).AsStep(NPU_STEP_ERF);

Value Abs(const Lowering&, VectorBuilder& v, const Values& x) { return v.Absolute(x[0]); }

REGISTER_ELEMENTWISE("relax.abs", Abs).AsStep(NPU_STEP_ABSOLUTE);

Value Ceil(const Lowering&, VectorBuilder& v, const Values& x) {
  Value minus = v.Constant(-1);
  return v.Multiply(v.Floor(v.Multiply(x[0], minus)), minus);
}

REGISTER_ELEMENTWISE("relax.ceil", Ceil).AsStep(NPU_STEP_CEIL);

Value Floor(const Lowering&, VectorBuilder& v, const Values& x) { return v.Floor(x[0]); }

REGISTER_ELEMENTWISE("relax.floor", Floor).AsStep(NPU_STEP_FLOOR);

Value Round(const Lowering&, VectorBuilder& v, const Values& x) { return v.RoundEven(x[0]); }

REGISTER_ELEMENTWISE("relax.round", Round).AsStep(NPU_STEP_ROUND_EVEN);

Value Trunc(const Lowering&, VectorBuilder& v, const Values& x) { return v.Truncate(x[0]); }

REGISTER_ELEMENTWISE("relax.trunc", Trunc).AsStep(NPU_STEP_TRUNCATE);

Value Exp(const Lowering&, VectorBuilder& v, const Values& x) { return v.Exp(x[0]); }

REGISTER_ELEMENTWISE("relax.exp", Exp).AsStep(NPU_STEP_EXP);

Value Log(const Lowering&, VectorBuilder& v, const Values& x) { return v.Log(x[0]); }

REGISTER_ELEMENTWISE("relax.log", Log).AsStep(NPU_STEP_LOG);

Value Sqrt(const Lowering&, VectorBuilder& v, const Values& x) { return v.Sqrt(x[0]); }

REGISTER_ELEMENTWISE("relax.sqrt", Sqrt).AsStep(NPU_STEP_SQRT);

Value Rsqrt(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Divide(v.Constant(1), v.Sqrt(x[0]));
}

REGISTER_ELEMENTWISE("relax.rsqrt", Rsqrt).AsStep(NPU_STEP_RSQRT);

Value Square(const Lowering&, VectorBuilder& v, const Values& x) { return v.Multiply(x[0], x[0]); }

REGISTER_ELEMENTWISE("relax.square", Square).AsStep(NPU_STEP_SQUARE);

Value Negative(const Lowering&, VectorBuilder& v, const Values& x) {
  // Unlike 0 - x, this makes -0 of 0.
  return v.Multiply(x[0], v.Constant(-1));
}

REGISTER_ELEMENTWISE("relax.negative", Negative).AsStep(NPU_STEP_NEGATE);

Value Sign(const Lowering&, VectorBuilder& v, const Values& x) {
  Value zero = v.Constant(0);
  return v.Subtract(v.Less(zero, x[0]), v.Less(x[0], zero));
}

REGISTER_ELEMENTWISE("relax.sign", Sign).AsStep(NPU_STEP_SIGN);

Value Sin(const Lowering&, VectorBuilder& v, const Values& x) { return v.Sin(x[0]); }

REGISTER_ELEMENTWISE("relax.sin", Sin).AsStep(NPU_STEP_SIN);

Value Cos(const Lowering&, VectorBuilder& v, const Values& x) { return v.Cos(x[0]); }

REGISTER_ELEMENTWISE("relax.cos", Cos).AsStep(NPU_STEP_COS);

Value Tan(const Lowering&, VectorBuilder& v, const Values& x) { return v.Tan(x[0]); }

REGISTER_ELEMENTWISE("relax.tan", Tan).AsStep(NPU_STEP_TAN);

Value Atan(const Lowering&, VectorBuilder& v, const Values& x) { return v.Atan(x[0]); }

REGISTER_ELEMENTWISE("relax.atan", Atan).AsStep(NPU_STEP_ATAN);

}  // namespace
}  // namespace npu
