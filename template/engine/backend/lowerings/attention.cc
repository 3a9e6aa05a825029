// SPDX-License-Identifier: Apache-2.0
#include "attention.h"
#include "lowering.h"

namespace npu {
namespace {

void Attention(Lowering& op) { LowerAttention(op, false); }

REGISTER_LOWERING("relax.nn.attention", Attention);

void AttentionBias(Lowering& op) { LowerAttention(op, true); }

REGISTER_LOWERING("relax.nn.attention_bias", AttentionBias);

}  // namespace
}  // namespace npu
