// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void PermuteDims(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  npu_copy copy = op.CopyOf(data, op.Output());
  if (op.IsNone("axes")) {
    for (int64_t i = 0; i < rank; ++i) copy.permutation[i] = static_cast<int32_t>(rank - 1 - i);
  } else {
    const std::vector<int64_t> axes = op.Ints("axes");
    for (int64_t i = 0; i < rank; ++i) {
      copy.permutation[i] = static_cast<int32_t>((axes.at(i) + rank) % rank);
    }
  }
  op.Emit(copy);
}

REGISTER_LOWERING("relax.permute_dims", PermuteDims);

}  // namespace
}  // namespace npu
