// SPDX-License-Identifier: Apache-2.0
/*!
 * \file scan.cc
 * \brief Running sums and products: kernels/rows.cc computes them.
 */
#include "../rules.h"

namespace npu::emulator {

void OperationRules::Check(const npu_scan& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc out = Write(op.out);
  CheckKind(op.kind, NPU_SCAN_PRODUCT);
  CheckAxis(op.axis, op.data, data);
  if (IsInteger(data.dtype) != IsInteger(out.dtype) || out.dtype == NPU_BOOL) {
    Declined("The data of ", Where(), " is ", Describe(op.data), " and its output ",
             Describe(op.out), "; both must be integers, or both float32 or float16.");
  }
  CheckSameShape(op.data, data, op.out, out);
}

npu_tensor SameType(const npu_scan&) { return -1; }

int64_t CyclesOf(const npu_scan&, const Machine& machine, const TensorView&,
                 const TensorView& out) {
  return VectorCycles(machine, ElementCount(out), 1);
}

std::string TextOf(const npu_scan& op, const std::vector<std::string>& texts) {
  return Join("scan ", op.kind == NPU_SCAN_PRODUCT ? "product " : "sum ", texts[0], " axis ",
              op.axis, op.exclusive != 0 ? " exclusive" : "");
}

}  // namespace npu::emulator
