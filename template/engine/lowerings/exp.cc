// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Exp(const Lowering&, VectorBuilder& v, const Values& x) { return v.Exp(x[0]); }

REGISTER_ELEMENTWISE("relax.exp", Exp).AsStep(NPU_STEP_EXP);

}  // namespace
}  // namespace npu
