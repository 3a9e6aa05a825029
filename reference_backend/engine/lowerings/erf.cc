// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Erf(const Lowering&, VectorBuilder& v, const Values& x) { return v.Erf(x[0]); }

REGISTER_ELEMENTWISE("relax.erf", Erf).AsStep(NPU_STEP_ERF);

}  // namespace
}  // namespace npu
