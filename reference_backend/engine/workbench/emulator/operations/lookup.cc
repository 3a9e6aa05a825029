// SPDX-License-Identifier: Apache-2.0
/*!
 * \file lookup.cc
 * \brief Functions of 8-bit integers as tables: kernels/gather.cc looks them up.
 */
#include "../rules.h"

namespace npu::emulator {

void OperationRules::Check(const npu_lookup& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc table = Read(op.table, "table", false);
  const Desc out = Write(op.out);
  if (data.dtype != NPU_INT8 && data.dtype != NPU_UINT8) {
    Declined("The data of ", Where(), ", ", Describe(op.data), ", must be int8 or uint8.");
  }
  constexpr int64_t kEntries = 256;
  if (!HasDims(table, {Dim{kEntries}}) || table.dtype != out.dtype) {
    Invalid("The table of ", Where(), ", ", Describe(op.table), ", must have ", kEntries,
            " elements of the type of its output, ", Describe(op.out), ".");
  }
  CheckSameShape(op.data, data, op.out, out);
}

npu_tensor SameType(const npu_lookup& op) { return op.table; }

int64_t CyclesOf(const npu_lookup&, const Machine& machine, const TensorView&,
                 const TensorView& out) {
  return VectorCycles(machine, ElementCount(out), 1);
}

std::string TextOf(const npu_lookup&, const std::vector<std::string>& texts) {
  return Join("lookup ", texts[0], " in ", texts[1]);
}

}  // namespace npu::emulator
