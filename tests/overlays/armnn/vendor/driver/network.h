// SPDX-License-Identifier: Apache-2.0
/*!
 * \file network.h
 * \brief Makes Arm NN's network of a program's nodes: to ask about one of them, and to run all.
 */
#ifndef ARMNN_NETWORK_H_
#define ARMNN_NETWORK_H_

#include <armnn/ArmNN.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver_kit/program.h"

namespace npu_armnn {

using npu::kit::CountOf;
using npu::kit::Decline;
using npu::kit::Dims;
using npu::kit::Kind;
using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Scales;
using npu::kit::Source;
using npu::kit::Value;

/*! \brief One for all networks. It is never destroyed: at exit, its backends may be gone before. */
inline armnn::IRuntime& Runtime() {
  static armnn::IRuntime* const runtime = armnn::IRuntime::CreateRaw({});
  return *runtime;
}

/*! \brief A thread that runs another network frees the memory of its last one, which may run. */
inline std::mutex running;

/*! \brief A network in the runtime. */
class Loaded {
 public:
  /*! \brief Declines what Arm NN refuses, in its words. */
  explicit Loaded(const armnn::INetwork& network) {
    std::vector<std::string> messages;
    const auto words = [&] {
      std::string text;
      for (const std::string& message : messages) text += (text.empty() ? "" : "; ") + message;
      return text;
    };
    try {
      armnn::IOptimizedNetworkPtr optimized =
          armnn::Optimize(network, {armnn::Compute::CpuRef}, Runtime().GetDeviceSpec(), {},
                          armnn::Optional<std::vector<std::string>&>(messages));
      if (optimized == nullptr) Decline("Arm NN: " + words());
      std::string error;
      if (Runtime().LoadNetwork(id_, std::move(optimized), error) != armnn::Status::Success) {
        Decline("Arm NN: " + error);
      }
    } catch (const armnn::Exception& error) {
      Decline("Arm NN: " + (messages.empty() ? std::string(error.what()) : words()));
    }
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  ~Loaded() { Runtime().UnloadNetwork(id_); }

  void Run(const armnn::InputTensors& inputs, const armnn::OutputTensors& outputs) const {
    const std::lock_guard<std::mutex> lock(running);
    if (Runtime().EnqueueWorkload(id_, inputs, outputs) != armnn::Status::Success) {
      throw npu::kit::Failure{NPU_DEVICE_ERROR, "Arm NN could not run the network"};
    }
  }

 private:
  armnn::NetworkId id_ = 0;
};

/*! \brief Adds nodes one after the other. */
class Network {
 public:
  /*! \brief `data` has the elements of constants, which need not be right to ask about a node. */
  Network(const Program& program, std::function<const void*(const Value&)> data)
      : program_(program), data_(std::move(data)) {}

  const armnn::INetwork& network() const { return *network_; }

  /*! \brief Adds all inputs and nodes; returns which values something reads. */
  std::vector<bool> DefineAll() {
    std::vector<bool> is_read(program_.values.size(), false);
    for (const Node& node : program_.nodes) {
      for (int32_t id : node.inputs) {
        if (id >= 0) is_read[static_cast<size_t>(id)] = true;
      }
    }
    for (size_t i = 0; i < is_read.size(); ++i) {
      const bool is_input = program_.values[i].source == Source::kInput;
      if (is_input && is_read[i]) AddInput(static_cast<int32_t>(i));
    }
    for (const Node& node : program_.nodes) Define(node);
    return is_read;
  }

  void AddInput(int32_t id) { slots_[id] = Slot(network_->AddInputLayer(id), InfoOf(id)); }

  void AddOutput(int32_t id) {
    slots_.at(id)->Connect(network_->AddOutputLayer(id)->GetInputSlot(0));
  }

  /*! \brief The type, shape and scales of a value. */
  armnn::TensorInfo InfoOf(int32_t id) const { return InfoOf(id, DimsOf(program_.At(id))); }

