// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "repetition.h"

namespace npu {
namespace {

void Tile(Lowering& op) {
  // Both are as long as the longer one, with ones in front.
  std::vector<int64_t> repeats = op.Ints("repeats");
  std::vector<npu_dim> dims = op.Input(0).dims();
  const size_t rank = std::max(repeats.size(), dims.size());
  repeats.insert(repeats.begin(), rank - repeats.size(), 1);
  dims.insert(dims.begin(), rank - dims.size(), FixedDim(1));
  std::vector<Repetition> repetitions;
  for (size_t i = 0; i < rank; ++i) repetitions.push_back({dims[i], repeats[i], 1});
  LowerRepetition(op, repetitions);
}

REGISTER_LOWERING("relax.tile", Tile);

}  // namespace
}  // namespace npu
