// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value FloorMod(const Lowering&, VectorBuilder& v, const Values& x) {
  // The result has the divisor's sign.
  Value zero = v.Constant(0);
  Value rest = v.Remainder(x[0], x[1]);
  Value differ = v.Subtract(v.Less(rest, zero), v.Less(x[1], zero));
  return v.Select(rest, v.Select(differ, v.Add(rest, x[1]), rest), rest);
}

REGISTER_ELEMENTWISE("relax.floor_mod", FloorMod);

}  // namespace
}  // namespace npu
