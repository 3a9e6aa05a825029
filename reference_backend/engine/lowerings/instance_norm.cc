// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "normalization.h"

namespace npu {
namespace {

void InstanceNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t channel = (op.Int("channel_axis") + data.rank()) % data.rank();
  const std::vector<npu_dim> dims = DimsAt(data.dims(), {channel}, true);
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);
  Normalize(op, data, NormalizedAxes(op), gamma, beta, op.Output());
}

REGISTER_LOWERING("relax.nn.instance_norm", InstanceNorm);

}  // namespace
}  // namespace npu
