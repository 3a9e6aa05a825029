// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Ceil(const Lowering&, VectorBuilder& v, const Values& x) {
  Value minus = v.Constant(-1);
  return v.Multiply(v.Floor(v.Multiply(x[0], minus)), minus);
}

REGISTER_ELEMENTWISE("relax.ceil", Ceil).AsStep(NPU_STEP_CEIL);

}  // namespace
}  // namespace npu
