// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace tvm_example_npu {
namespace {

Value Exp(const Lowering&, VectorBuilder& v, const Values& x) { return v.Exp(x[0]); }

REGISTER_ELEMENTWISE("relax.exp", Exp);

}  // namespace
}  // namespace tvm_example_npu
