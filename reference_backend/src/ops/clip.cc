// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "lowering.h"

namespace tvm_example_npu {
namespace {

Value Clip(const Lowering& op, VectorBuilder& v, const Values& x) {
  const double min = op.Float("min");
  const double max = op.Float("max");
  for (double bound : {min, max}) {
    // Relax has bounds as float64, which cannot tell larger integers apart.
    bool whole = std::trunc(bound) == bound && std::abs(bound) < 0x1p53;
    if (!whole && !IsFloat(op.OutputDtype())) {
      op.Refuse("its data are integers; supported: min and max that are integers, too, below 2^53");
    }
  }
  return v.Minimum(v.Maximum(x[0], v.Constant(min)), v.Constant(max));
}

REGISTER_ELEMENTWISE("relax.clip", Clip);

}  // namespace
}  // namespace tvm_example_npu
