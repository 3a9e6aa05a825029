// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Relu(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.nn.relu", Relu).AsStep(NPU_STEP_RELU);

}  // namespace
}  // namespace npu
