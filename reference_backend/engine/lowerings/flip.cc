// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void Flip(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  npu_copy copy = op.CopyOf(data, op.Output());
  copy.data_offset[axis] = op.FixedSize(data, static_cast<int>(axis)) - 1;
  copy.data_step[axis] = -1;
  op.Emit(copy);
}

REGISTER_LOWERING("relax.flip", Flip);

}  // namespace
}  // namespace npu
