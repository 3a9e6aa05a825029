// SPDX-License-Identifier: Apache-2.0
/*!
 * \file graph.h
 * \brief A region as plain data, read from a Relax function, its JSON form, and its values
 * in the terms of the driver interface.
 */
#ifndef CODEGEN_GRAPH_H_
#define CODEGEN_GRAPH_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npu_driver.h"
#include "scales.h"

namespace npu {

/*! \brief A size: `size`, or `size` times the value of `Graph::symbols[symbol]`. */
struct Dim {
  int64_t size = 0;
  int32_t symbol = -1;

  bool operator==(const Dim& other) const { return size == other.size && symbol == other.symbol; }
};

/*! \brief Element type (as TVM spells it) and shape of a tensor. */
struct TensorInfo {
  std::string dtype;
  std::vector<Dim> shape;
  /*! \brief Only in a graph `WithScales`. */
  std::optional<Scales> scales = {};
};

/*! \brief Output `index` of node `node`. */
struct EntryRef {
  size_t node = 0;
  size_t index = 0;

  bool operator==(const EntryRef& other) const {
    return node == other.node && index == other.index;
  }
};

/*! \brief An argument of the region, a constant, or a call of a Relax op. */
struct Node {
  enum class Kind { kInput, kConstant, kCall };

  Kind kind = Kind::kCall;
  /*! \brief The name of the Relax variable, or of the constant. */
  std::string name;
  /*! \brief The Relax op of a call, e.g. "relax.nn.conv2d". */
  std::string op;
  std::vector<EntryRef> inputs;
  /*! \brief Empty for an argument that is a shape or a number. */
  std::vector<TensorInfo> outputs;
  /*! \brief How often each of these is read, by calls and as a result of the region. */
  std::vector<int> uses;
  /*! \brief Every attribute and every non-tensor argument of a call, by name. */
  tvm::ffi::json::Object attributes;
  /*! \brief The composite call that contains it, or -1; calls of one composite may be fused. */
  int composite = -1;
  /*! \brief The composite's name: a label, never read by the lowering. */
  std::string composite_label;
  /*! \brief The value of a constant. */
  tvm::ffi::Optional<tvm::ffi::Tensor> value;
};

/*! \brief The graph of one region, nodes in execution order. */
struct Graph {
  std::string symbol;
  std::vector<std::string> symbols;
  std::vector<Node> nodes;
  /*! \brief The arguments of the region, in order. */
  std::vector<size_t> arguments;
  /*! \brief Of each argument, what enters it for a user's data, samples in the first dimension; or
   *  nothing. */
  std::vector<tvm::ffi::Tensor> samples;
  std::vector<EntryRef> heads;

  const TensorInfo& Info(const EntryRef& entry) const {
    return nodes[entry.node].outputs[entry.index];
  }
  int Uses(const EntryRef& entry) const {
    const std::vector<int>& uses = nodes[entry.node].uses;
    return entry.index < uses.size() ? uses[entry.index] : 0;
  }
};

/*! \brief The items with commas between them. */
std::string Join(const std::vector<std::string>& items);
/*! \brief A call in messages: "relax.nn.conv2d (lv3)". */
std::string DescribeNode(const Node& node);
std::vector<npu_dim> ReadDims(const TensorInfo& info);
/*! \brief The shape and type of a value. If the driver interface has no such type, the error names
 *  `who`.
 */
npu_tensor_desc MakeDesc(const TensorInfo& info, const std::string& who);
bool IsFloat(const std::string& dtype);
/*! \brief The memory of a constant; refuses one that is not on the host. */
std::string_view BytesOf(const Node& constant);
/*! \brief The numbers of a constant; empty for any other value. */
std::vector<double> Numbers(const Node& node);

/*!
 * \brief The graph in the JSON layout of TVM: nodes, arg_nodes, heads, node_row_ptr.
 *
 * A symbolic size is -1 in `shape`; `symbolic_shape` then has pairs of a factor and the index of
 * its symbol in `symbols`, or -1.
 */
std::string ToJson(const Graph& graph);

}  // namespace npu

#endif  // CODEGEN_GRAPH_H_
