// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

// The index of the element at `place`, relative to the first one of the data.
int64_t ElementAt(const std::string& mode, int64_t place, int64_t size) {
  if (mode == "circular") return (place + size) % size;
  if (mode == "replicate") return std::clamp<int64_t>(place, 0, size - 1);
  return size - 1 - std::abs(size - 1 - std::abs(place));
}

void Pad(Lowering& op) {
  op.RequireOneOf("pad_mode", {"constant", "reflect", "replicate", "circular"});
  Tensor data = op.Input(0);
  // The widths before and after each dimension.
  const std::vector<int64_t> widths = op.Ints("pad_width");
  const std::string mode = op.String("pad_mode");
  if (mode == "constant") {
    npu_copy copy = op.CopyOf(data, op.Output());
    for (int i = 0; i < data.rank(); ++i)
      copy.out_offset[i] = widths.at(2 * static_cast<size_t>(i));
    copy.fill = 1;
    copy.fill_value = op.Float("pad_value");
    op.Emit(copy);
    return;
  }
  for (int axis = 0; axis < data.rank(); ++axis) {
    const size_t first = 2 * static_cast<size_t>(axis);
    const int64_t before = widths.at(first);
    const int64_t after = widths.at(first + 1);
    if (before == 0 && after == 0) continue;
    const int64_t size = op.FixedSize(data, axis);
    const int64_t widest = mode == "circular" ? size : size - 1;
    if (mode != "replicate" && std::max(before, after) > widest) {
      op.Refuse("a border of " + std::to_string(std::max(before, after)) +
                " elements is wider than the data in mode '" + mode + "'");
    }
    std::vector<int64_t> elements;
    for (int64_t i = -before; i < size + after; ++i) elements.push_back(ElementAt(mode, i, size));
    std::vector<npu_dim> dims = data.dims();
    dims[axis] = FixedDim(size + before + after);
    const Tensor padded = op.Temporary(data.desc.dtype, dims);
    op.Gather(data, op.Constant({dims[axis]}, elements), axis, padded);
    data = padded;
  }
  op.SetOutput(0, data);
}

REGISTER_LOWERING("relax.nn.pad", Pad);

}  // namespace
}  // namespace npu
