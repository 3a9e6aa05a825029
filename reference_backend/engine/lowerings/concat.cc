// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void Concat(Lowering& op) {
  const Tensor out = op.Output();
  const int64_t rank = out.rank();
  // None is allowed for vectors only.
  const int64_t axis = op.IsNone("axis") ? 0 : (op.Int("axis") + rank) % rank;
  npu_copy copy = op.CopyOf(op.Input(0), out);
  for (size_t i = 0; i < op.InputCount(); ++i) {
    const Tensor data = op.Input(i);
    const bool alone = op.InputCount() == 1;
    const int64_t size = alone ? 0 : op.FixedSize(data, static_cast<int>(axis));
    copy.data = data.id;
    op.Emit(copy);
    copy.out_offset[axis] += size;
  }
}

REGISTER_LOWERING("relax.concat", Concat);

}  // namespace
}  // namespace npu
