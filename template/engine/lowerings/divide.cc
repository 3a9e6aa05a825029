// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Divide(const Lowering&, VectorBuilder& v, const Values& x) { return v.Divide(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.divide", Divide).AsStep(NPU_STEP_DIVIDE);

}  // namespace
}  // namespace npu
