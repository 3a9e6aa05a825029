// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

Value Round(const Lowering&, VectorBuilder& v, const Values& x) { return v.RoundEven(x[0]); }

REGISTER_ELEMENTWISE("relax.round", Round);

}  // namespace
}  // namespace tvm_example_npu
