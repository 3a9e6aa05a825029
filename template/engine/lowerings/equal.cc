// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Equal(const Lowering&, VectorBuilder& v, const Values& x) { return v.Equal(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.equal", Equal).AsStep(NPU_STEP_EQUAL);

}  // namespace
}  // namespace npu
