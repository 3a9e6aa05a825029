// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LogicalXor(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(v.Equal(x[0], x[1]), v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.logical_xor", LogicalXor);

}  // namespace
}  // namespace npu
