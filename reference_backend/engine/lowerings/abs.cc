// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Abs(const Lowering&, VectorBuilder& v, const Values& x) { return v.Absolute(x[0]); }

REGISTER_ELEMENTWISE("relax.abs", Abs).AsStep(NPU_STEP_ABSOLUTE);

}  // namespace
}  // namespace npu
