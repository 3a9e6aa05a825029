// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void StridedSlice(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const std::vector<int64_t> axes = op.Ints("axes");
  const std::vector<int64_t> begin = op.Ints("begin");
  const std::vector<int64_t> end = op.Ints("end");
  const std::vector<npu_dim> out_dims = op.OutputDims();
  npu_copy copy = op.CopyOf(data, op.Output());
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = (axes[i] + rank) % rank;
    const int64_t step = op.IsNone("strides") ? 1 : op.Ints("strides").at(i);
    const int64_t size = op.FixedSize(data, static_cast<int>(axis));
    // Negative ones count from the end; then clamp to the data.
    const auto place = [&](int64_t index) {
      const int64_t moved = index < 0 ? index + size : index;
      return step < 0 ? std::clamp<int64_t>(moved, -1, size - 1)
                      : std::clamp<int64_t>(moved, 0, size);
    };
    const int64_t first = place(begin.at(i));
    const int64_t distance = place(end.at(i)) - first;
    // TVM infers other types with assume_inbound, where a step is negative or a range not inside.
    if ((distance + step + (step < 0 ? 1 : -1)) / step != out_dims[axis].size) {
      op.Refuse("its type has " + std::to_string(out_dims[axis].size) + " elements along axis " +
                std::to_string(axis) + ", and its range has another number of them");
    }
    copy.data_offset[axis] = first;
    copy.data_step[axis] = step;
  }
  op.Emit(copy);
}

REGISTER_LOWERING("relax.strided_slice", StridedSlice);

}  // namespace
}  // namespace npu