  void Define(const Node& node) {
    const bool has_limits = std::isfinite(node.least) || std::isfinite(node.most);
    if (has_limits) Decline("Arm NN: no node has limits");
    int with = 0, without = 0;
    for (int32_t id : {node.inputs[0], node.inputs[1], node.out}) {
      if (id < 0 || program_.At(id).dtype == NPU_FLOAT32) continue;
      ++(program_.ScalesOf(id) == nullptr ? without : with);
    }
    if (without > 0 && (with > 0 || !Selects(node))) {
      Decline("Arm NN: integers without a scale are only moved and compared");
    }
    RequireOneScale(InfoOf(node.out));
    slots_[node.out] = ResultOf(node);
  }

 private:
  using Layer = armnn::IConnectableLayer*;
  using Output = armnn::IOutputSlot*;

  /*! \brief Whether each element of a result is one of the operands, or a limit. */
  static bool Selects(const Node& node) {
    if (node.kind == Kind::kPool) return node.pool.kind == NPU_POOL_MAX;
    if (node.kind != Kind::kStep) return node.kind == Kind::kReshape || node.kind == Kind::kCopy;
    return node.step == NPU_STEP_MAXIMUM || node.step == NPU_STEP_MINIMUM ||
           node.step == NPU_STEP_RELU || node.step == NPU_STEP_CLIP;
  }

  // ---- Tensors ----

  static armnn::TensorShape ShapeOf(const Dims& dims) {
    std::vector<unsigned> sizes(dims.begin(), dims.end());
    if (sizes.empty()) sizes = {1};
    return armnn::TensorShape(static_cast<unsigned>(sizes.size()), sizes.data());
  }

  armnn::TensorInfo InfoOf(int32_t id, const Dims& dims) const {
    const npu_dtype dtype = program_.At(id).dtype;
    const armnn::TensorShape shape = ShapeOf(dims);
    if (dtype == NPU_FLOAT32) return {shape, armnn::DataType::Float32};
    const Scales* scales = program_.ScalesOf(id);
    if (dtype == NPU_INT32 && scales != nullptr) {
      // The scales of a bias: one, or one by channel.
      if (scales->scales.size() > 1) return {shape, armnn::DataType::Signed32, scales->scales, 0};
      return {shape, armnn::DataType::Signed32, scales->scales[0], 0};
    }
    if (dtype != NPU_INT8 && dtype != NPU_UINT8) Decline("it computes float32, int8 and uint8");
    const bool is_signed = dtype == NPU_INT8;
    const auto type = is_signed ? armnn::DataType::QAsymmS8 : armnn::DataType::QAsymmU8;
    // Integers without a scale are only moved: any will do.
    if (scales == nullptr) return {shape, type, 1.0f, 0};
    if (scales->scales.size() == 1) {
      return {shape, type, scales->scales[0], scales->zero_points[0]};
    }
    const bool is_centred = std::all_of(scales->zero_points.begin(), scales->zero_points.end(),
                                        [](int32_t zero) { return zero == 0; });
    if (!is_signed || !is_centred) Decline("scales by channel have int8 and zero points 0");
    return {shape, armnn::DataType::QSymmS8, scales->scales, static_cast<unsigned>(scales->axis)};
  }

  static Output Slot(Layer layer, const armnn::TensorInfo& info) {
    layer->GetOutputSlot(0).SetTensorInfo(info);
    return &layer->GetOutputSlot(0);
  }

  const void* DataOf(int32_t id, const char* what) const {
    const Value& value = program_.At(id);
    if (value.source != Source::kConstant) Decline(std::string(what) + " must be a constant");
    return data_(value);
  }

  /*! \brief It ends the process instead of refusing others. */
  static void RequireOneScale(const armnn::TensorInfo& info) {
    if (info.HasMultipleQuantizationScales()) {
      Decline("Arm NN: only weights have scales by channel");
    }
  }

  /*! \brief The elements of a value under these dimensions. */
  Output Read(int32_t id, const Dims& dims) {
    const Value& value = program_.At(id);
    const armnn::TensorInfo info = InfoOf(id, dims);
    RequireOneScale(info);
    if (value.source == Source::kConstant) {
      return Slot(network_->AddConstantLayer(armnn::ConstTensor(info, data_(value))), info);
    }
    const Output slot = slots_.at(id);
    return DimsOf(value) == dims ? slot : Reshaped(slot, info);
  }
  Output Read(int32_t id) { return Read(id, DimsOf(program_.At(id))); }

  Output Reshaped(Output from, const armnn::TensorInfo& info) {
    return Through(network_->AddReshapeLayer(armnn::ReshapeDescriptor(info.GetShape())), from,
                   info);
  }

