// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace tvm_example_npu {
namespace {

void StridedSlice(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const std::vector<int64_t> axes = op.Ints("axes");
  const std::vector<int64_t> begin = op.Ints("begin");
  // `end` is in the shape of the output.
  const std::vector<npu_dim> out_dims = op.OutputDims();
  npu_copy copy = op.CopyOf(data, op.Output());
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = (axes[i] + rank) % rank;
    const int64_t step = op.IsNone("strides") ? 1 : op.Ints("strides").at(i);
    const int64_t size = op.FixedSize(data, static_cast<int>(axis));
    // Counted from the end if negative, then moved to where the data is.
    const int64_t first = begin.at(i) < 0 ? begin.at(i) + size : begin.at(i);
    copy.data_offset[axis] = std::clamp<int64_t>(first, 0, size - 1);
    copy.data_step[axis] = step;
    const int64_t last = copy.data_offset[axis] + (out_dims[axis].size - 1) * step;
    if (last < 0 || last >= size) op.Refuse("the slice is not inside of the data");
  }
  op.Emit(copy);
}

REGISTER_LOWERING("relax.strided_slice", StridedSlice);

}  // namespace
}  // namespace tvm_example_npu
