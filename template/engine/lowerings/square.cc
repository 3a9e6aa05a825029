// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Square(const Lowering&, VectorBuilder& v, const Values& x) { return v.Multiply(x[0], x[0]); }

REGISTER_ELEMENTWISE("relax.square", Square).AsStep(NPU_STEP_SQUARE);

}  // namespace
}  // namespace npu
