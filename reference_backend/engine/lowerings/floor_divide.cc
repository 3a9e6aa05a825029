// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value FloorDivide(const Lowering&, VectorBuilder& v, const Values& x) {
  return v.FloorDivide(x[0], x[1]);
}

REGISTER_ELEMENTWISE("relax.floor_divide", FloorDivide);

}  // namespace
}  // namespace npu
