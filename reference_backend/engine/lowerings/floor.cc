// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Floor(const Lowering&, VectorBuilder& v, const Values& x) { return v.Floor(x[0]); }

REGISTER_ELEMENTWISE("relax.floor", Floor).AsStep(NPU_STEP_FLOOR);

}  // namespace
}  // namespace npu
