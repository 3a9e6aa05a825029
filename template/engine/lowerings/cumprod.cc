// SPDX-License-Identifier: Apache-2.0
#include "along_axis.h"
#include "lowering.h"

namespace npu {
namespace {

void CumProd(Lowering& op) { LowerScan(op, NPU_SCAN_PRODUCT); }

REGISTER_LOWERING("relax.cumprod", CumProd);

}  // namespace
}  // namespace npu
