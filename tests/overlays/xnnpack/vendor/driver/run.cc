// SPDX-License-Identifier: Apache-2.0
/*!
 * \file run.cc
 * \brief The run half: makes XNNPACK's graph of a program's nodes, and runs it.
 */
#include <pthreadpool.h>
#include <xnnpack.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "npu_driver.h"
#include "program.h"

namespace {

using driver::Kind;
using driver::Node;
using driver::Source;
using driver::Value;

thread_local std::string reason;

void Check(xnn_status status, const std::string& what) {
  if (status == xnn_status_success) return;
  if (status == xnn_status_out_of_memory) throw std::bad_alloc();
  throw driver::Failure{NPU_DEVICE_ERROR,
                        "XNNPACK refuses " + what + " with status " + std::to_string(status)};
}

using Subgraph = std::unique_ptr<xnn_subgraph, xnn_status (*)(xnn_subgraph_t)>;
using Runtime = std::unique_ptr<xnn_runtime, xnn_status (*)(xnn_runtime_t)>;
using Pool = std::unique_ptr<pthreadpool, void (*)(pthreadpool_t)>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Unary = xnn_status (*)(xnn_subgraph_t, uint32_t, uint32_t, uint32_t);
const std::map<Kind, Unary> kUnary = {
    {Kind::kAbs, xnn_define_abs},         {Kind::kCeil, xnn_define_ceiling},
    {Kind::kFloor, xnn_define_floor},     {Kind::kNegate, xnn_define_negate},
    {Kind::kSigmoid, xnn_define_sigmoid}, {Kind::kRound, xnn_define_bankers_rounding},
    {Kind::kSquare, xnn_define_square},   {Kind::kSquareRoot, xnn_define_square_root},
};
using Binary = xnn_status (*)(xnn_subgraph_t, float, float, uint32_t, uint32_t, uint32_t, uint32_t);
const std::map<Kind, Binary> kBinary = {
    {Kind::kAdd, xnn_define_add2},
    {Kind::kDivide, xnn_define_divide},
    {Kind::kMultiply, xnn_define_multiply2},
    {Kind::kSubtract, xnn_define_subtract},
};

xnn_status Define(xnn_subgraph_t graph, const driver::Program& program, const Node& node) {
  const uint32_t x = static_cast<uint32_t>(node.inputs[0]);
  const uint32_t y = static_cast<uint32_t>(node.inputs[1]);
  const uint32_t z = static_cast<uint32_t>(node.inputs[2]);  // -1 is XNN_INVALID_VALUE_ID.
  const uint32_t out = static_cast<uint32_t>(node.out);
  const driver::Window& w = node.window;
  const Value& result = program.values[out];
  const size_t dims[] = {static_cast<size_t>(result.dims[0]), static_cast<size_t>(result.dims[1]),
                         static_cast<size_t>(result.dims[2]), static_cast<size_t>(result.dims[3])};
  const auto unary = kUnary.find(node.kind);
  if (unary != kUnary.end()) return unary->second(graph, x, out, 0);
  const auto binary = kBinary.find(node.kind);
  if (binary != kBinary.end()) {
    return binary->second(graph, -kInfinity, kInfinity, x, y, out, 0);
  }
  switch (node.kind) {
    case Kind::kReshape:
      return xnn_define_static_reshape(graph, static_cast<size_t>(result.rank), dims, x, out, 0);
    case Kind::kMaximum:
      return xnn_define_maximum2(graph, x, y, out, 0);
    case Kind::kMinimum:
      return xnn_define_minimum2(graph, x, y, out, 0);
    case Kind::kClamp:
      return xnn_define_clamp(graph, node.least, node.most, x, out, 0);
    case Kind::kLeakyRelu:
      return xnn_define_leaky_relu(graph, node.least, x, out, 0);
    case Kind::kPad: {
      size_t before[driver::kMaxRank], after[driver::kMaxRank];
      for (int i = 0; i < driver::kMaxRank; ++i) {
        before[i] = static_cast<size_t>(node.before[i]);
        after[i] = static_cast<size_t>(node.after[i]);
      }
      return xnn_define_static_constant_pad(graph, before, after, node.least, x, out, 0);
    }
    case Kind::kConvolution: {
      const int64_t* filter = program.values.at(y).dims;
      return xnn_define_convolution_2d(
          graph, w.begin[0], w.end[1], w.end[0], w.begin[1], w.size[0], w.size[1], w.strides[0],
          w.strides[1], w.dilations[0], w.dilations[1], w.groups, static_cast<size_t>(filter[3]),
          static_cast<size_t>(filter[0] / w.groups), -kInfinity, kInfinity, x, y, z, out, 0);
    }
    case Kind::kFullyConnected:
      return xnn_define_fully_connected(graph, -kInfinity, kInfinity, x, y, z, out, 0);
    case Kind::kAveragePool:
      return xnn_define_average_pooling_2d(graph, w.begin[0], w.end[1], w.end[0], w.begin[1],
                                           w.size[0], w.size[1], w.strides[0], w.strides[1],
                                           -kInfinity, kInfinity, x, out, 0);
    case Kind::kGlobalAverage:
      return xnn_define_global_average_pooling_2d(graph, -kInfinity, kInfinity, x, out, 0);
    case Kind::kMaxPool:
      return xnn_define_max_pooling_2d(graph, w.begin[0], w.end[1], w.end[0], w.begin[1], w.size[0],
                                       w.size[1], w.strides[0], w.strides[1], w.dilations[0],
                                       w.dilations[1], -kInfinity, kInfinity, x, out, 0);
    default:
      return xnn_status_unsupported_parameter;
  }
}

/*! \brief Copies a tensor between channels first and channels last. */
void Transpose(const Value& value, const float* from, float* to, bool to_channels_last) {
  if (value.rank != 4) {
    std::memcpy(to, from, static_cast<size_t>(driver::CountOf(value)) * sizeof(float));
    return;
  }
  const int64_t places = value.dims[1] * value.dims[2], channels = value.dims[3];
  for (int64_t n = 0; n < value.dims[0]; ++n, from += places * channels, to += places * channels) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < places; ++p) {
        if (to_channels_last) {
          to[p * channels + c] = from[c * places + p];
        } else {
          to[c * places + p] = from[p * channels + c];
        }
      }
    }
  }
}

}  // namespace

