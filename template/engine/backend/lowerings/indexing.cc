// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <numeric>
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
