// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "lowering.h"

namespace npu {
namespace {

void Take(Lowering& op) {
  op.RequireOneOf("mode", {"fast", "clip", "wrap"});
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  Tensor indices = op.Input(1);
  // Only vectors have no axis.
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

void GatherElements(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  op.Gather(data, op.Input(1), (op.Int("axis") + rank) % rank, op.Output(), true);
}

REGISTER_LOWERING("relax.gather_elements", GatherElements);

// The last dimension of the indices has an index for each dimension of the data after the batch.
// With the position in the batch, these address the flattened data.
void GatherND(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor indices = op.Input(1);
  const int64_t batch_dims = op.Int("batch_dims");
  const int last = indices.rank() - 1;
  const int64_t count = op.FixedSize(indices, last);
  const int64_t indexed = batch_dims + count;
  std::vector<int64_t> strides(indexed, 1);
  for (int64_t i = indexed - 1; i > 0; --i) {
    strides[i - 1] = strides[i] * op.FixedSize(data, static_cast<int>(i));
  }
  npu_dim places = data.dims()[0];
  places.size *= strides[0];

  std::vector<npu_dim> kept = indices.dims();
  const Tensor parts = op.Temporary(NPU_INT64, kept);
  const std::vector<int64_t> steps(strides.begin() + batch_dims, strides.end());
  const Tensor factors = op.Constant({FixedDim(count)}, steps);
  op.Elementwise(parts,
                 [&](VectorBuilder& v) { return v.Multiply(v.Load(indices), v.Load(factors)); });
  kept.pop_back();
  Tensor place = op.Temporary(NPU_INT64, kept);
  op.Reduce(NPU_REDUCE_SUM, parts, {last}, place);
  if (batch_dims > 0) {
    // The first element of each member of the batch.
    std::vector<npu_dim> dims(kept.size(), FixedDim(1));
    int64_t members = 1;
    for (int64_t i = 0; i < batch_dims; ++i) {
      dims[i] = FixedDim(op.FixedSize(data, static_cast<int>(i)));
      if (op.FixedSize(indices, static_cast<int>(i)) != dims[i].size) {
        op.Refuse("the indices must have the batch dimensions of the data");
      }
      members *= dims[i].size;
    }
    std::vector<int64_t> begins(members);
    for (int64_t i = 0; i < members; ++i) begins[i] = i * strides[batch_dims - 1];
    const Tensor begin = op.Constant(dims, begins);
    const Tensor inside = place;
    place = op.Temporary(NPU_INT64, kept);
    op.Elementwise(place, [&](VectorBuilder& v) { return v.Add(v.Load(inside), v.Load(begin)); });
  }

  std::vector<npu_dim> flat = data.dims();
  flat.erase(flat.begin(), flat.begin() + indexed);
  flat.insert(flat.begin(), places);
  op.Gather(op.View(data, flat), place, 0, op.Output());
}

REGISTER_LOWERING("relax.gather_nd", GatherND);

/*! \brief The most comparisons of a place with an index, or elements that are combined. */
constexpr int64_t kMostComparisons = 4194304;

/*! \brief Data with places along its middle axis, and what goes there. Outer and inner dimensions
 * of the indices may be 1, for the same places in all. */
struct Scattered {
  Tensor data, indices, updates;
};

/*! \brief Indices with those that count from the end counted from the front; `sizes` broadcast. */
Tensor FromFront(Lowering& op, const Tensor& indices, const Tensor& sizes) {
  const Tensor from_front = op.Temporary(indices.desc.dtype, indices.dims());
  op.Elementwise(from_front, [&](VectorBuilder& v) {
    const Value index = v.Load(indices);
    return v.Select(v.Less(index, v.Constant(0)), v.Add(index, v.Load(sizes)), index);
  });
  return from_front;
}

Tensor Counted(Lowering& op, int dim, int64_t count) {
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<npu_dim> dims(4, FixedDim(1));
  dims[dim] = FixedDim(count);
  return op.Constant(dims, numbers);
}

/*! \brief Lowers a scatter by a comparison of each place with each index. */
void LowerScatter(Lowering& op, const Scattered& given) {
  const std::string reduction = op.String("reduction");
  op.RequireOneOf("reduction", {"update", "add", "mul", "max", "min"});
  const bool replaces = reduction == "update";
  const std::vector<npu_dim> dims = given.data.dims();
  const npu_dim outer = dims[0], inner = dims[2];
  const int64_t size = op.FixedSize(given.data, 1);
  const int64_t count = op.FixedSize(given.indices, 1);
  const std::vector<npu_dim> by_index = given.indices.dims();
  const std::vector<npu_dim>& compared = replaces ? by_index : dims;
  const int64_t comparisons = compared[0].size * size * count * compared[2].size;
  if (comparisons > kMostComparisons) {
    op.Refuse("it compares each place with each index, " + std::to_string(comparisons) +
              " times; supported are at most " + std::to_string(kMostComparisons));
  }
  const Tensor places = Counted(op, 1, size);
  const Tensor indices =
      op.View(given.indices, {by_index[0], FixedDim(1), FixedDim(count), by_index[2]});
  const std::vector<npu_dim> pairs = {by_index[0], FixedDim(size), FixedDim(count), by_index[2]};
  const Tensor updates = op.View(given.updates, {outer, FixedDim(1), FixedDim(count), inner});
  const Tensor data = op.View(given.data, {outer, FixedDim(size), FixedDim(1), inner});
  const Tensor out = op.Temporary(given.data.desc.dtype, data.dims());
  op.SetOutput(0, op.View(out, op.OutputDims()));

  if (replaces && count > 1) {
    // Of several updates of a place, the last stays.
    const Tensor order = Counted(op, 2, count);
    const Tensor matches = op.Temporary(NPU_INT64, pairs);
    op.Elementwise(matches, [&](VectorBuilder& v) {
      return v.Select(v.Equal(v.Load(indices), v.Load(places)), v.Load(order), v.Constant(-1));
    });
    const Tensor last = op.Temporary(NPU_INT64, {pairs[0], pairs[1], FixedDim(1), pairs[3]});
    op.Reduce(NPU_REDUCE_MAX, matches, {2}, last);
    const Tensor is_kept = op.Temporary(NPU_BOOL, last.dims());
    op.Elementwise(is_kept, [&](VectorBuilder& v) { return v.Less(v.Load(last), v.Constant(0)); });
    const Tensor chosen = op.Temporary(given.data.desc.dtype, dims);
    if (by_index[0].size == 1 && by_index[2].size == 1 && by_index[0].symbol < 0 &&
        by_index[2].symbol < 0) {
      op.Gather(given.updates, op.View(last, {FixedDim(size)}), 1, chosen);
    } else {
      op.Gather(given.updates, op.View(last, dims), 1, chosen, true);
    }
    const Tensor update = op.View(chosen, data.dims());
    op.Elementwise(out, [&](VectorBuilder& v) {
      return v.Select(v.Load(is_kept), v.Load(data), v.Load(update));
    });
    return;
  }

  const Tensor is_match = op.Temporary(NPU_BOOL, pairs);
  op.Elementwise(is_match,
                 [&](VectorBuilder& v) { return v.Equal(v.Load(indices), v.Load(places)); });
  if (replaces) {
    op.Elementwise(out, [&](VectorBuilder& v) {
      return v.Select(v.Load(is_match), v.Load(updates), v.Load(data));
    });
    return;
  }
  const bool is_sum = reduction == "add", is_product = reduction == "mul";
  const Tensor terms =
      op.Temporary(given.data.desc.dtype, {outer, FixedDim(size), FixedDim(count), inner});
  op.Elementwise(terms, [&](VectorBuilder& v) {
    const Value neutral = is_sum ? v.Constant(0) : is_product ? v.Constant(1) : v.Load(data);
    return v.Select(v.Load(is_match), v.Load(updates), neutral);
  });
  const Tensor collected = op.Temporary(given.data.desc.dtype, data.dims());
  op.Reduce(is_sum               ? NPU_REDUCE_SUM
            : is_product         ? NPU_REDUCE_PRODUCT
            : reduction == "max" ? NPU_REDUCE_MAX
                                 : NPU_REDUCE_MIN,
            terms, {2}, collected);
  op.Elementwise(out, [&](VectorBuilder& v) {
    const Value one = v.Load(data), other = v.Load(collected);
    if (is_sum) return v.Add(one, other);
    if (is_product) return v.Multiply(one, other);
    return reduction == "max" ? v.Maximum(one, other) : v.Minimum(one, other);
  });
}

/*! \brief A tensor as the beginning of a larger one, whose rest is `fill`. */
Tensor Extended(Lowering& op, const Tensor& tensor, const std::vector<npu_dim>& dims, double fill) {
  bool is_same = true;
  for (int i = 0; i < tensor.rank(); ++i) {
    is_same = is_same && tensor.desc.dims[i].size == dims[i].size &&
              tensor.desc.dims[i].symbol == dims[i].symbol;
  }
  if (is_same) return tensor;
  const Tensor extended = op.Temporary(tensor.desc.dtype, dims);
  npu_copy copy = op.CopyOf(tensor, extended);
  copy.fill = 1;
  copy.fill_value = fill;
  op.Emit(copy);
  return extended;
}

void ScatterElements(Lowering& op) {
  const Tensor data = op.Input(0);
  const auto axis = static_cast<int>((op.Int("axis") + data.rank()) % data.rank());
  const int64_t size = op.FixedSize(data, axis);
  std::vector<npu_dim> dims = data.dims();
  dims[axis] = FixedDim(op.FixedSize(op.Input(1), axis));
  // Behind the indices there is nothing, which is at no place.
  const Tensor sizes = op.Constant({FixedDim(1)}, std::vector<int64_t>{size});
  const Tensor indices =
      Extended(op, FromFront(op, op.Input(1), sizes), dims, static_cast<double>(size));
  const Tensor updates = Extended(op, op.Input(2), dims, 0);
  auto split = [&](const Tensor& tensor) {
    const std::vector<npu_dim> all = tensor.dims();
    return op.View(tensor, {op.Joined({all.begin(), all.begin() + axis}), all[axis],
                            op.Joined({all.begin() + axis + 1, all.end()})});
  };
  LowerScatter(op, {split(data), split(indices), split(updates)});
}

REGISTER_LOWERING("relax.scatter_elements", ScatterElements);

// The last dimension of the indices has an index for each of the first dimensions of the data,
// which are flattened.
void ScatterND(Lowering& op) {
  const Tensor data = op.Input(0);
  const Tensor given = op.Input(1);
  const int last = given.rank() - 1;
  const int64_t count = op.FixedSize(given, last);
  std::vector<int64_t> sizes(count), strides(count);
  int64_t size = 1;
  for (int64_t i = count - 1; i >= 0; --i) {
    sizes[i] = op.FixedSize(data, static_cast<int>(i));
    strides[i] = size;
    size *= sizes[i];
  }
  Tensor place = FromFront(op, given, op.Constant({FixedDim(count)}, sizes));
  std::vector<npu_dim> dims = given.dims();
  if (count > 1) {
    const Tensor factors = op.Constant({FixedDim(count)}, strides);
    const Tensor parts = op.Temporary(NPU_INT64, dims);
    op.Elementwise(parts,
                   [&](VectorBuilder& v) { return v.Multiply(v.Load(place), v.Load(factors)); });
    dims[last] = FixedDim(1);
    place = op.Temporary(NPU_INT64, dims);
    op.Reduce(NPU_REDUCE_SUM, parts, {last}, place);
  }
  const std::vector<npu_dim> all = data.dims();
  const npu_dim rest = op.Joined({all.begin() + count, all.end()});
  const npu_dim updates = op.Joined({dims.begin(), dims.end() - 1});
  LowerScatter(op, {op.View(data, {FixedDim(1), FixedDim(size), rest}),
                    op.View(place, {FixedDim(1), updates, FixedDim(1)}),
                    op.View(op.Input(2), {FixedDim(1), updates, rest})});
}

REGISTER_LOWERING("relax.scatter_nd", ScatterND);

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
