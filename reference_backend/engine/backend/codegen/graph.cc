// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "layout.h"
#include "lowering.h"

namespace npu {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

json::Array EntryToJson(const EntryRef& entry) {
  return json::Array({static_cast<int64_t>(entry.node), static_cast<int64_t>(entry.index),
                      static_cast<int64_t>(0)});
}

json::Object NodeToJson(const Node& node) {
  json::Array dtypes, shapes, symbolic_shapes;
  bool is_symbolic = false;
  for (const TensorInfo& info : node.outputs) {
    json::Array shape, symbolic_shape;
    for (const Dim& dim : info.shape) {
      is_symbolic = is_symbolic || dim.symbol >= 0;
      shape.push_back(dim.symbol < 0 ? dim.size : static_cast<int64_t>(-1));
      symbolic_shape.push_back(json::Array({dim.size, static_cast<int64_t>(dim.symbol)}));
    }
    dtypes.push_back(String(info.dtype));
    shapes.push_back(shape);
    symbolic_shapes.push_back(symbolic_shape);
  }

  json::Object attrs = {{String("dtype"), json::Array({dtypes})},
                        {String("shape"), json::Array({shapes})}};
  if (is_symbolic) attrs.Set(String("symbolic_shape"), json::Array({symbolic_shapes}));

  const bool is_call = node.kind == Node::Kind::kCall;
  json::Object result = {{String("name"), String(is_call ? node.op : node.name)}};
  if (is_call) {
    json::Array inputs;
    for (const EntryRef& input : node.inputs) inputs.push_back(EntryToJson(input));
    result.Set(String("inputs"), inputs);
    attrs.Set(String("num_inputs"), String(std::to_string(node.inputs.size())));
    attrs.Set(String("num_outputs"), String(std::to_string(node.outputs.size())));
    attrs.Set(String("variable"), String(node.name));
    attrs.Set(String("attributes"), node.attributes);
    if (node.composite >= 0) {
      attrs.Set(String("composite"), String(node.composite_label));
      attrs.Set(String("composite_id"), static_cast<int64_t>(node.composite));
    }
  }
  const bool is_input = node.kind == Node::Kind::kInput;
  result.Set(String("op"), String(is_call ? "kernel" : is_input ? "input" : "const"));
  result.Set(String("attrs"), attrs);
  return result;
}

double HalfToDouble(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  double size = std::ldexp(exponent == 0 ? fraction : fraction + 1024, std::max(exponent, 1) - 25);
  if (exponent == 31) {
    size = fraction == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return half >> 15 != 0 ? -size : size;
}

std::optional<npu_dtype> ReadDtype(const std::string& name) {
  static const std::map<std::string, npu_dtype> dtypes = {
      {"float32", NPU_FLOAT32}, {"float16", NPU_FLOAT16}, {"int8", NPU_INT8}, {"uint8", NPU_UINT8},
      {"int32", NPU_INT32},     {"int64", NPU_INT64},     {"bool", NPU_BOOL}, {"int16", NPU_INT16},
  };
  auto it = dtypes.find(name);
  if (it == dtypes.end()) return std::nullopt;
  return it->second;
}

}  // namespace

std::string Join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

std::string DescribeNode(const Node& node) { return node.op + " (" + node.name + ")"; }

std::vector<npu_dim> ReadDims(const TensorInfo& info) {
  std::vector<npu_dim> dims;
  for (const Dim& dim : info.shape) dims.push_back(npu_dim{dim.size, dim.symbol});
  return dims;
}

npu_tensor_desc MakeDesc(const TensorInfo& info, const std::string& who) {
  std::optional<npu_dtype> dtype = ReadDtype(info.dtype);
  if (!dtype.has_value()) {
    throw Refusal(who + ": the element type " + info.dtype +
                  " is not supported; supported are float32, float16, int8, uint8, int16, int32, "
                  "int64 and bool");
  }
  if (info.shape.size() > NPU_MAX_RANK) {
    throw Refusal(who + ": rank " + std::to_string(info.shape.size()) +
                  " is not supported; the largest is " + std::to_string(NPU_MAX_RANK));
  }
  return DescOf(*dtype, ReadDims(info));
}

bool IsFloat(const std::string& dtype) { return dtype == "float32" || dtype == "float16"; }

std::string_view BytesOf(const Node& constant) {
  const DLTensor* value = constant.value.value().GetDLTensorPtr();
  if (value->device.device_type != kDLCPU) {
    throw Refusal("the constant " + constant.name + " is not in host memory");
  }
  return {static_cast<const char*>(value->data) + value->byte_offset,
          tvm::ffi::GetDataSize(*value)};
}

std::vector<double> Numbers(const Node& node) {
  std::vector<double> numbers;
  if (node.kind != Node::Kind::kConstant) return numbers;
  const std::string_view bytes = BytesOf(node);
  const std::optional<npu_dtype> dtype = ReadDtype(node.outputs[0].dtype);
  auto read = [&](auto number) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(number)) {
      std::memcpy(&number, bytes.data() + i, sizeof(number));
      numbers.push_back(static_cast<double>(number));
    }
  };
  if (dtype == NPU_FLOAT32) read(float{});
  if (dtype == NPU_FLOAT16) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint16_t)) {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i, sizeof(half));
      numbers.push_back(HalfToDouble(half));
    }
  }
  if (dtype == NPU_INT8) read(int8_t{});
  if (dtype == NPU_UINT8) read(uint8_t{});
  if (dtype == NPU_INT16) read(int16_t{});
  if (dtype == NPU_INT32) read(int32_t{});
  return numbers;
}

std::string ToJson(const Graph& graph) {
  json::Array nodes, constants, heads, symbols;
  int64_t row = 0;
  json::Array node_row_ptr = {row};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    nodes.push_back(NodeToJson(node));
    if (node.kind == Node::Kind::kConstant) constants.push_back(static_cast<int64_t>(i));
    row += static_cast<int64_t>(node.outputs.size());
    node_row_ptr.push_back(row);
  }
  // As in TVM, arg_nodes lists the nodes without computation: arguments, then constants.
  json::Array arguments;
  for (size_t argument : graph.arguments) arguments.push_back(static_cast<int64_t>(argument));
  for (const auto& constant : constants) arguments.push_back(constant);
  for (const EntryRef& head : graph.heads) heads.push_back(EntryToJson(head));

  for (const std::string& name : graph.symbols) symbols.push_back(String(name));

  const json::Object root = {{String("symbol"), String(graph.symbol)},
                             {String("symbols"), symbols},
                             {String("nodes"), nodes},
                             {String("arg_nodes"), arguments},
                             {String("heads"), heads},
                             {String("node_row_ptr"), node_row_ptr}};
  return std::string(json::Stringify(root));
}

}  // namespace npu
