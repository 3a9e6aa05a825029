// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

Value Relu(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.nn.relu", Relu);

}  // namespace
}  // namespace tvm_example_npu
