// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include "lowering.h"
#include "ordering.h"

namespace npu {
namespace {

// The shape of the results implies k.
void TopK(Lowering& op) {
  op.RequireOneOf("ret_type", {"both", "values", "indices"});
  const Tensor data = op.Input(0);
  const std::string kind = op.String("ret_type");
  const size_t last = kind == "both" ? 1 : 0;
  const bool has_values = kind != "indices" && op.OutputIsUsed(0);
  const bool has_indices = kind != "values" && op.OutputIsUsed(last);
  const Tensor indices = has_indices ? op.Output(last) : op.Temporary(NPU_INT32, op.OutputDims(0));
  const int64_t axis = LowerOrder(op, data, op.Bool("largest"), indices);
  if (has_values) op.Gather(data, indices, axis, op.Output(0), true);
}

REGISTER_LOWERING("relax.topk", TopK);

}  // namespace
}  // namespace npu
