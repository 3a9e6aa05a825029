// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Where(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Select(x[0], x[1], x[2]);
}

REGISTER_ELEMENTWISE("relax.where", Where).AsStep(NPU_STEP_SELECT);

}  // namespace
}  // namespace npu
