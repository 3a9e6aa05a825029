// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "triangle.h"

namespace npu {
namespace {

void Triu(Lowering& op) { LowerTriangle(op, true); }

REGISTER_LOWERING("relax.triu", Triu);

}  // namespace
}  // namespace npu
