// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"

namespace npu {
namespace {

void Take(Lowering& op) {
  op.RequireOneOf("mode", {"fast", "clip", "wrap"});
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  Tensor indices = op.Input(1);
  // None is allowed for vectors only.
  const int64_t axis = op.IsNone("axis") ? 0 : (op.Int("axis") + rank) % rank;
  // An index outside the data reads the nearest element: the mode "clip", and allowed in "fast",
  // where it is undefined.
  if (op.String("mode") == "wrap") {
    const auto size = static_cast<double>(op.FixedSize(data, static_cast<int>(axis)));
    const Tensor inside = op.Temporary(indices.desc.dtype, indices.dims());
    op.Elementwise(inside, [&](VectorBuilder& v) {
      const Value period = v.Constant(size);
      return v.Remainder(v.Add(v.Remainder(v.Load(indices), period), period), period);
    });
    indices = inside;
  }
  op.Gather(data, indices, axis, op.Output());
}

REGISTER_LOWERING("relax.take", Take);

}  // namespace
}  // namespace npu
