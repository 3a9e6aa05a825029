// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Multiply(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.multiply", Multiply).AsStep(NPU_STEP_MULTIPLY);

}  // namespace
}  // namespace npu
