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

}  // namespace
}  // namespace npu
