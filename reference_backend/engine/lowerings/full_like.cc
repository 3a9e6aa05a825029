// SPDX-License-Identifier: Apache-2.0
#include "conversion.h"
#include "lowering.h"

namespace npu {
namespace {

void FullLike(Lowering& op) {
  const Tensor out = op.Output();
  op.Elementwise(out, [&](VectorBuilder& v) { return Convert(v, op.Input(1), out.desc.dtype); });
}

REGISTER_LOWERING("relax.full_like", FullLike);

}  // namespace
}  // namespace npu
