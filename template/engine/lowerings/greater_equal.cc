// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value GreaterEqual(const Lowering&, VectorBuilder& v, const Values& x) {
  // Not the opposite of less: NaN is neither.
  return v.Maximum(v.Less(x[1], x[0]), v.Equal(x[0], x[1]));
}

REGISTER_ELEMENTWISE("relax.greater_equal", GreaterEqual);

}  // namespace
}  // namespace npu