  static Output Through(Layer layer, Output from, const armnn::TensorInfo& info) {
    from->Connect(layer->GetInputSlot(0));
    return Slot(layer, info);
  }

  static Output Through(Layer layer, Output a, Output b, const armnn::TensorInfo& info) {
    b->Connect(layer->GetInputSlot(1));
    return Through(layer, a, info);
  }

  // ---- Nodes ----

  Output Activation(armnn::ActivationFunction function, Output from, const armnn::TensorInfo& info,
                    float a = 0, float b = 0) {
    return Through(network_->AddActivationLayer({function, a, b}), from, info);
  }

  Output Unary(armnn::UnaryOperation operation, Output from, const armnn::TensorInfo& info) {
    return Through(network_->AddElementwiseUnaryLayer({operation}), from, info);
  }

  /*! \brief An operand that broadcasts has as many dimensions as the result. */
  Output Operand(const Node& node, int32_t which) {
    const int32_t id = node.inputs[which];
    if (id < 0) Decline("Arm NN: " + NameOf(node) + " has no such operand");
    Dims dims = DimsOf(program_.At(id));
    const auto rank = static_cast<size_t>(program_.At(node.out).rank);
    if (dims.size() < rank) dims.insert(dims.begin(), rank - dims.size(), 1);
    return Read(id, dims);
  }

  Output Step(const Node& node) {
    using Function = armnn::ActivationFunction;
    using Operation = armnn::UnaryOperation;
    const armnn::TensorInfo out = InfoOf(node.out);
    const auto pair = [&](Layer (armnn::INetwork::*add)(const char*)) {
      const Output a = Operand(node, 0), b = Operand(node, 1);
      return Through((network_.get()->*add)(nullptr), a, b, out);
    };
    const auto number = [&](int i) { return static_cast<float>(node.numbers[i]); };
    const auto x = [&] { return Operand(node, 0); };
    switch (node.step) {
      case NPU_STEP_ADD:
      case NPU_STEP_BIAS:
      case NPU_STEP_RESIDUAL:
        return pair(&armnn::INetwork::AddAdditionLayer);
      case NPU_STEP_MULTIPLY:
      case NPU_STEP_SCALE:
        return pair(&armnn::INetwork::AddMultiplicationLayer);
      case NPU_STEP_SUBTRACT:
        return pair(&armnn::INetwork::AddSubtractionLayer);
      case NPU_STEP_DIVIDE:
        return pair(&armnn::INetwork::AddDivisionLayer);
      case NPU_STEP_MAXIMUM:
        return pair(&armnn::INetwork::AddMaximumLayer);
      case NPU_STEP_MINIMUM:
        return pair(&armnn::INetwork::AddMinimumLayer);
      case NPU_STEP_ABSOLUTE:
        return Unary(Operation::Abs, x(), out);
      case NPU_STEP_EXP:
        return Unary(Operation::Exp, x(), out);
      case NPU_STEP_SQRT:
        return Unary(Operation::Sqrt, x(), out);
      case NPU_STEP_RSQRT:
        return Unary(Operation::Rsqrt, x(), out);
      case NPU_STEP_NEGATE:
        return Unary(Operation::Neg, x(), out);
      case NPU_STEP_FLOOR:
        return Through(network_->AddFloorLayer(), x(), out);
      case NPU_STEP_SIGMOID:
        return Activation(Function::Sigmoid, x(), out);
      case NPU_STEP_TANH:
        return Activation(Function::TanH, x(), out, 1, 1);
      case NPU_STEP_SQUARE:
        return Activation(Function::Square, x(), out);
      case NPU_STEP_RELU:
        return Activation(Function::ReLu, x(), out);
      case NPU_STEP_CLIP:
        return Activation(Function::BoundedReLu, x(), out, number(2), number(1));
      case NPU_STEP_LEAKY_RELU:
        return Activation(Function::LeakyReLu, x(), out, number(1));
      case NPU_STEP_SILU: {
        if (out.IsQuantized()) Decline("Arm NN: a silu of integers has no scale inside");
        const Output from = x();
        const Output sigmoid = Activation(Function::Sigmoid, from, out);
        return Through(network_->AddMultiplicationLayer(), from, sigmoid, out);
      }
      default:
        Decline("Arm NN: there is no " + NameOf(node));
    }
  }

