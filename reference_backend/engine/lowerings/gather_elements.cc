// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void GatherElements(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  op.Gather(data, op.Input(1), (op.Int("axis") + rank) % rank, op.Output(), true);
}

REGISTER_LOWERING("relax.gather_elements", GatherElements);

}  // namespace
}  // namespace npu
