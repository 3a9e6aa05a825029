// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Negative(const Lowering&, VectorBuilder& v, const Values& x) {
  // Unlike 0 - x, this makes -0 of 0.
  return v.Multiply(x[0], v.Constant(-1));
}

REGISTER_ELEMENTWISE("relax.negative", Negative).AsStep(NPU_STEP_NEGATE);

}  // namespace
}  // namespace npu