  /*! \brief A bias of one dimension, if a node has one. */
  armnn::Optional<armnn::ConstTensor> BiasOf(const Node& node) const {
    const int32_t id = node.inputs[2];
    if (id < 0) return armnn::EmptyOptional();
    const void* data = DataOf(id, "a bias");
    return armnn::ConstTensor(InfoOf(id), data);
  }

  template <typename T, typename Descriptor>
  static void SetWindow(const T& op, Descriptor* descriptor) {
    if (op.spatial_rank != 2) Decline("windows have two spatial dimensions");
    for (int i = 0; i < 2; ++i) {
      if (op.pads_begin[i] < 0 || op.pads_end[i] < 0) Decline("padding is not negative");
    }
    const auto number = [](int64_t value) { return static_cast<uint32_t>(value); };
    descriptor->m_PadTop = number(op.pads_begin[0]);
    descriptor->m_PadLeft = number(op.pads_begin[1]);
    descriptor->m_PadBottom = number(op.pads_end[0]);
    descriptor->m_PadRight = number(op.pads_end[1]);
    descriptor->m_StrideY = number(op.strides[0]);
    descriptor->m_StrideX = number(op.strides[1]);
  }

  template <typename Descriptor>
  static Descriptor WindowOf(const npu_convolution& op, bool has_bias) {
    Descriptor descriptor;
    SetWindow(op, &descriptor);
    descriptor.m_DilationY = static_cast<uint32_t>(op.dilations[0]);
    descriptor.m_DilationX = static_cast<uint32_t>(op.dilations[1]);
    descriptor.m_BiasEnabled = has_bias;
    return descriptor;
  }

  Output Convolution(const Node& node) {
    const npu_convolution& op = node.convolution;
    const Value &data = program_.At(node.inputs[0]), &weight = program_.At(node.inputs[1]);
    const void* elements = DataOf(node.inputs[1], "the weight of a convolution");
    const auto bias = BiasOf(node);
    if (op.groups == 1) {
      const auto window = WindowOf<armnn::Convolution2dDescriptor>(op, bias.has_value());
      const armnn::ConstTensor weights(InfoOf(node.inputs[1]), elements);
      return Through(network_->AddConvolution2dLayer(window, weights, bias), Read(node.inputs[0]),
                     InfoOf(node.out));
    }
    if (op.groups != data.dims[1]) Decline("Arm NN: a group of several has one channel");
    // Its order of the channels of a result: all first ones of the groups, all second ones, ...
    const int64_t each = weight.dims[0] / op.groups;
    const size_t size = BytesOf(weight) / static_cast<size_t>(weight.dims[0]);
    std::vector<uint8_t> turned(BytesOf(weight));
    for (int64_t i = 0; i < weight.dims[0]; ++i) {
      std::memcpy(turned.data() + static_cast<size_t>(i % each * op.groups + i / each) * size,
                  static_cast<const uint8_t*>(elements) + static_cast<size_t>(i) * size, size);
    }
    const auto window = WindowOf<armnn::DepthwiseConvolution2dDescriptor>(op, bias.has_value());
    const Dims dims = {each, op.groups, weight.dims[2], weight.dims[3]};
    const armnn::ConstTensor weights(InfoOf(node.inputs[1], dims), turned.data());
    return Through(network_->AddDepthwiseConvolution2dLayer(window, weights, bias),
                   Read(node.inputs[0]), InfoOf(node.out));
  }

