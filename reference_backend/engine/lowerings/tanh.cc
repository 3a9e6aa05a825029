// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Tanh(const Lowering&, VectorBuilder& v, const Values& x) { return v.Tanh(x[0]); }

REGISTER_ELEMENTWISE("relax.tanh", Tanh).AsStep(NPU_STEP_TANH);

}  // namespace
}  // namespace npu
