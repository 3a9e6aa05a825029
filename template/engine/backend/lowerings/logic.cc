// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LogicalNot(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(x[0], v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.logical_not", LogicalNot);

Value Equal(const Lowering&, VectorBuilder& v, const Values& x) { return v.Equal(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.equal", Equal).AsStep(NPU_STEP_EQUAL);

Value NotEqual(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(v.Equal(x[0], x[1]), v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.not_equal", NotEqual);

Value Less(const Lowering&, VectorBuilder& v, const Values& x) { return v.Less(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.less", Less).AsStep(NPU_STEP_LESS);

Value LessEqual(const Lowering&, VectorBuilder& v, const Values& x) {
  // Not the opposite of greater: NaN is neither.
  return v.Maximum(v.Less(x[0], x[1]), v.Equal(x[0], x[1]));
}

REGISTER_ELEMENTWISE("relax.less_equal", LessEqual);

Value Greater(const Lowering&, VectorBuilder& v, const Values& x) { return v.Less(x[1], x[0]); }

REGISTER_ELEMENTWISE("relax.greater", Greater);

Value GreaterEqual(const Lowering&, VectorBuilder& v, const Values& x) {
  // Not the opposite of less: NaN is neither.
  return v.Maximum(v.Less(x[1], x[0]), v.Equal(x[0], x[1]));
}

REGISTER_ELEMENTWISE("relax.greater_equal", GreaterEqual);

Value LogicalAnd(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.logical_and", LogicalAnd);

Value LogicalOr(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.logical_or", LogicalOr);

Value LogicalXor(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(v.Equal(x[0], x[1]), v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.logical_xor", LogicalXor);

Value BitwiseAnd(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.bitwise_and", BitwiseAnd);

Value BitwiseOr(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.bitwise_or", BitwiseOr);

Value BitwiseXor(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(v.Equal(x[0], x[1]), v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.bitwise_xor", BitwiseXor);

Value BitwiseNot(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(x[0], v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.bitwise_not", BitwiseNot);

Value Where(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Select(x[0], x[1], x[2]);
}

REGISTER_ELEMENTWISE("relax.where", Where).AsStep(NPU_STEP_SELECT);

// Slices that are replaced, which codegen/updates.h has found.
bool ReplacesSlices(const Lowering& op) { return !op.IsNone("update_axis"); }

void Update(Lowering& op) {
  npu_update update = {};
  const Tensor data = op.Input(0);
  const Tensor positions = op.Input(2);
  std::vector<npu_dim> slices = data.dims();
  update.axis = static_cast<int32_t>(op.Int("update_axis"));
  int64_t count = 1;
  for (int i = 0; i < positions.rank(); ++i) count *= op.FixedSize(positions, i);
  slices[update.axis] = FixedDim(count);
  update.data = data.id;
  update.value = op.View(op.Input(1), slices).id;
  update.positions = op.View(positions, {FixedDim(count)}).id;
  update.out = op.Output().id;
  op.Emit(update);
}

REGISTER_LOWERING("relax.where", Update).When(ReplacesSlices);

}  // namespace
}  // namespace npu
