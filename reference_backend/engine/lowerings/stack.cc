// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void Stack(Lowering& op) {
  const Tensor out = op.Output();
  const int64_t rank = out.rank();
  const int64_t axis = op.IsNone("axis") ? 0 : (op.Int("axis") + rank) % rank;
  std::vector<npu_dim> slice = out.dims();
  slice[axis] = FixedDim(1);
  for (size_t i = 0; i < op.InputCount(); ++i) {
    npu_copy copy = op.CopyOf(op.View(op.Input(i), slice), out);
    copy.out_offset[axis] = static_cast<int64_t>(i);
    op.Emit(copy);
  }
}

REGISTER_LOWERING("relax.stack", Stack);

}  // namespace
}  // namespace npu
