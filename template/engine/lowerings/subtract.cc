// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Subtract(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Subtract(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.subtract", Subtract).AsStep(NPU_STEP_SUBTRACT);

}  // namespace
}  // namespace npu
