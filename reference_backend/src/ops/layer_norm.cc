// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "lowering.h"

namespace tvm_example_npu {
namespace {

void LayerNorm(Lowering& op) {
  // TVM's own kernels apply both, whatever these attributes say.
  if (!op.Bool("center")) op.Refuse("center=False is not supported; supported: True");
  if (!op.Bool("scale")) op.Refuse("scale=False is not supported; supported: True");
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  std::vector<int64_t> axes = op.Ints("axes");
  for (int64_t& axis : axes) axis = (axis + rank) % rank;
  if (axes.empty() || !std::is_sorted(axes.begin(), axes.end())) {
    op.Refuse("its attribute 'axes' must name the axes in ascending order");
  }
  const double epsilon = op.Float("epsilon");

  // The shape of the statistics, and that in which gamma and beta broadcast against the data.
  std::vector<npu_dim> kept = data.dims();
  std::vector<npu_dim> dims(rank, FixedDim(1));
  for (int64_t axis : axes) {
    kept[axis] = FixedDim(1);
    dims[axis] = data.dims()[axis];
  }
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);

  // In two passes, for data far from zero.
  const Tensor mean = op.Temporary(NPU_FLOAT32, kept);
  op.Reduce(NPU_REDUCE_MEAN, data, axes, mean);
  const Tensor square = op.Temporary(NPU_FLOAT32, data.dims());
  op.Elementwise(square, [&](VectorBuilder& v) {
    Value deviation = v.Subtract(v.Load(data), v.Load(mean));
    return v.Multiply(deviation, deviation);
  });
  const Tensor factor = op.Temporary(NPU_FLOAT32, kept);
  op.Reduce(NPU_REDUCE_MEAN, square, axes, factor, [&](VectorBuilder& v, Value variance) {
    return v.Divide(v.Constant(1), v.Sqrt(v.Add(variance, v.Constant(epsilon))));
  });
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    Value normal = v.Multiply(v.Subtract(v.Load(data), v.Load(mean)), v.Load(factor));
    return v.Add(v.Multiply(normal, v.Load(gamma)), v.Load(beta));
  });
}

REGISTER_LOWERING("relax.nn.layer_norm", LayerNorm);

}  // namespace
}  // namespace tvm_example_npu
