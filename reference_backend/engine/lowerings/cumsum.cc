// SPDX-License-Identifier: Apache-2.0
#include "along_axis.h"
#include "lowering.h"

namespace npu {
namespace {

void CumSum(Lowering& op) { LowerScan(op, NPU_SCAN_SUM); }

REGISTER_LOWERING("relax.cumsum", CumSum);

}  // namespace
}  // namespace npu
