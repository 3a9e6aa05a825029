// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

// A digit of an index of the data, which temporarily becomes its own dimension.
struct Digit {
  IndexTerm term;
  npu_dim extent = {};
  size_t target = 0;
};

// The digits of one index, the most significant one first; together they must cover it.
std::vector<Digit> DigitsOf(const Lowering& op, int64_t axis, npu_dim size,
                            const std::vector<std::vector<IndexTerm>>& map) {
  std::vector<Digit> digits;
  for (size_t target = 0; target < map.size(); ++target) {
    for (const IndexTerm& term : map[target]) {
      if (term.axis == axis) digits.push_back({term, FixedDim(term.modulo), target});
    }
  }
  std::sort(digits.begin(), digits.end(),
            [](const Digit& a, const Digit& b) { return a.term.divide > b.term.divide; });
  int64_t unit = 1;
  for (size_t i = digits.size(); i-- > 0;) {
    Digit& digit = digits[i];
    const bool is_rest = i == 0 && digit.term.modulo == 0;
    if (digit.term.divide != unit || (digit.term.modulo == 0 && !is_rest)) {
      op.Refuse("its index_map loses a part of index " + std::to_string(axis));
    }
    if (is_rest) {
      if (size.symbol >= 0 && unit != 1) op.Refuse("its index_map splits a symbolic size");
      digit.extent = npu_dim{(size.size + unit - 1) / unit, size.symbol};
    }
    unit *= digit.extent.size;
  }
  if (size.symbol >= 0 ? digits.size() != 1 || digits[0].extent.symbol < 0 : unit < size.size) {
    op.Refuse("its index_map loses a part of index " + std::to_string(axis));
  }
  return digits;
}

// Splits the indices into digits, permutes these, and recombines them to indices.
void LayoutTransform(Lowering& op) {
  const std::vector<std::vector<IndexTerm>> map = op.IndexMap("index_map");
  Tensor data = op.Input(0);
  std::vector<npu_dim> padded = data.dims();
  std::vector<Digit> digits;
  bool is_padded = false;
  for (size_t axis = 0; axis < padded.size(); ++axis) {
    int64_t size = 1;
    for (const Digit& digit : DigitsOf(op, static_cast<int64_t>(axis), padded[axis], map)) {
      size *= digit.extent.size;
      digits.push_back(digit);
    }
    is_padded = is_padded || size != padded[axis].size;
    padded[axis].size = size;
  }
  if (digits.size() > NPU_MAX_RANK) op.Refuse("its index_map has too many parts");

  // The order of the digits: by dimension of the result, then by factor.
  std::vector<size_t> order(digits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (digits[a].target != digits[b].target) return digits[a].target < digits[b].target;
    return digits[a].term.multiply > digits[b].term.multiply;
  });
  std::vector<npu_dim> split, moved;
  for (const Digit& digit : digits) split.push_back(digit.extent);
  for (size_t i : order) moved.push_back(digits[i].extent);
  for (size_t i = order.size(), unit = 1, target = map.size(); i-- > 0;) {
    const Digit& digit = digits[order[i]];
    if (digit.target != target) unit = 1;
    target = digit.target;
    if (digit.term.multiply != static_cast<int64_t>(unit)) {
      op.Refuse("its index_map leaves gaps in dimension " + std::to_string(target));
    }
    unit *= static_cast<size_t>(digit.extent.size);
  }

  if (is_padded) {
    const Tensor whole = op.Temporary(data.desc.dtype, padded);
    npu_copy copy = op.CopyOf(data, whole);
    copy.fill = 1;
    copy.fill_value = op.IsNone("pad_value") ? 0 : op.Float("pad_value");
    op.Emit(copy);
    data = whole;
  }
  data = op.View(data, split);
  if (!std::is_sorted(order.begin(), order.end())) {
    const Tensor result = op.Temporary(data.desc.dtype, moved);
    npu_copy copy = op.CopyOf(data, result);
    for (size_t i = 0; i < order.size(); ++i) copy.permutation[i] = static_cast<int32_t>(order[i]);
    op.Emit(copy);
    data = result;
  }
  op.SetOutput(0, op.View(data, op.OutputDims()));
}

REGISTER_LOWERING("relax.layout_transform", LayoutTransform);

}  // namespace
}  // namespace npu
