// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value BitwiseOr(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.bitwise_or", BitwiseOr);

}  // namespace
}  // namespace npu
