// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <utility>

namespace npu {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

json::Array EntryToJson(const EntryRef& entry) {
  return json::Array({static_cast<int64_t>(entry.node), static_cast<int64_t>(entry.index),
                      static_cast<int64_t>(0)});
}

json::Object NodeToJson(const Node& node) {
  json::Array dtypes;
  json::Array shapes;
  json::Array symbolic_shapes;
  bool is_symbolic = false;
  for (const TensorInfo& info : node.outputs) {
    json::Array shape;
    json::Array symbolic_shape;
    for (const Dim& dim : info.shape) {
      is_symbolic = is_symbolic || dim.symbol >= 0;
      shape.push_back(dim.symbol < 0 ? dim.size : static_cast<int64_t>(-1));
      symbolic_shape.push_back(json::Array({dim.size, static_cast<int64_t>(dim.symbol)}));
    }
    dtypes.push_back(String(info.dtype));
    shapes.push_back(shape);
    symbolic_shapes.push_back(symbolic_shape);
  }

  json::Object attrs;
  attrs.Set(String("dtype"), json::Array({dtypes}));
  attrs.Set(String("shape"), json::Array({shapes}));
  if (is_symbolic) attrs.Set(String("symbolic_shape"), json::Array({symbolic_shapes}));

  json::Object result;
  result.Set(String("name"), String(node.kind == Node::Kind::kCall ? node.op : node.name));
  if (node.kind == Node::Kind::kCall) {
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
  const char* op = node.kind == Node::Kind::kInput      ? "input"
                   : node.kind == Node::Kind::kConstant ? "const"
                                                        : "kernel";
  result.Set(String("op"), String(op));
  result.Set(String("attrs"), attrs);
  return result;
}

}  // namespace

std::string ToJson(const Graph& graph) {
  json::Array nodes;
  json::Array constants;
  json::Array heads;
  json::Array node_row_ptr;
  int64_t row = 0;
  node_row_ptr.push_back(row);
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

  json::Array symbols;
  for (const std::string& name : graph.symbols) symbols.push_back(String(name));

  json::Object root;
  root.Set(String("symbol"), String(graph.symbol));
  root.Set(String("symbols"), symbols);
  root.Set(String("nodes"), nodes);
  root.Set(String("arg_nodes"), arguments);
  root.Set(String("heads"), heads);
  root.Set(String("node_row_ptr"), node_row_ptr);
  return std::string(json::Stringify(root));
}

}  // namespace npu
