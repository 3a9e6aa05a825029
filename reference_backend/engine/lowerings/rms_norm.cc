// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "normalization.h"

namespace npu {
namespace {

void RmsNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const std::vector<int64_t> axes = NormalizedAxes(op);
  const Tensor weight = op.View(op.Input(1), DimsAt(data.dims(), axes, true));
  const Tensor square = op.Temporary(NPU_FLOAT32, data.dims());
  op.Elementwise(square, [&](VectorBuilder& v) { return v.Multiply(v.Load(data), v.Load(data)); });
  const Tensor factor = InverseRoot(op, square, axes, op.Float("epsilon"));
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return v.Multiply(v.Multiply(v.Load(data), v.Load(factor)), v.Load(weight));
  });
}

REGISTER_LOWERING("relax.nn.rms_norm", RmsNorm);

}  // namespace
}  // namespace npu
