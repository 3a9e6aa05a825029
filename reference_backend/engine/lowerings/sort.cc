// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"
#include "ordering.h"

namespace npu {
namespace {

void Sort(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor indices = op.Temporary(NPU_INT32, data.dims());
  const int64_t axis = LowerOrder(op, data, op.Bool("descending"), indices);
  op.Gather(data, indices, axis, op.Output(), true);
}

REGISTER_LOWERING("relax.sort", Sort);

}  // namespace
}  // namespace npu
