// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "ordering.h"

namespace npu {
namespace {

void ArgSort(Lowering& op) { LowerOrder(op, op.Input(0), op.Bool("descending"), op.Output()); }

REGISTER_LOWERING("relax.argsort", ArgSort);

}  // namespace
}  // namespace npu