struct npu_program {
  driver::Program program;
  const uint8_t* constants = nullptr;
  Pool threads{nullptr, pthreadpool_destroy};
  std::string text;
};

struct npu_request {
  explicit npu_request(npu_program* p);

  npu_program* loaded;
  Runtime runtime{nullptr, xnn_delete_runtime};
  /*! \brief By value: those that XNNPACK does not keep itself. */
  std::vector<std::vector<float>> memory;
  std::vector<const float*> inputs;
  std::vector<float*> outputs;
};

npu_request::npu_request(npu_program* p)
    : loaded(p), inputs(p->program.inputs.size()), outputs(p->program.outputs.size()) {
  const driver::Program& program = p->program;
  const size_t count = program.values.size();
  xnn_subgraph_t created = nullptr;
  Check(xnn_create_subgraph(static_cast<uint32_t>(count), 0, &created), "a graph");
  Subgraph graph(created, xnn_delete_subgraph);
  std::vector<uint32_t> flags(count, 0);
  for (const Value& port : program.outputs) {
    if (program.values[static_cast<size_t>(port.place)].source == Source::kNode) {
      flags[static_cast<size_t>(port.place)] = XNN_VALUE_FLAG_EXTERNAL_OUTPUT;
    }
  }
  memory.resize(count);
  std::vector<xnn_external_value> external;
  for (uint32_t i = 0; i < count; ++i) {
    const Value& value = program.values[i];
    const std::vector<size_t> dims(value.dims, value.dims + value.rank);
    const bool constant = value.source == Source::kConstant;
    if (value.source == Source::kInput) flags[i] = XNN_VALUE_FLAG_EXTERNAL_INPUT;
    if (flags[i] != 0) {
      memory[i].resize(static_cast<size_t>(driver::CountOf(value)) + driver::kBeyond);
      external.push_back({i, memory[i].data()});
    }
    uint32_t id = 0;
    Check(
        xnn_define_tensor_value(graph.get(), xnn_datatype_fp32, dims.size(), dims.data(),
                                constant ? p->constants + value.place : nullptr, i, flags[i], &id),
        "a tensor");
  }
  for (const Node& node : program.nodes) {
    Check(Define(graph.get(), program, node), driver::kKindNames[static_cast<int>(node.kind)]);
  }
  if (program.nodes.empty()) return;
  xnn_runtime_t runtime_created = nullptr;
  Check(xnn_create_runtime_v2(graph.get(), p->threads.get(), 0, &runtime_created), "the graph");
  runtime.reset(runtime_created);
  Check(xnn_setup_runtime(runtime.get(), external.size(), external.data()), "the buffers");
}

