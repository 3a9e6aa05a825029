// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Rsqrt(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Divide(v.Constant(1), v.Sqrt(x[0]));
}

REGISTER_ELEMENTWISE("relax.rsqrt", Rsqrt).AsStep(NPU_STEP_RSQRT);

}  // namespace
}  // namespace npu
