// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Log(const Lowering&, VectorBuilder& v, const Values& x) { return v.Log(x[0]); }

REGISTER_ELEMENTWISE("relax.log", Log).AsStep(NPU_STEP_LOG);

}  // namespace
}  // namespace npu
