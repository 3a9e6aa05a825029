// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LogicalAnd(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.logical_and", LogicalAnd);

}  // namespace
}  // namespace npu
