// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "lowering.h"

namespace tvm_example_npu {
namespace {

void Take(Lowering& op) {
  op.RequireOneOf("mode", {"fast", "clip", "wrap"});
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  npu_gather gather = {};
  gather.data = data.id;
  gather.indices = op.Input(1).id;
  gather.out = op.Output().id;
  // None is allowed for vectors only.
  gather.axis = static_cast<int32_t>(op.IsNone("axis") ? 0 : (op.Int("axis") + rank) % rank);
  // An index outside of the data reads its nearest element: that is "clip", and as good as any for
  // "fast", which says nothing about it.
  if (op.String("mode") == "wrap") {
    const Tensor indices = op.Input(1);
    const auto size = static_cast<double>(op.FixedSize(data, gather.axis));
    const Tensor inside = op.Temporary(indices.desc.dtype, indices.dims());
    op.Elementwise(inside, [&](VectorBuilder& v) {
      const Value period = v.Constant(size);
      return v.Remainder(v.Add(v.Remainder(v.Load(indices), period), period), period);
    });
    gather.indices = inside.id;
  }
  op.Emit(gather);
}

REGISTER_LOWERING("relax.take", Take);

}  // namespace
}  // namespace tvm_example_npu
