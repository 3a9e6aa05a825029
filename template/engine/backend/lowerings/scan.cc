// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include "along_axis.h"
#include "lowering.h"
#include "ordering.h"

namespace npu {
namespace {

void CumSum(Lowering& op) { LowerScan(op, NPU_SCAN_SUM); }

REGISTER_LOWERING("relax.cumsum", CumSum);

void CumProd(Lowering& op) { LowerScan(op, NPU_SCAN_PRODUCT); }

REGISTER_LOWERING("relax.cumprod", CumProd);

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

void Sort(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor indices = op.Temporary(NPU_INT32, data.dims());
  const int64_t axis = LowerOrder(op, data, op.Bool("descending"), indices);
  op.Gather(data, indices, axis, op.Output(), true);
}

REGISTER_LOWERING("relax.sort", Sort);

void ArgSort(Lowering& op) { LowerOrder(op, op.Input(0), op.Bool("descending"), op.Output()); }

REGISTER_LOWERING("relax.argsort", ArgSort);

}  // namespace
}  // namespace npu
