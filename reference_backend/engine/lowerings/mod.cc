// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Mod(const Lowering&, VectorBuilder& v, const Values& x) { return v.Remainder(x[0], x[1]); }

REGISTER_ELEMENTWISE("relax.mod", Mod);

}  // namespace
}  // namespace npu
