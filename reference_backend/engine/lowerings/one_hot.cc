// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <numeric>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void OneHot(Lowering& op) {
  const Tensor out = op.Output();
  const int64_t rank = out.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  const int64_t depth = op.Int("depth");
  const double on = op.Float("on_value");
  const double off = op.Float("off_value");
  std::vector<npu_dim> dims = out.dims();
  dims[axis] = FixedDim(1);
  const Tensor indices = op.View(op.Input(0), dims);
  // One class after the other along the axis.
  std::vector<npu_dim> along(rank, FixedDim(1));
  along[axis] = FixedDim(depth);
  std::vector<int64_t> numbers(depth);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor classes = op.Constant(along, numbers);
  op.Elementwise(out, [&](VectorBuilder& v) {
    return v.Select(v.Equal(v.Load(indices), v.Load(classes)), v.Constant(on), v.Constant(off));
  });
}

REGISTER_LOWERING("relax.one_hot", OneHot);

}  // namespace
}  // namespace npu
