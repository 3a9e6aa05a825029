// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Tan(const Lowering&, VectorBuilder& v, const Values& x) { return v.Tan(x[0]); }

REGISTER_ELEMENTWISE("relax.tan", Tan).AsStep(NPU_STEP_TAN);

}  // namespace
}  // namespace npu