namespace {

npu_status Load(npu_device*, const uint8_t* bytes, size_t size, npu_program** program) {
  return driver::Try(&reason, [&] {
    static const xnn_status initialized = xnn_initialize(nullptr);
    Check(initialized, "this processor");
    auto loaded = std::make_unique<npu_program>();
    loaded->program = driver::Parse(bytes, size, &loaded->constants);
    if (loaded->program.threads > 1) {
      loaded->threads.reset(pthreadpool_create(static_cast<size_t>(loaded->program.threads)));
    }
    for (const Node& node : loaded->program.nodes) {
      loaded->text += driver::kKindNames[static_cast<int>(node.kind)];
      const Value& value = loaded->program.values[static_cast<size_t>(node.out)];
      for (int32_t i = 0; i < value.rank; ++i) {
        loaded->text += (i == 0 ? " -> " : " x ") + std::to_string(value.dims[i]);
      }
      loaded->text += "\n";
    }
    *program = loaded.release();
  });
}

/*! \brief Refuses a buffer that is not as the program says. */
void CheckBuffer(const std::vector<Value>& ports, size_t index, const npu_buffer* buffer) {
  if (index >= ports.size()) throw driver::Failure{NPU_INVALID, "there is no such input or output"};
  const Value& port = ports[index];
  bool same = buffer->dtype == NPU_FLOAT32 && buffer->rank == port.rank &&
              buffer->bytes == static_cast<size_t>(driver::CountOf(port)) * sizeof(float);
  for (int32_t i = 0; same && i < port.rank; ++i) same = buffer->dims[i] == port.dims[i];
  if (!same)
    throw driver::Failure{NPU_INVALID, "a buffer has another type or shape than the program"};
}

npu_status BindInput(npu_request* request, size_t index, const npu_buffer* buffer) {
  return driver::Try(&reason, [&] {
    CheckBuffer(request->loaded->program.inputs, index, buffer);
    request->inputs[index] = static_cast<const float*>(buffer->data);
  });
}

npu_status BindOutput(npu_request* request, size_t index, const npu_buffer* buffer) {
  return driver::Try(&reason, [&] {
    CheckBuffer(request->loaded->program.outputs, index, buffer);
    request->outputs[index] = static_cast<float*>(buffer->data);
  });
}

npu_status Execute(npu_request* request) {
  return driver::Try(&reason, [&] {
    const driver::Program& program = request->loaded->program;
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      if (value.source != Source::kInput) continue;
      const float* from = request->inputs[static_cast<size_t>(value.place)];
      if (from == nullptr) throw driver::Failure{NPU_INVALID, "an input is not bound"};
      Transpose(value, from, request->memory[i].data(), true);
    }
    if (request->runtime) Check(xnn_invoke_runtime(request->runtime.get()), "to run");
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const size_t id = static_cast<size_t>(program.outputs[i].place);
      const Value& value = program.values[id];
      if (request->outputs[i] == nullptr)
        throw driver::Failure{NPU_INVALID, "an output is not bound"};
      const auto* constant =
          reinterpret_cast<const float*>(request->loaded->constants + value.place);
      Transpose(value, value.source == Source::kConstant ? constant : request->memory[id].data(),
                request->outputs[i], false);
    }
  });
}

npu_run_api MakeTable() {
  npu_run_api api = {};
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = "xnnpack";
  api.release = "1.0";
  api.error = [] { return reason.c_str(); };
  api.load = Load;
  api.unload = [](npu_program* program) { delete program; };
  api.describe = [](npu_program* program, const char** text) {
    *text = program->text.c_str();
    return NPU_OK;
  };
  api.create_request = [](npu_program* program, npu_request** request) {
    return driver::Try(&reason, [&] { *request = new npu_request(program); });
  };
  api.destroy_request = [](npu_request* request) { delete request; };
  api.bind_input = BindInput;
  api.bind_output = BindOutput;
  api.execute = Execute;
  return api;
}

}  // namespace

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api = MakeTable();
  return &api;
}
