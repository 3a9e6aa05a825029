// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Sigmoid(const Lowering&, VectorBuilder& v, const Values& x) { return v.Sigmoid(x[0]); }

REGISTER_ELEMENTWISE("relax.sigmoid", Sigmoid).AsStep(NPU_STEP_SIGMOID);

}  // namespace
}  // namespace npu
