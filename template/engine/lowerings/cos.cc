// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Cos(const Lowering&, VectorBuilder& v, const Values& x) { return v.Cos(x[0]); }

REGISTER_ELEMENTWISE("relax.cos", Cos).AsStep(NPU_STEP_COS);

}  // namespace
}  // namespace npu
