// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Sign(const Lowering&, VectorBuilder& v, const Values& x) {
  Value zero = v.Constant(0);
  return v.Subtract(v.Less(zero, x[0]), v.Less(x[0], zero));
}

REGISTER_ELEMENTWISE("relax.sign", Sign).AsStep(NPU_STEP_SIGN);

}  // namespace
}  // namespace npu
