// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value LogicalOr(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.Maximum(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.logical_or", LogicalOr);

}  // namespace
}  // namespace npu
