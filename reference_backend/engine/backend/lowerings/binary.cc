// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

/*! \brief Whether two quantized tensors are added, say, without real numbers. */
bool RescalesElements(const Lowering& op) { return op.RescalesElements(); }

template <Value (*combine)(const Lowering&, VectorBuilder&, const Values&)>
void OnIntegers(Lowering& op) {
  op.RescaledElements([&](VectorBuilder& v, const Values& x) { return combine(op, v, x); });
}

Value Add(const Lowering&, VectorBuilder& v, const Values& x) { return v.Add(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.add", Add).AsStep(NPU_STEP_ADD);
REGISTER_LOWERING("relax.add", OnIntegers<Add>).When(RescalesElements).TakesQuantized();

Value Subtract(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Subtract(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.subtract", Subtract).AsStep(NPU_STEP_SUBTRACT);
REGISTER_LOWERING("relax.subtract", OnIntegers<Subtract>).When(RescalesElements).TakesQuantized();

Value Multiply(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.multiply", Multiply).AsStep(NPU_STEP_MULTIPLY);
REGISTER_LOWERING("relax.multiply", OnIntegers<Multiply>).When(RescalesElements).TakesQuantized();

Value Divide(const Lowering&, VectorBuilder& v, const Values& x) { return v.Divide(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.divide", Divide).AsStep(NPU_STEP_DIVIDE);

Value Power(const Lowering&, VectorBuilder& v, const Values& x) { return v.Power(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.power", Power).AsStep(NPU_STEP_POWER);

Value Maximum(const Lowering&, VectorBuilder& v, const Values& x) { return v.Maximum(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.maximum", Maximum).AsStep(NPU_STEP_MAXIMUM);
REGISTER_LOWERING("relax.maximum", OnIntegers<Maximum>).When(RescalesElements).TakesQuantized();

Value Minimum(const Lowering&, VectorBuilder& v, const Values& x) { return v.Minimum(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.minimum", Minimum).AsStep(NPU_STEP_MINIMUM);
REGISTER_LOWERING("relax.minimum", OnIntegers<Minimum>).When(RescalesElements).TakesQuantized();

Value FloorDivide(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.FloorDivide(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.floor_divide", FloorDivide);

Value Mod(const Lowering&, VectorBuilder& v, const Values& x) { return v.Remainder(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.mod", Mod);

Value FloorMod(const Lowering&, VectorBuilder& v, const Values& x) {
  // The result has the divisor's sign.
  Value zero = v.Constant(0);
  Value rest = v.Remainder(x[0], x[1]);
  Value differ = v.Subtract(v.Less(rest, zero), v.Less(x[1], zero));
  return v.Select(rest, v.Select(differ, v.Add(rest, x[1]), rest), rest);
}

REGISTER_ELEMENTWISE("relax.floor_mod", FloorMod);

}  // namespace
}  // namespace npu
