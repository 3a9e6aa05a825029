// SPDX-License-Identifier: Apache-2.0
/*!
 * \file order.cc
 * \brief The order of elements along an axis: kernels/rows.cc finds it.
 */
#include <algorithm>

#include "../rules.h"

namespace npu::emulator {

void OperationRules::Check(const npu_order& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc out = Write(op.out);
  CheckAxis(op.axis, op.data, data);
  if (out.dtype != NPU_INT32 && out.dtype != NPU_INT64) {
    Declined("The output of ", Where(), ", ", Describe(op.out), ", must be int32 or int64.");
  }
  const Dim& size = data.dims[op.axis];
  if (size.Most() > INT32_MAX) {
    Declined("The rows of ", Where(), ", ", Describe(op.data), ", have more than ", INT32_MAX,
             " elements, which is more than is supported.");
  }
  bool fits = out.rank == data.rank;
  for (int32_t d = 0; fits && d < data.rank; ++d) {
    fits = d == op.axis || out.dims[d] == data.dims[d];
  }
  // A symbol is at least 1.
  const Dim& count = out.dims[op.axis];
  int64_t least = size.begin > 0 ? 0 : std::min(size.size, size.Most());
  if (!fits || !(count == size || (Fixed(count) && count.size <= least))) {
    Invalid("The output of ", Where(), " is ", Describe(op.out),
            ", which does not have the shape of ", Describe(op.data),
            ", or of its first elements along the axis.");
  }
}

npu_tensor SameType(const npu_order&) { return -1; }

int64_t CyclesOf(const npu_order& op, const Machine& machine, const TensorView& data,
                 const TensorView& out) {
  return VectorCycles(machine, ElementCount(data), OrderInstructions(out.dims[op.axis]));
}

std::string TextOf(const npu_order& op, const std::vector<std::string>& texts) {
  return Join("order ", texts[0], " axis ", op.axis, op.descending != 0 ? " descending" : "");
}

}  // namespace npu::emulator
