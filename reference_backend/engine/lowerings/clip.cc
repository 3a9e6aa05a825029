// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "lowering.h"

namespace npu {
namespace {

Value Clip(const Lowering& op, VectorBuilder& v, const Values& x) {
  const double min = op.Float("min");
  const double max = op.Float("max");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Value value = x[0];
  // Front ends write an absent limit as infinity, also for integers.
  if (min != -kInfinity) value = v.Maximum(value, v.Constant(min));
  if (max != kInfinity) value = v.Minimum(value, v.Constant(max));
  return value;
}

REGISTER_ELEMENTWISE("relax.clip", Clip).AsStep(NPU_STEP_CLIP, {"min", "max"});

}  // namespace
}  // namespace npu
