// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Sqrt(const Lowering&, VectorBuilder& v, const Values& x) { return v.Sqrt(x[0]); }

REGISTER_ELEMENTWISE("relax.sqrt", Sqrt).AsStep(NPU_STEP_SQRT);

}  // namespace
}  // namespace npu
