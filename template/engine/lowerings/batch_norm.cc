// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void BatchNorm(Lowering& op) {
  if (op.Bool("training")) op.Refuse("training mode is not supported; supported: training=False");
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  const bool has_gamma = op.Bool("scale");
  const bool has_beta = op.Bool("center");
  const double epsilon = op.Float("epsilon");

  // The statistics along the axis, in a shape that broadcasts against the data.
  std::vector<npu_dim> dims(rank - axis, FixedDim(1));
  dims[0] = data.dims()[axis];
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);
  const Tensor mean = op.View(op.Input(3), dims);
  const Tensor variance = op.View(op.Input(4), dims);

  const Tensor factor = op.Temporary(NPU_FLOAT32, dims);
  op.Elementwise(factor, [&](VectorBuilder& v) {
    Value numerator = has_gamma ? v.Load(gamma) : v.Constant(1);
    return v.Divide(numerator, v.Sqrt(v.Add(v.Load(variance), v.Constant(epsilon))));
  });
  op.Elementwise(op.Output(0), [&](VectorBuilder& v) {
    Value result = v.Multiply(v.Subtract(v.Load(data), v.Load(mean)), v.Load(factor));
    return has_beta ? v.Add(result, v.Load(beta)) : result;
  });
  // Without training the statistics do not change, and momentum has no effect.
  op.SetOutput(1, op.Input(3));
  op.SetOutput(2, op.Input(4));
}

REGISTER_LOWERING("relax.nn.batch_norm", BatchNorm);

}  // namespace
}  // namespace npu
