// SPDX-License-Identifier: Apache-2.0
#include "conversion.h"
#include "lowering.h"

namespace npu {
namespace {

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