  Output Matmul(const Node& node) {
    const Value &a = program_.At(node.inputs[0]), &b = program_.At(node.inputs[1]);
    const Value& out = program_.At(node.out);
    const void* elements = DataOf(node.inputs[1], "the second operand of a matmul");
    if (node.matmul.transpose_a != 0) Decline("the first operand of a matmul is not transposed");
    const Dims matrix = {b.dims[b.rank - 2], b.dims[b.rank - 1]};
    if (CountOf(b) != matrix[0] * matrix[1]) Decline("the second operand of a matmul is one matrix");
    if (a.rank != out.rank) Decline("the first operand of a matmul is not broadcast");
    const int64_t columns = out.dims[out.rank - 1], depth = a.dims[a.rank - 1];
    const int64_t rows = CountOf(out) / columns;
    if (CountOf(a) != rows * depth) Decline("the first operand of a matmul is not broadcast");
    const Dims dims = {rows, depth}, to = {rows, columns};
    const auto bias = BiasOf(node);
    const bool is_turned = node.matmul.transpose_b != 0;
    armnn::TensorInfo info = InfoOf(node.inputs[1], matrix);
    if (info.HasMultipleQuantizationScales()) {
      // Only convolutions know scales by channel: rows are images of one pixel.
      const auto* integers = static_cast<const int8_t*>(elements);
      std::vector<int8_t> turned(integers, integers + CountOf(b));
      for (int64_t i = 0; !is_turned && i < CountOf(b); ++i) {
        turned[static_cast<size_t>(i)] = integers[i % depth * columns + i / depth];
      }
      info.SetShape(ShapeOf({columns, depth, 1, 1}));
      info.SetQuantizationDim(armnn::Optional<unsigned>(0));
      armnn::Convolution2dDescriptor pixel;
      pixel.m_StrideX = pixel.m_StrideY = 1;
      pixel.m_BiasEnabled = bias.has_value();
      const armnn::ConstTensor weights(info, turned.data());
      return Reshaped(Through(network_->AddConvolution2dLayer(pixel, weights, bias),
                              Read(node.inputs[0], {rows, depth, 1, 1}),
                              InfoOf(node.out, {rows, columns, 1, 1})),
                      InfoOf(node.out));
    }
    armnn::FullyConnectedDescriptor descriptor;
    descriptor.m_BiasEnabled = bias.has_value();
    descriptor.m_TransposeWeightMatrix = is_turned;
    const armnn::ConstTensor weights(info, elements);
    const Output sum = Through(network_->AddFullyConnectedLayer(descriptor, weights, bias),
                               Read(node.inputs[0], dims), InfoOf(node.out, to));
    return DimsOf(out) == to ? sum : Reshaped(sum, InfoOf(node.out));
  }

  Output Pool(const Node& node) {
    const Value &data = program_.At(node.inputs[0]), &out = program_.At(node.out);
    const npu_pool& op = node.pool;
    armnn::Pooling2dDescriptor pool;
    int64_t window[2] = {op.window[0], op.window[1]};
    if (op.spatial_rank != 2) Decline("windows have two spatial dimensions");
    if (op.kind == NPU_POOL_AVERAGE_ADAPTIVE) {
      for (int i = 0; i < 2; ++i) {
        if (data.dims[2 + i] % out.dims[2 + i] != 0) Decline("windows of a pool have one size");
        window[i] = data.dims[2 + i] / out.dims[2 + i];
      }
      pool.m_StrideY = static_cast<uint32_t>(window[0]);
      pool.m_StrideX = static_cast<uint32_t>(window[1]);
    } else {
      SetWindow(op, &pool);
      if (op.dilations[0] != 1 || op.dilations[1] != 1) Decline("Arm NN: no pool has a dilation");
    }
    pool.m_PoolHeight = static_cast<uint32_t>(window[0]);
    pool.m_PoolWidth = static_cast<uint32_t>(window[1]);
    const bool is_max = op.kind == NPU_POOL_MAX;
    pool.m_PoolType = is_max ? armnn::PoolingAlgorithm::Max : armnn::PoolingAlgorithm::Average;
    pool.m_PaddingMethod = op.kind == NPU_POOL_AVERAGE_INCLUDE_PAD
                               ? armnn::PaddingMethod::IgnoreValue
                               : armnn::PaddingMethod::Exclude;
    for (int i = 0; i < 2 && op.kind != NPU_POOL_AVERAGE_ADAPTIVE; ++i) {
      const int64_t beyond = (out.dims[2 + i] - 1) * op.strides[i] + window[i] - data.dims[2 + i] -
                             op.pads_begin[i] - op.pads_end[i];
      if (beyond > 0) pool.m_OutputShapeRounding = armnn::OutputShapeRounding::Ceiling;
    }
    return Through(network_->AddPooling2dLayer(pool), Read(node.inputs[0]), InfoOf(node.out));
  }

