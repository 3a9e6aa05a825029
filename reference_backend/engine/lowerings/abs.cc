// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Abs(const Lowering&, VectorBuilder& v, const Values& x) { return v.Absolute(x[0]); }

REGISTER_ELEMENTWISE("relax.abs", Abs);

}  // namespace
}  // namespace npu
