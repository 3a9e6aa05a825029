// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include "lowering.h"
#include "normalization.h"

namespace npu {
namespace {

void BatchNorm(Lowering& op) {
  if (op.Bool("training")) op.Refuse("training mode is not supported; supported: training=False");
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  const bool has_gamma = op.Bool("scale");
  const bool has_beta = op.Bool("center");
  const double epsilon = op.Float("epsilon");

  // The statistics along the axis, in a shape that broadcasts against the data.
  std::vector<npu_dim> dims(rank - axis, FixedDim(1));
  dims[0] = data.dims()[axis];
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);
  const Tensor mean = op.View(op.Input(3), dims);
  const Tensor variance = op.View(op.Input(4), dims);

  const Tensor factor = op.Temporary(NPU_FLOAT32, dims);
  op.Elementwise(factor, [&](VectorBuilder& v) {
    Value numerator = has_gamma ? v.Load(gamma) : v.Constant(1);
    return v.Divide(numerator, v.Sqrt(v.Add(v.Load(variance), v.Constant(epsilon))));
  });
  op.Elementwise(op.Output(0), [&](VectorBuilder& v) {
    Value result = v.Multiply(v.Subtract(v.Load(data), v.Load(mean)), v.Load(factor));
    return has_beta ? v.Add(result, v.Load(beta)) : result;
  });
  // Without training the statistics do not change, and momentum has no effect.
  op.SetOutput(1, op.Input(3));
  op.SetOutput(2, op.Input(4));
}

REGISTER_LOWERING("relax.nn.batch_norm", BatchNorm);

void LayerNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const std::vector<int64_t> axes = NormalizedAxes(op);
  const std::vector<npu_dim> dims = DimsAt(data.dims(), axes, true);
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);
  Normalize(op, data, axes, gamma, beta, op.Output());
}

REGISTER_LOWERING("relax.nn.layer_norm", LayerNorm);

// Whether the driver is asked for a softmax as one operation, or for its logarithm.
bool EmitSoftmax(Lowering& op, const Tensor& data, int64_t axis, bool logarithm) {
  if (!op.Has(&npu_build_api::add_softmax)) return false;
  npu_softmax softmax = {};
  softmax.data = data.id;
  softmax.out = op.Output().id;
  softmax.axis = static_cast<int32_t>(axis);
  softmax.logarithm = logarithm ? 1 : 0;
  op.Emit(softmax);
  return true;
}

void Softmax(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  if (EmitSoftmax(op, data, axis, false)) return;
  Tensor maximum;
  const Tensor exponential = op.Exponentials(data, axis, &maximum);
  const Tensor sum = op.Temporary(NPU_FLOAT32, maximum.dims());
  op.Reduce(NPU_REDUCE_SUM, exponential, {axis}, sum);
  op.Elementwise(op.Output(),
                 [&](VectorBuilder& v) { return v.Divide(v.Load(exponential), v.Load(sum)); });
}

REGISTER_LOWERING("relax.nn.softmax", Softmax);

void RmsNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const std::vector<int64_t> axes = NormalizedAxes(op);
  const Tensor weight = op.View(op.Input(1), DimsAt(data.dims(), axes, true));
  const Tensor square = op.Temporary(NPU_FLOAT32, data.dims());
  op.Elementwise(square, [&](VectorBuilder& v) { return v.Multiply(v.Load(data), v.Load(data)); });
  const Tensor factor = InverseRoot(op, square, axes, op.Float("epsilon"));
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return v.Multiply(v.Multiply(v.Load(data), v.Load(factor)), v.Load(weight));
  });
}

REGISTER_LOWERING("relax.nn.rms_norm", RmsNorm);

void GroupNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t channel = (op.Int("channel_axis") + data.rank()) % data.rank();
  const int64_t groups = op.Int("num_groups");
  const int64_t size = op.FixedSize(data, static_cast<int>(channel)) / groups;

  // The channels become two dimensions: groups, and channels of a group.
  std::vector<npu_dim> dims = data.dims();
  dims[channel] = FixedDim(groups);
  dims.insert(dims.begin() + channel + 1, FixedDim(size));
  std::vector<int64_t> axes = {channel + 1};
  for (int64_t axis : NormalizedAxes(op)) axes.push_back(axis > channel ? axis + 1 : axis);
  const std::vector<npu_dim> parameter = DimsAt(dims, {channel, channel + 1}, true);
  const Tensor gamma = op.View(op.Input(1), parameter);
  const Tensor beta = op.View(op.Input(2), parameter);

  const Tensor out = op.Temporary(data.desc.dtype, dims);
  Normalize(op, op.View(data, dims), axes, gamma, beta, out);
  op.SetOutput(0, op.View(out, data.dims()));
}

REGISTER_LOWERING("relax.nn.group_norm", GroupNorm);

void InstanceNorm(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t channel = (op.Int("channel_axis") + data.rank()) % data.rank();
  const std::vector<npu_dim> dims = DimsAt(data.dims(), {channel}, true);
  const Tensor gamma = op.View(op.Input(1), dims);
  const Tensor beta = op.View(op.Input(2), dims);
  Normalize(op, data, NormalizedAxes(op), gamma, beta, op.Output());
}

REGISTER_LOWERING("relax.nn.instance_norm", InstanceNorm);

void LogSoftmax(Lowering& op) {
  const Tensor data = op.Input(0);
  const int64_t rank = data.rank();
  const int64_t axis = (op.Int("axis") + rank) % rank;
  if (EmitSoftmax(op, data, axis, true)) return;
  Tensor maximum;
  const Tensor exponential = op.Exponentials(data, axis, &maximum);
  const Tensor log_sum = op.Temporary(NPU_FLOAT32, maximum.dims());
  op.Reduce(NPU_REDUCE_SUM, exponential, {axis}, log_sum,
            [](VectorBuilder& v, Value sum) { return v.Log(sum); });
  op.Elementwise(op.Output(), [&](VectorBuilder& v) {
    return v.Subtract(v.Subtract(v.Load(data), v.Load(maximum)), v.Load(log_sum));
  });
}

REGISTER_LOWERING("relax.nn.log_softmax", LogSoftmax);

}  // namespace
}  // namespace npu
