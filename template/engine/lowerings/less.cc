// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Less(const Lowering&, VectorBuilder& v, const Values& x) { return v.Less(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.less", Less).AsStep(NPU_STEP_LESS);

}  // namespace
}  // namespace npu
