// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void Softmax(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  Tensor maximum;
  const Tensor exponential = op.Exponentials(data, axis, &maximum);
  const Tensor sum = op.Temporary(NPU_FLOAT32, maximum.dims());
  op.Reduce(NPU_REDUCE_SUM, exponential, {axis}, sum);
  op.Elementwise(op.Output(),
                 [&](VectorBuilder& v) { return v.Divide(v.Load(exponential), v.Load(sum)); });
}

REGISTER_LOWERING("relax.nn.softmax", Softmax);

}  // namespace
}  // namespace npu
