// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Minimum(const Lowering&, VectorBuilder& v, const Values& x) { return v.Minimum(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.minimum", Minimum).AsStep(NPU_STEP_MINIMUM);

}  // namespace
}  // namespace npu
