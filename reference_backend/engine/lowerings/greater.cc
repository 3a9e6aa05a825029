// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Greater(const Lowering&, VectorBuilder& v, const Values& x) { return v.Less(x[1], x[0]); }

REGISTER_ELEMENTWISE("relax.greater", Greater);

}  // namespace
}  // namespace npu
