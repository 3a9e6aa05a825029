// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LessEqual(const Lowering&, VectorBuilder& v, const Values& x) {
  // Not the opposite of greater: NaN is neither.
  return v.Maximum(v.Less(x[0], x[1]), v.Equal(x[0], x[1]));
}

REGISTER_ELEMENTWISE("relax.less_equal", LessEqual);

}  // namespace
}  // namespace npu
