// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Round(const Lowering&, VectorBuilder& v, const Values& x) { return v.RoundEven(x[0]); }

REGISTER_ELEMENTWISE("relax.round", Round).AsStep(NPU_STEP_ROUND_EVEN);

}  // namespace
}  // namespace npu
