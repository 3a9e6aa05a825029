// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "normalization.h"

namespace npu {
namespace {

void LayerNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const std::vector<int64_t> axes = NormalizedAxes(op);
  const std::vector<npu_dim> dims = DimsAt(data.dims(), axes, true);
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);
  Normalize(op, data, axes, gamma, beta, op.Output());
}

REGISTER_LOWERING("relax.nn.layer_norm", LayerNorm);

}  // namespace
}  // namespace npu
