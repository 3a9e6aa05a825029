// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"
#include "triangle.h"

namespace npu {
namespace {

void Tril(Lowering& op) { LowerTriangle(op, false); }

REGISTER_LOWERING("relax.tril", Tril);

}  // namespace
}  // namespace npu
