// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

/*! \brief The elements of `data`, to be stored as `dtype`. Floats are truncated to integers; the
 *  vector engine alone would round. */
Value Convert(VectorBuilder& v, const Tensor& data, npu_dtype dtype) {
  Value value = v.Load(data);
  bool cut = IsFloat(data.desc.dtype) && !IsFloat(dtype) && dtype != NPU_BOOL;
  return cut ? v.Truncate(value) : value;
}

void AsType(Lowering& op) {
  const Tensor out = op.Output();
  op.Elementwise(out, [&](VectorBuilder& v) { return Convert(v, op.Input(0), out.desc.dtype); });
}

REGISTER_LOWERING("relax.astype", AsType);

void FullLike(Lowering& op) {
  const Tensor out = op.Output();
  op.Elementwise(out, [&](VectorBuilder& v) { return Convert(v, op.Input(1), out.desc.dtype); });
}

REGISTER_LOWERING("relax.full_like", FullLike);

void ZerosLike(Lowering& op) {
  op.Elementwise(op.Output(), [](VectorBuilder& v) { return v.Constant(0); });
}

REGISTER_LOWERING("relax.zeros_like", ZerosLike);

void OnesLike(Lowering& op) {
  op.Elementwise(op.Output(), [](VectorBuilder& v) { return v.Constant(1); });
}

REGISTER_LOWERING("relax.ones_like", OnesLike);

}  // namespace
}  // namespace npu
