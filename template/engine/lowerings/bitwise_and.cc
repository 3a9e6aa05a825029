// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value BitwiseAnd(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Multiply(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.bitwise_and", BitwiseAnd);

}  // namespace
}  // namespace npu
