// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void PixelShuffle(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t factor = op.Int("upscale_factor");
  const std::vector<npu_dim> dims = data.dims();
  const int channel = data.rank() - 3;
  const int64_t channels = op.FixedSize(data, channel) / (factor * factor);

  // Each channel of the result comes from factor * factor channels: [..., channel, y, x, height,
  // width] becomes [..., channel, height, y, width, x].
  std::vector<npu_dim> split(dims.begin(), dims.begin() + channel);
  std::vector<npu_dim> shuffled = split;
  const npu_dim c = FixedDim(channels), f = FixedDim(factor);
  split.insert(split.end(), {c, f, f, dims[channel + 1], dims[channel + 2]});
  shuffled.insert(shuffled.end(), {c, dims[channel + 1], f, dims[channel + 2], f});
  const Tensor out = op.Temporary(data.desc.dtype, shuffled);
  npu_copy copy = op.CopyOf(op.View(data, split), out);
  copy.permutation[channel + 1] = channel + 3;
  copy.permutation[channel + 2] = channel + 1;
  copy.permutation[channel + 3] = channel + 4;
  copy.permutation[channel + 4] = channel + 2;
  op.Emit(copy);
  op.SetOutput(0, op.View(out, op.OutputDims()));
}

REGISTER_LOWERING("relax.nn.pixel_shuffle", PixelShuffle);

}  // namespace
}  // namespace npu
