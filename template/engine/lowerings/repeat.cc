// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "repetition.h"

namespace npu {
namespace {

void Repeat(Lowering& op) {
  const int64_t repeats = op.Int("repeats");
  const std::vector<npu_dim> dims = op.Input(0).dims();
  const auto rank = static_cast<int64_t>(dims.size());
  // Without an axis the data is one long vector: its last dimension is the one that moves fastest,
  // and the others follow it.
  const int64_t axis = op.IsNone("axis") ? rank - 1 : (op.Int("axis") + rank) % rank;
  std::vector<Repetition> repetitions;
  for (int64_t i = 0; i < rank; ++i) repetitions.push_back({dims[i], 1, i == axis ? repeats : 1});
  LowerRepetition(op, repetitions);
}

REGISTER_LOWERING("relax.repeat", Repeat);

}  // namespace
}  // namespace npu
