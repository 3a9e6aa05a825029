// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void Split(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  // A symbolic size cannot be cut, but may be a whole result.
  if (op.OutputCount() == 1) {
    op.SetOutput(0, data);
    return;
  }
  op.FixedSize(data, static_cast<int>(axis));
  int64_t begin = 0;
  for (size_t i = 0; i < op.OutputCount(); ++i) {
    const int64_t size = op.OutputDims(i)[axis].size;
    if (op.OutputIsUsed(i)) {
      npu_copy copy = op.CopyOf(data, op.Output(i));
      copy.data_offset[axis] = begin;
      op.Emit(copy);
    }
    begin += size;
  }
}

REGISTER_LOWERING("relax.split", Split);

}  // namespace
}  // namespace npu
