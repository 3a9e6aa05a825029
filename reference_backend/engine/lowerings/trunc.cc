// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Trunc(const Lowering&, VectorBuilder& v, const Values& x) { return v.Truncate(x[0]); }

REGISTER_ELEMENTWISE("relax.trunc", Trunc).AsStep(NPU_STEP_TRUNCATE);

}  // namespace
}  // namespace npu
