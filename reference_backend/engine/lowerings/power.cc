// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Power(const Lowering&, VectorBuilder& v, const Values& x) { return v.Power(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.power", Power).AsStep(NPU_STEP_POWER);

}  // namespace
}  // namespace npu