  Output Mean(const Node& node) {
    const Value& data = program_.At(node.inputs[0]);
    if (node.reduce.kind != NPU_REDUCE_MEAN) Decline("Arm NN: it reduces only to means");
    if (data.rank > 4) Decline("Arm NN: it has means of at most 4 dimensions");  // It aborts.
    armnn::MeanDescriptor mean;
    for (int32_t i = 0; i < data.rank; ++i) {
      if ((node.reduce.axes >> i & 1) != 0) mean.m_Axis.push_back(static_cast<unsigned>(i));
    }
    mean.m_KeepDims = program_.At(node.out).rank == data.rank;
    return Through(network_->AddMeanLayer(mean), Read(node.inputs[0]), InfoOf(node.out));
  }

  /*! \brief A transposition, a slice, or padding. */
  Output Copy(const Node& node) {
    const Value &data = program_.At(node.inputs[0]), &out = program_.At(node.out);
    const npu_copy& op = node.copy;
    const armnn::TensorInfo info = InfoOf(node.out);
    bool transposes = false, slices = false, pads = false;
    std::vector<unsigned> order;
    std::vector<int> begin, end, step;
    std::vector<std::pair<unsigned, unsigned>> padding;
    for (int32_t i = 0; i < data.rank; ++i) {
      const int64_t size = data.dims[i], offset = op.data_offset[i], apart = op.data_step[i];
      order.push_back(static_cast<unsigned>(op.permutation[i]));
      transposes = transposes || op.permutation[i] != i;
      if (op.out_step[i] != 1) Decline("Arm NN: no copy spreads elements");
      const int64_t after = out.dims[i] - op.out_offset[i] - size;
      const bool is_slice = offset != 0 || apart != 1 || (after < 0 && op.permutation[i] == i);
      slices = slices || is_slice;
      pads = pads || op.out_offset[i] != 0 || (after > 0 && !is_slice && op.permutation[i] == i);
      padding.emplace_back(op.out_offset[i], std::max<int64_t>(after, 0));
      begin.push_back(static_cast<int>(offset));
      step.push_back(static_cast<int>(apart));
      end.push_back(static_cast<int>(offset + (out.dims[i] - 1) * apart + (apart > 0 ? 1 : -1)));
    }
    if (int{transposes} + int{slices} + int{pads} > 1) {
      Decline("Arm NN: a node either transposes, or slices, or pads");
    }
    const Output from = Read(node.inputs[0]);
    if (slices) {
      armnn::StridedSliceDescriptor slice(begin, end, step);
      for (size_t i = 0; i < end.size(); ++i) {
        if (step[i] < 0 || end[i] > data.dims[i]) Decline("Arm NN: no slice goes backwards");
      }
      return Through(network_->AddStridedSliceLayer(slice), from, info);
    }
    if (pads) {
      const armnn::PadDescriptor pad(padding, static_cast<float>(op.fill_value));
      // Else Arm NN puts it into a convolution behind it, as zeros and in place of its own padding.
      return Reshaped(Through(network_->AddPadLayer(pad), from, info), info);
    }
    const armnn::TransposeDescriptor permuted(
        armnn::PermutationVector(order.data(), static_cast<unsigned>(order.size())));
    return Through(network_->AddTransposeLayer(permuted), from, info);
  }

  Output ResultOf(const Node& node) {
    const armnn::TensorInfo out = InfoOf(node.out);
    switch (node.kind) {
      case Kind::kStep:
        return Step(node);
      case Kind::kReshape:
        return Reshaped(Read(node.inputs[0]), out);
      case Kind::kMatmul:
        return Matmul(node);
      case Kind::kConvolution:
        return Convolution(node);
      case Kind::kPool:
        return Pool(node);
      case Kind::kReduce:
        return Mean(node);
      case Kind::kCopy:
        return Copy(node);
      case Kind::kQuantize:
        return Through(network_->AddQuantizeLayer(), Read(node.inputs[0]), out);
      case Kind::kDequantize:
        return Through(network_->AddDequantizeLayer(), Read(node.inputs[0]), out);
      default:
        Decline("Arm NN: there is no " + NameOf(node));
    }
  }

  const Program& program_;
  std::function<const void*(const Value&)> data_;
  armnn::INetworkPtr network_ = armnn::INetwork::Create();
  std::map<int32_t, Output> slots_;
};

}  // namespace npu_armnn

#endif  // ARMNN_NETWORK_H_
