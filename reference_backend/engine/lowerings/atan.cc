// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Atan(const Lowering&, VectorBuilder& v, const Values& x) { return v.Atan(x[0]); }

REGISTER_ELEMENTWISE("relax.atan", Atan).AsStep(NPU_STEP_ATAN);

}  // namespace
}  // namespace npu
