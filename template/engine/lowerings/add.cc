// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Add(const Lowering&, VectorBuilder& v, const Values& x) { return v.Add(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.add", Add).AsStep(NPU_STEP_ADD);

}  // namespace
}  // namespace npu
