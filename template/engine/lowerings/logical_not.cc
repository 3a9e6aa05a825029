// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LogicalNot(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(x[0], v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.logical_not", LogicalNot);

}  // namespace
}  // namespace npu
