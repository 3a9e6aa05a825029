// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void SliceScatter(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor source = op.Input(1);
  const Tensor out = op.Output();
  if (op.Int("step") != 1) op.Refuse("its attribute 'step' must be 1");
  const int64_t axis = (op.Int("axis") + data.rank()) % data.rank();
  const int64_t size = op.FixedSize(data, static_cast<int>(axis));
  const int64_t start = op.Int("start");
  const int64_t end = op.Int("end");
  const bool fits = 0 <= start && start < end && end <= size;
  if (!fits || op.FixedSize(source, static_cast<int>(axis)) != end - start) {
    op.Refuse("its range is " + std::to_string(start) + " to " + std::to_string(end) +
              "; it must be inside of axis " + std::to_string(axis) + " and as long as 'src'");
  }
  // Three boxes that do not overlap. A box ends where a tensor does, so the part before the range
  // needs a tensor of its own.
  if (start > 0) {
    std::vector<npu_dim> dims = data.dims();
    dims[axis] = FixedDim(start);
    const Tensor before = op.Temporary(data.desc.dtype, dims);
    op.Emit(op.CopyOf(data, before));
    op.Emit(op.CopyOf(before, out));
  }
  npu_copy copy = op.CopyOf(source, out);
  copy.out_offset[axis] = start;
  op.Emit(copy);
  if (end == size) return;
  copy.data = data.id;
  copy.data_offset[axis] = copy.out_offset[axis] = end;
  op.Emit(copy);
}

REGISTER_LOWERING("relax.slice_scatter", SliceScatter);

}  // namespace
}  // namespace npu
