// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "normalization.h"

namespace npu {
namespace {

void GroupNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t channel = (op.Int("channel_axis") + data.rank()) % data.rank();
  const int64_t groups = op.Int("num_groups");
  const int64_t size = op.FixedSize(data, static_cast<int>(channel)) / groups;

  // The channels become two dimensions: groups, and channels of a group.
  std::vector<npu_dim> dims = data.dims();
  dims[channel] = FixedDim(groups);
  dims.insert(dims.begin() + channel + 1, FixedDim(size));
  std::vector<int64_t> axes = {channel + 1};
  for (int64_t axis : NormalizedAxes(op)) axes.push_back(axis > channel ? axis + 1 : axis);
  const std::vector<npu_dim> parameter = DimsAt(dims, {channel, channel + 1}, true);
  const Tensor gamma = op.View(op.Input(1), parameter);
  const Tensor beta = op.View(op.Input(2), parameter);

  const Tensor out = op.Temporary(data.desc.dtype, dims);
  Normalize(op, op.View(data, dims), axes, gamma, beta, out);
  op.SetOutput(0, op.View(out, data.dims()));
}

REGISTER_LOWERING("relax.nn.group_norm", GroupNorm);

}  // namespace
}  // namespace npu
