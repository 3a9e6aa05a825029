// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value NotEqual(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Equal(v.Equal(x[0], x[1]), v.Constant(0));
}

REGISTER_ELEMENTWISE("relax.not_equal", NotEqual);

}  // namespace
}  // namespace npu
