// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace tvm_example_npu {
namespace {

void LogSoftmax(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  std::vector<npu_dim> kept = data.dims();
  kept[axis] = FixedDim(1);

  // Without the maximum, exp would overflow.
  const Tensor maximum = op.Temporary(NPU_FLOAT32, kept);
  op.Reduce(NPU_REDUCE_MAX, data, {axis}, maximum);
  const Tensor exponential = op.Temporary(NPU_FLOAT32, data.dims());
  op.Elementwise(exponential, [&](VectorBuilder& v) {
    return v.Exp(v.Subtract(v.Load(data), v.Load(maximum)));
  });
  const Tensor log_sum = op.Temporary(NPU_FLOAT32, kept);
  op.Reduce(NPU_REDUCE_SUM, exponential, {axis}, log_sum,
            [](VectorBuilder& v, Value sum) { return v.Log(sum); });
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return v.Subtract(v.Subtract(v.Load(data), v.Load(maximum)), v.Load(log_sum));
  });
}

REGISTER_LOWERING("relax.nn.log_softmax", LogSoftmax);

}  // namespace
}  // namespace tvm_example_npu
