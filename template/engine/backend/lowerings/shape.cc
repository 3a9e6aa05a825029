// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lowering.h"
#include "repetition.h"
#include "triangle.h"

namespace npu {
namespace {

// The argument `shape` is the shape of the output.
void Reshape(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.reshape", Reshape);

void PermuteDims(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  npu_copy copy = op.CopyOf(data, op.Output());
  if (op.IsNone("axes")) {
    for (int64_t i = 0; i < rank; ++i) copy.permutation[i] = static_cast<int32_t>(rank - 1 - i);
  } else {
    const std::vector<int64_t> axes = op.Ints("axes");
    for (int64_t i = 0; i < rank; ++i) {
      copy.permutation[i] = static_cast<int32_t>((axes.at(i) + rank) % rank);
    }
  }
  op.Emit(copy);
}

REGISTER_LOWERING("relax.permute_dims", PermuteDims);

void Flatten(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.flatten", Flatten);

// Tensors one after the other, as one operation.
void EmitConcat(Lowering& op, const std::vector<npu_tensor>& inputs, int64_t axis) {
  npu_concat concat = {};
  concat.out = op.Output().id;
  concat.inputs = inputs.data();
  concat.input_count = static_cast<int32_t>(inputs.size());
  concat.axis = static_cast<int32_t>(axis);
  op.Emit(concat);
}

void Concat(Lowering& op) {
  const Tensor out = op.Output();
  const int64_t rank = out.rank();
  // Only vectors have no axis.
  const int64_t axis = op.IsNone("axis") ? 0 : (op.Int("axis") + rank) % rank;
  if (op.InputCount() > 1 && op.Has(&npu_build_api::add_concat)) {
    std::vector<npu_tensor> inputs;
    for (size_t i = 0; i < op.InputCount(); ++i) inputs.push_back(op.Input(i).id);
    return EmitConcat(op, inputs, axis);
  }
  npu_copy copy = op.CopyOf(op.Input(0), out);
  for (size_t i = 0; i < op.InputCount(); ++i) {
    const Tensor data = op.Input(i);
    const bool alone = op.InputCount() == 1;
    const int64_t size = alone ? 0 : op.FixedSize(data, static_cast<int>(axis));
    copy.data = data.id;
    op.Emit(copy);
    copy.out_offset[axis] += size;
  }
}

REGISTER_LOWERING("relax.concat", Concat);

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

void PixelShuffle(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t factor = op.Int("upscale_factor");
  const std::vector<npu_dim> dims = data.dims();
  const int channel = data.rank() - 3;
  const int64_t channels = op.FixedSize(data, channel) / (factor * factor);

  // Each channel of the result comes from factor * factor channels: [..., channel, y, x, height,
  // width] becomes [..., channel, height, y, width, x].
  std::vector<npu_dim> split(dims.begin(), dims.begin() + channel);
  std::vector<npu_dim> shuffled = split;
  const npu_dim c = FixedDim(channels), f = FixedDim(factor);
  split.insert(split.end(), {c, f, f, dims[channel + 1], dims[channel + 2]});
  shuffled.insert(shuffled.end(), {c, dims[channel + 1], f, dims[channel + 2], f});
  const Tensor out = op.Temporary(data.desc.dtype, shuffled);
  npu_copy copy = op.CopyOf(op.View(data, split), out);
  copy.permutation[channel + 1] = channel + 3;
  copy.permutation[channel + 2] = channel + 1;
  copy.permutation[channel + 3] = channel + 4;
  copy.permutation[channel + 4] = channel + 2;
  op.Emit(copy);
  op.SetOutput(0, op.View(out, op.OutputDims()));
}

REGISTER_LOWERING("relax.nn.pixel_shuffle", PixelShuffle);

// The type of the result implies all arguments.
void ExpandDims(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.expand_dims", ExpandDims);

// The type of the result implies all arguments.
void Squeeze(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.squeeze", Squeeze);

// The type of the result implies all arguments.
void BatchFlatten(Lowering& op) { op.SetOutput(0, op.View(op.Input(0), op.OutputDims())); }

REGISTER_LOWERING("relax.nn.batch_flatten", BatchFlatten);

void Split(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  // A symbolic size cannot be cut, but may be a whole result.
  if (op.OutputCount() == 1) {
    op.SetOutput(0, data);
    return;
  }
  op.FixedSize(data, static_cast<int>(axis));
  int64_t begin = 0;
  for (size_t i = 0; i < op.OutputCount(); ++i) {
    const int64_t size = op.OutputDims(i)[axis].size;
    if (op.OutputIsUsed(i)) {
      npu_copy copy = op.CopyOf(data, op.Output(i));
      copy.data_offset[axis] = begin;
      op.Emit(copy);
    }
    begin += size;
  }
}

REGISTER_LOWERING("relax.split", Split);

void Stack(Lowering& op) {
  const Tensor out = op.Output();
  const int64_t rank = out.rank();
  const int64_t axis = op.IsNone("axis") ? 0 : (op.Int("axis") + rank) % rank;
  std::vector<npu_dim> slice = out.dims();
  slice[axis] = FixedDim(1);
  if (op.InputCount() > 1 && op.Has(&npu_build_api::add_concat)) {
    std::vector<npu_tensor> inputs;
    for (size_t i = 0; i < op.InputCount(); ++i) {
      inputs.push_back(op.View(op.Input(i), slice).id);
    }
    return EmitConcat(op, inputs, axis);
  }
  for (size_t i = 0; i < op.InputCount(); ++i) {
    npu_copy copy = op.CopyOf(op.View(op.Input(i), slice), out);
    copy.out_offset[axis] = static_cast<int64_t>(i);
    op.Emit(copy);
  }
}

REGISTER_LOWERING("relax.stack", Stack);

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
    // Negative indices count from the end; then clamp to the data.
    const auto place = [&](int64_t index) {
      const int64_t moved = index < 0 ? index + size : index;
      return step < 0 ? std::clamp<int64_t>(moved, -1, size - 1)
                      : std::clamp<int64_t>(moved, 0, size);
    };
    const int64_t first = place(begin.at(i));
    const int64_t distance = place(end.at(i)) - first;
    // With assume_inbound, TVM infers wrong sizes for negative steps and ranges beyond the data.
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
  // Three boxes without overlap. A box ends with a tensor, so the part before the range needs a
  // tensor of its own.
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

void Tile(Lowering& op) {
  // Ones in front make repeats and dimensions equally many.
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

void Repeat(Lowering& op) {
  const int64_t repeats = op.Int("repeats");
  const std::vector<npu_dim> dims = op.Input(0).dims();
  const auto rank = static_cast<int64_t>(dims.size());
  // Without an axis the data is one long vector, in which the last dimension moves fastest.
  const int64_t axis = op.IsNone("axis") ? rank - 1 : (op.Int("axis") + rank) % rank;
  std::vector<Repetition> repetitions;
  for (int64_t i = 0; i < rank; ++i) repetitions.push_back({dims[i], 1, i == axis ? repeats : 1});
  LowerRepetition(op, repetitions);
}

REGISTER_LOWERING("relax.repeat", Repeat);

// A load of the vector engine broadcasts.
Value BroadcastTo(const Lowering&, VectorBuilder&, const Values& x) { return x[0]; }

REGISTER_ELEMENTWISE("relax.broadcast_to", BroadcastTo);

void Flip(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  npu_copy copy = op.CopyOf(data, op.Output());
  copy.data_offset[axis] = op.FixedSize(data, static_cast<int>(axis)) - 1;
  copy.data_step[axis] = -1;
  op.Emit(copy);
}

REGISTER_LOWERING("relax.flip", Flip);

// A digit of an index of the data, which temporarily becomes a dimension.
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

void Tril(Lowering& op) { LowerTriangle(op, false); }

REGISTER_LOWERING("relax.tril", Tril);

void Triu(Lowering& op) { LowerTriangle(op, true); }

REGISTER_LOWERING("relax.triu", Triu);

}  // namespace
}  // namespace npu
