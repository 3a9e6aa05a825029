// SPDX-License-Identifier: Apache-2.0
/*!
 * \file run.cc
 * \brief The run half: builds XNNPACK's graph from a program's nodes, and runs it.
 */
#include <pthreadpool.h>
#include <xnnpack.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "driver_kit/run.h"

namespace {

using npu::kit::Dims;
using npu::kit::Kind;
using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Scales;
using npu::kit::Source;
using npu::kit::Value;

void Check(xnn_status status, const std::string& what) {
  if (status == xnn_status_success) return;
  if (status == xnn_status_out_of_memory) throw std::bad_alloc();
  throw npu::kit::Failure{NPU_DEVICE_ERROR,
                          "XNNPACK refuses " + what + " with status " + std::to_string(status)};
}

using Unary = xnn_status (*)(xnn_subgraph_t, uint32_t, uint32_t, uint32_t);
const std::map<npu_step_kind, Unary> kUnary = {
    {NPU_STEP_ABSOLUTE, xnn_define_abs},  {NPU_STEP_CEIL, xnn_define_ceiling},
    {NPU_STEP_FLOOR, xnn_define_floor},   {NPU_STEP_ROUND_EVEN, xnn_define_bankers_rounding},
    {NPU_STEP_NEGATE, xnn_define_negate}, {NPU_STEP_SIGMOID, xnn_define_sigmoid},
    {NPU_STEP_SQUARE, xnn_define_square}, {NPU_STEP_SQRT, xnn_define_square_root},
};
using Binary = xnn_status (*)(xnn_subgraph_t, float, float, uint32_t, uint32_t, uint32_t, uint32_t);
const std::map<npu_step_kind, Binary> kBinary = {
    {NPU_STEP_ADD, xnn_define_add2},           {NPU_STEP_BIAS, xnn_define_add2},
    {NPU_STEP_RESIDUAL, xnn_define_add2},      {NPU_STEP_SUBTRACT, xnn_define_subtract},
    {NPU_STEP_MULTIPLY, xnn_define_multiply2}, {NPU_STEP_SCALE, xnn_define_multiply2},
    {NPU_STEP_DIVIDE, xnn_define_divide},
};

/*! \brief Extents of a window: rows first, then columns. */
struct Window {
  uint32_t size[2], strides[2], dilations[2], begin[2], end[2];
};

/*! \brief In ceil mode the last window reaches beyond the padding. */
template <typename T>
Window WindowOf(const T& op, const int64_t* size, const Value& data, const Value& out) {
  Window window = {};
  for (int i = 0; i < 2; ++i) {
    const int64_t extent = (size[i] - 1) * op.dilations[i] + 1;
    const int64_t whole = (out.dims[1 + i] - 1) * op.strides[i] + extent - data.dims[1 + i];
    window.size[i] = static_cast<uint32_t>(size[i]);
    window.strides[i] = static_cast<uint32_t>(op.strides[i]);
    window.dilations[i] = static_cast<uint32_t>(op.dilations[i]);
    window.begin[i] = static_cast<uint32_t>(op.pads_begin[i]);
    window.end[i] = static_cast<uint32_t>(std::max(op.pads_end[i], whole - op.pads_begin[i]));
  }
  return window;
}

/*! \brief XNNPACK's graph of a program. */
class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory) : program_(program) {
    static const xnn_status initialized = xnn_initialize(nullptr);
    Check(initialized, "this processor");
    xnn_subgraph_t created = nullptr;
    const size_t count = program.values.size();
    Check(xnn_create_subgraph(static_cast<uint32_t>(count), 0, &created), "a graph");
    const std::unique_ptr<xnn_subgraph, xnn_status (*)(xnn_subgraph_t)> owner(created,
                                                                              xnn_delete_subgraph);
    graph_ = created;
    std::vector<xnn_external_value> external;
    for (uint32_t i = 0; i < count; ++i) {
      const Source source = program.values[i].source;
      uint32_t flags = 0;
      if (source == Source::kInput) flags = XNN_VALUE_FLAG_EXTERNAL_INPUT;
      if (source == Source::kNode && memory[i] != nullptr) flags = XNN_VALUE_FLAG_EXTERNAL_OUTPUT;
      if (flags != 0) external.push_back({i, memory[i]});
      AddValue(i, source == Source::kConstant ? memory[i] : nullptr, flags);
    }
    for (const Node& node : program.nodes) Check(Define(node), "a " + NameOf(node));
    const int threads = std::stoi(program.options.at("threads"));
    if (threads > 1) threads_.reset(pthreadpool_create(static_cast<size_t>(threads)));
    xnn_runtime_t runtime = nullptr;
    Check(xnn_create_runtime_v2(graph_, threads_.get(), 0, &runtime), "the graph");
    runtime_.reset(runtime);
    Check(xnn_setup_runtime(runtime, external.size(), external.data()), "the buffers");
  }

  void Run() { Check(xnn_invoke_runtime(runtime_.get()), "to run"); }

 private:
  static std::vector<size_t> SizesOf(const Dims& dims) {
    return dims.empty() ? std::vector<size_t>{1} : std::vector<size_t>(dims.begin(), dims.end());
  }

  uint32_t AddTensor(const Dims& dims, const void* data, uint32_t id = XNN_INVALID_VALUE_ID,
                     uint32_t flags = 0) {
    const std::vector<size_t> sizes = SizesOf(dims);
    Check(xnn_define_tensor_value(graph_, xnn_datatype_fp32, sizes.size(), sizes.data(), data, id,
                                  flags, &id),
          "a tensor");
    return id;
  }

  /*! \brief Integers without scales are only moved: any scale will do. */
  void AddValue(uint32_t id, const void* data, uint32_t flags) {
    const Value& value = program_.values[id];
    AddIntegers(value, program_.ScalesOf(static_cast<int32_t>(id)), DimsOf(value), data, id, flags);
  }

  /*! \brief The tensor of a value, perhaps in another shape. */
  uint32_t AddIntegers(const Value& value, const Scales* scales, const Dims& dims, const void* data,
                       uint32_t id = XNN_INVALID_VALUE_ID, uint32_t flags = 0) {
    if (value.dtype == NPU_FLOAT32) return AddTensor(dims, data, id, flags);
    const std::vector<size_t> sizes = SizesOf(dims);
    const bool is_bias = value.dtype == NPU_INT32;
    if (scales != nullptr && scales->scales.size() > 1) {
      Check(
          xnn_define_channelwise_quantized_tensor_value(
              graph_, is_bias ? xnn_datatype_qcint32 : xnn_datatype_qcint8, scales->scales.data(),
              sizes.size(), static_cast<size_t>(scales->axis), sizes.data(), data, id, flags, &id),
          "a tensor of integers");
      return id;
    }
    const xnn_datatype dtype = is_bias                   ? xnn_datatype_qint32
                               : value.dtype == NPU_INT8 ? xnn_datatype_qint8
                                                         : xnn_datatype_quint8;
    Check(xnn_define_quantized_tensor_value(graph_, dtype,
                                            scales == nullptr ? 0 : scales->zero_points[0],
                                            scales == nullptr ? 1 : scales->scales[0], sizes.size(),
                                            sizes.data(), data, id, flags, &id),
          "a tensor of integers");
    return id;
  }

  xnn_status Pad(uint32_t from, const Dims& before, const Dims& after, float value, uint32_t out) {
    const std::vector<size_t> first(before.begin(), before.end()), last(after.begin(), after.end());
    return xnn_define_static_constant_pad(graph_, first.data(), last.data(), value, from, out, 0);
  }

  xnn_status Reshape(uint32_t from, const Value& to, uint32_t out) {
    const std::vector<size_t> dims(to.dims, to.dims + to.rank);
    return xnn_define_static_reshape(graph_, dims.size(), dims.data(), from, out, 0);
  }

  xnn_status DefineStep(const Node& node, uint32_t x, uint32_t y, uint32_t out) {
    const Dims dims = DimsOf(program_.At(node.out));
    const auto unary = kUnary.find(node.step);
    if (unary != kUnary.end()) return unary->second(graph_, x, out, 0);
    const auto binary = kBinary.find(node.step);
    if (binary != kBinary.end()) {
      return binary->second(graph_, node.least, node.most, x, y, out, 0);
    }
    switch (node.step) {
      case NPU_STEP_MAXIMUM:
        return xnn_define_maximum2(graph_, x, y, out, 0);
      case NPU_STEP_MINIMUM:
        return xnn_define_minimum2(graph_, x, y, out, 0);
      case NPU_STEP_RELU:
        return xnn_define_clamp(graph_, 0, std::numeric_limits<float>::infinity(), x, out, 0);
      case NPU_STEP_CLIP:
        return xnn_define_clamp(graph_, static_cast<float>(node.numbers[1]),
                                static_cast<float>(node.numbers[2]), x, out, 0);
      case NPU_STEP_LEAKY_RELU:
        return xnn_define_leaky_relu(graph_, static_cast<float>(node.numbers[1]), x, out, 0);
      case NPU_STEP_RSQRT: {
        static const float kOne[1 + XNN_EXTRA_BYTES] = {1};
        const uint32_t root = AddTensor(dims, nullptr);
        Check(xnn_define_square_root(graph_, x, root, 0), "a square root");
        return xnn_define_divide(graph_, node.least, node.most, AddTensor({1}, kOne), root, out, 0);
      }
      case NPU_STEP_SILU: {
        const uint32_t sigmoid = AddTensor(dims, nullptr);
        Check(xnn_define_sigmoid(graph_, x, sigmoid, 0), "a sigmoid");
        return xnn_define_multiply2(graph_, node.least, node.most, x, sigmoid, out, 0);
      }
      default:
        return xnn_status_unsupported_parameter;
    }
  }

  xnn_status DefinePool(const Node& node, uint32_t x, uint32_t out) {
    const Value &data = program_.At(node.inputs[0]), &result = program_.At(node.out);
    const npu_pool& pool = node.pool;
    Window w = {};
    if (pool.kind == NPU_POOL_AVERAGE_ADAPTIVE) {
      if (result.dims[1] * result.dims[2] == 1) {
        return xnn_define_global_average_pooling_2d(graph_, node.least, node.most, x, out, 0);
      }
      for (int i = 0; i < 2; ++i) {
        w.size[i] = w.strides[i] = static_cast<uint32_t>(data.dims[1 + i] / result.dims[1 + i]);
      }
    } else {
      w = WindowOf(pool, pool.window, data, result);
    }
    if (pool.kind == NPU_POOL_MAX) {
      return xnn_define_max_pooling_2d(
          graph_, w.begin[0], w.end[1], w.end[0], w.begin[1], w.size[0], w.size[1], w.strides[0],
          w.strides[1], w.dilations[0], w.dilations[1], node.least, node.most, x, out, 0);
    }
    if (pool.kind == NPU_POOL_AVERAGE_INCLUDE_PAD &&
        w.begin[0] + w.begin[1] + w.end[0] + w.end[1] > 0) {
      // XNNPACK excludes padding from the mean: pad with zeros first.
      const Dims before = {0, w.begin[0], w.begin[1], 0}, after = {0, w.end[0], w.end[1], 0};
      Dims dims = DimsOf(data);
      for (size_t i = 0; i < dims.size(); ++i) dims[i] += before[i] + after[i];
      const uint32_t padded = AddTensor(dims, nullptr);
      Check(Pad(x, before, after, 0, padded), "padding");
      x = padded;
      for (int i = 0; i < 2; ++i) w.begin[i] = w.end[i] = 0;
    }
    return xnn_define_average_pooling_2d(graph_, w.begin[0], w.end[1], w.end[0], w.begin[1],
                                         w.size[0], w.size[1], w.strides[0], w.strides[1],
                                         node.least, node.most, x, out, 0);
  }

  xnn_status Define(const Node& node) {
    uint32_t x = static_cast<uint32_t>(node.inputs[0]);
    const uint32_t y = static_cast<uint32_t>(node.inputs[1]);
    const uint32_t z = static_cast<uint32_t>(node.inputs[2]);  // -1 is XNN_INVALID_VALUE_ID.
    const uint32_t out = static_cast<uint32_t>(node.out);
    const Value& result = program_.At(node.out);
    switch (node.kind) {
      case Kind::kStep:
        return DefineStep(node, x, y, out);
      case Kind::kReshape:
        return Reshape(x, result, out);
      case Kind::kMatmul: {
        const Value& b = program_.At(node.inputs[1]);
        const uint32_t filter =
            AddIntegers(b, program_.ScalesOf(node.inputs[1]),
                        {b.dims[b.rank - 2], b.dims[b.rank - 1]}, program_.Data(b));
        return xnn_define_fully_connected(
            graph_, node.least, node.most, x, filter, z, out,
            node.matmul.transpose_b != 0 ? 0 : XNN_FLAG_TRANSPOSE_WEIGHTS);
      }
      case Kind::kConvolution: {
        const npu_convolution& op = node.convolution;
        const int64_t* filter = program_.At(node.inputs[1]).dims;
        const Window w = WindowOf(op, filter + 1, program_.At(node.inputs[0]), result);
        return xnn_define_convolution_2d(
            graph_, w.begin[0], w.end[1], w.end[0], w.begin[1], w.size[0], w.size[1], w.strides[0],
            w.strides[1], w.dilations[0], w.dilations[1], static_cast<uint32_t>(op.groups),
            static_cast<size_t>(filter[3]), static_cast<size_t>(filter[0] / op.groups), node.least,
            node.most, x, y, z, out, 0);
      }
      case Kind::kPool:
        return DefinePool(node, x, out);
      case Kind::kReduce: {
        const Value& data = program_.At(node.inputs[0]);
        // Channels first: treat each channel as an image with one channel.
        const bool first = node.reduce.axes == 0xc;
        Value image = data;
        if (first) {
          const int64_t* d = data.dims;
          std::copy_n(std::vector<int64_t>{d[0] * d[1], d[2], d[3], 1}.begin(), 4, image.dims);
          const uint32_t reshaped =
              AddIntegers(image, program_.ScalesOf(node.inputs[0]), DimsOf(image), nullptr);
          Check(Reshape(x, image, reshaped), "a change of shape");
          x = reshaped;
        }
        const Dims dims = {image.dims[0], 1, 1, image.dims[3]};
        const uint32_t mean = DimsOf(result) == dims
                                  ? out
                                  : AddIntegers(result, program_.ScalesOf(node.out), dims, nullptr);
        Check(xnn_define_global_average_pooling_2d(graph_, node.least, node.most, x, mean, 0),
              "a mean");
        return mean == out ? xnn_status_success : Reshape(mean, result, out);
      }
      case Kind::kCopy: {
        const Value& data = program_.At(node.inputs[0]);
        const Dims before(node.copy.out_offset, node.copy.out_offset + data.rank);
        Dims after = DimsOf(result);
        for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i] + data.dims[i];
        double fill = node.copy.fill_value;
        const Scales* scales = program_.ScalesOf(node.out);
        if (scales != nullptr) {
          fill = (fill - scales->zero_points[0]) * static_cast<double>(scales->scales[0]);
        }
        return Pad(x, before, after, static_cast<float>(fill), out);
      }
      case Kind::kQuantize:
      case Kind::kDequantize:
        return xnn_define_convert(graph_, x, out, 0);
      default:
        return xnn_status_unsupported_parameter;
    }
  }

  const Program& program_;
  /*! \brief Only while nodes are added. */
  xnn_subgraph_t graph_ = nullptr;
  std::unique_ptr<pthreadpool, void (*)(pthreadpool_t)> threads_{nullptr, pthreadpool_destroy};
  std::unique_ptr<xnn_runtime, xnn_status (*)(xnn_runtime_t)> runtime_{nullptr, xnn_delete_runtime};
};

}  // namespace

const npu_run_api* npu_driver_run(uint32_t) {
  // This XNNPACK reports no times.
  static const npu_run_api api =
      npu::kit::RunTable<Graph, npu::kit::NodeByNode<Graph>>("xnnpack", "2.0");
  return &api;
}
