// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

namespace npu {
namespace {

Value Softplus(const Lowering& op, VectorBuilder& v, const Values& x) {
  const double beta = op.Float("beta");
  // log(1 + exp(s)) = max(s, 0) + log(1 + exp(-|s|)), which cannot overflow.
  Value scaled = v.Multiply(x[0], v.Constant(beta));
  Value small = v.Exp(v.Multiply(v.Absolute(scaled), v.Constant(-1)));
  Value rest = v.Log(v.Add(v.Constant(1), small));
  Value soft = v.Add(v.Maximum(scaled, v.Constant(0)), rest);
  Value linear = v.Less(v.Constant(op.Float("threshold")), scaled);
  return v.Select(linear, x[0], v.Multiply(soft, v.Constant(1 / beta)));
}

REGISTER_ELEMENTWISE("relax.nn.softplus", Softplus)
    .AsStep(NPU_STEP_SOFTPLUS, {"beta", "threshold"});

}  // namespace
}  // namespace npu
