// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Maximum(const Lowering&, VectorBuilder& v, const Values& x) { return v.Maximum(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.maximum", Maximum).AsStep(NPU_STEP_MAXIMUM);

}  // namespace
}  // namespace npu
