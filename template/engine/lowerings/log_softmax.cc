// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void LogSoftmax(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  Tensor maximum;
  const Tensor exponential = op.Exponentials(data, axis, &maximum);
  const Tensor log_sum = op.Temporary(NPU_FLOAT32, maximum.dims());
  op.Reduce(NPU_REDUCE_SUM, exponential, {axis}, log_sum,
            [](VectorBuilder& v, Value sum) { return v.Log(sum); });
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return v.Subtract(v.Subtract(v.Load(data), v.Load(maximum)), v.Load(log_sum));
  });
}

REGISTER_LOWERING("relax.nn.log_softmax", LogSoftmax);

}  // namespace
}  // namespace npu
