// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Sin(const Lowering&, VectorBuilder& v, const Values& x) { return v.Sin(x[0]); }

REGISTER_ELEMENTWISE("relax.sin", Sin).AsStep(NPU_STEP_SIN);

}  // namespace
}  // namespace npu
