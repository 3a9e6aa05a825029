// SPDX-License-Identifier: Apache-2.0
#include "scales.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "call_view.h"
#include "graph.h"
#include "requantization.h"

namespace npu {

namespace {

namespace ffi = tvm::ffi;

constexpr std::string_view kQuantize = "relax.quantize";
constexpr std::string_view kDequantize = "relax.dequantize";

/*! \brief Ops whose results are elements of their first argument, or of all arguments of the type
 *  of the result. */
bool MovesElements(const Node& node) {
  static const std::set<std::string_view> ops = {"relax.broadcast_to",
                                                 "relax.concat",
                                                 "relax.expand_dims",
                                                 "relax.flatten",
                                                 "relax.flip",
                                                 "relax.max",
                                                 "relax.min",
                                                 "relax.gather_elements",
                                                 "relax.nn.batch_flatten",
                                                 "relax.nn.max_pool1d",
                                                 "relax.nn.max_pool2d",
                                                 "relax.nn.max_pool3d",
                                                 "relax.nn.pad",
                                                 "relax.nn.pixel_shuffle",
                                                 "relax.permute_dims",
                                                 "relax.repeat",
                                                 "relax.reshape",
                                                 "relax.split",
                                                 "relax.squeeze",
                                                 "relax.stack",
                                                 "relax.strided_slice",
                                                 "relax.take",
                                                 "relax.tile",
                                                 "relax.where"};
  if (node.op != "relax.image.resize2d") return ops.count(node.op) != 0;
  const auto method = node.attributes.find(ffi::String("method"));
  return method != node.attributes.end() &&
         (*method).second.cast<ffi::String>() == "nearest_neighbor";
}

bool IsProduct(const Node& node) {
  return node.op == "relax.matmul" || node.op.rfind("relax.nn.conv", 0) == 0;
}

bool IsNarrow(const TensorInfo& info) {
  return info.dtype == "int8" || info.dtype == "uint8" || info.dtype == "int16";
}

/*! \brief Memory of a constant that this file makes. */
class Numbers64 {
 public:
  explicit Numbers64(std::vector<uint64_t> words)
      : words_(std::make_shared<std::vector<uint64_t>>(std::move(words))) {}
  void AllocData(DLTensor* tensor) { tensor->data = words_->data(); }
  void FreeData(DLTensor*) { words_.reset(); }

 private:
  std::shared_ptr<std::vector<uint64_t>> words_;
};

/*! \brief A constant tensor of these integers, of int32 or int64. */
template <typename T>
ffi::Tensor TensorOf(const std::vector<int64_t>& values, const std::vector<int64_t>& shape) {
  const std::vector<T> narrow(values.begin(), values.end());
  std::vector<uint64_t> words((narrow.size() * sizeof(T) + 7) / 8);
  std::memcpy(words.data(), narrow.data(), narrow.size() * sizeof(T));
  return ffi::Tensor::FromNDAlloc(Numbers64(std::move(words)),
                                  ffi::Shape(shape.begin(), shape.end()),
                                  {kDLInt, 8 * sizeof(T), 1}, {kDLCPU, 0});
}

class Rewriter {
 public:
  explicit Rewriter(const Graph& graph) : graph_(graph), to_(graph.nodes.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      first_.push_back(groups_.size());
      for (size_t k = 0; k < graph.nodes[i].outputs.size(); ++k) groups_.push_back(groups_.size());
      to_[i] = {i, 0};
    }
    scales_.resize(groups_.size());
  }

  Graph Rewrite() {
    FindWeightOnly();
    JoinMoved();
    ReadParameters();
    RefuseIntegerArithmetic();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (size_t k = 0; k < graph_.nodes[i].outputs.size(); ++k) {
        graph_.nodes[i].outputs[k].scales = scales_[GroupOf({i, k})];
      }
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) RewriteNode(i);
    for (EntryRef& head : graph_.heads) head = To(head);
    CountUses();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) MakeBiasIntegral(i);
    Compact();
    CountUses();
    return std::move(graph_);
  }

 private:
  // ---- Which tensors have which scales ----

  /*! \brief The tensors that have the same scales have the same group. */
  size_t GroupOf(const EntryRef& entry) {
    size_t group = first_[entry.node] + entry.index;
    while (groups_[group] != group) group = groups_[group] = groups_[groups_[group]];
    return group;
  }

  /*! \brief Constant weights of a product of real numbers stay as they are. */
  void FindWeightOnly() {
    for (const Node& node : graph_.nodes) {
      if (!IsProduct(node) || node.composite < 0) continue;
      const Node* data = &graph_.nodes[node.inputs[0].node];
      while (data->composite == node.composite && MovesElements(*data)) {
        data = &graph_.nodes[data->inputs[0].node];
      }
      if (data->composite != node.composite || data->op != kDequantize) {
        weight_only_.insert(node.composite);
      }
    }
  }

  void JoinMoved() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.kind != Node::Kind::kCall || !MovesElements(node)) continue;
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        for (const EntryRef& input : node.inputs) {
          const bool is_data =
              IsNarrow(node.outputs[k]) && graph_.Info(input).dtype == node.outputs[k].dtype;
          if (is_data) groups_[GroupOf(input)] = GroupOf({i, k});
        }
      }
    }
  }

  /*! \brief The constant parameters of a call that quantizes or dequantizes. */
  std::optional<Scales> ParametersOf(const Node& node) const {
    if (node.inputs.size() < 3) return {};
    const std::vector<double> scales = Numbers(graph_.nodes[node.inputs[1].node]);
    const std::vector<double> zeros = Numbers(graph_.nodes[node.inputs[2].node]);
    if (scales.empty() || zeros.empty()) return {};
    Scales found;
    const size_t count = std::max(scales.size(), zeros.size());
    for (size_t i = 0; i < count; ++i) {
      const double scale = scales[scales.size() == 1 ? 0 : i];
      if (!(static_cast<float>(scale) > 0)) return {};
      found.scales.push_back(static_cast<float>(scale));
      found.zero_points.push_back(static_cast<int32_t>(zeros[zeros.size() == 1 ? 0 : i]));
    }
    // Scales of channels may all be the same.
    const auto same = [](const auto& numbers) {
      return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) ==
             numbers.end();
    };
    if (same(found.scales) && same(found.zero_points)) {
      found.scales.resize(1);
      found.zero_points.resize(1);
      return found;
    }
    const auto rank = static_cast<int64_t>(graph_.Info(node.inputs[0]).shape.size());
    const auto axis = node.attributes.find(ffi::String("axis"));
    if (axis == node.attributes.end()) return {};
    found.axis = static_cast<int>(((*axis).second.cast<int64_t>() + rank) % rank);
    return found;
  }

  void ReadParameters() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const bool quantizes = node.op == kQuantize;
      if ((!quantizes && node.op != kDequantize) || weight_only_.count(node.composite) != 0) {
        continue;
      }
      const EntryRef integers = quantizes ? EntryRef{i, 0} : node.inputs[0];
      const std::optional<Scales> found = ParametersOf(node);
      if (!found.has_value() || !IsNarrow(graph_.Info(integers))) continue;
      std::optional<Scales>& known = scales_[GroupOf(integers)];
      if (known.has_value() && !(*known == *found)) {
        throw Refusal(DescribeNode(node) +
                      ": its integers have another scale or zero point elsewhere; at this driver "
                      "the integers of a tensor have one meaning");
      }
      known = found;
      plain_.insert(i);
    }
  }

  void RefuseIntegerArithmetic() {
    for (const Node& node : graph_.nodes) {
      if (node.kind != Node::Kind::kCall || MovesElements(node)) continue;
      if (node.op == kQuantize || node.op == kDequantize) continue;
      for (const EntryRef& input : node.inputs) {
        if (!scales_[GroupOf(input)].has_value()) continue;
        throw Refusal(DescribeNode(node) +
                      ": it computes with the integers of a quantized tensor, which at this driver "
                      "stand for real numbers");
      }
    }
  }

  // ---- The new graph ----

  EntryRef To(const EntryRef& entry) const { return entry.index == 0 ? to_[entry.node] : entry; }

  void RewriteNode(size_t index) {
    Node& node = graph_.nodes[index];
    for (EntryRef& input : node.inputs) input = To(input);
    if (plain_.count(index) == 0) {
      if (node.kind == Node::Kind::kCall && MovesElements(node)) MoveScales(&node);
      return;
    }
    node.inputs.resize(1);
    if (node.op == kDequantize && IsReadInside(index)) {
      to_[index] = node.inputs[0];
    } else if (node.op == kQuantize && MayStore(node.inputs[0], node)) {
      graph_.nodes[node.inputs[0].node].outputs[0] = node.outputs[0];
      to_[index] = node.inputs[0];
    }
  }

  /*! \brief Whether only calls of its composite read a call. */
  bool IsReadInside(size_t index) const {
    const Node& node = graph_.nodes[index];
    int reads = 0;
    for (size_t i = index + 1; i < graph_.nodes.size(); ++i) {
      if (node.composite < 0 || graph_.nodes[i].composite != node.composite) continue;
      const std::vector<EntryRef>& inputs = graph_.nodes[i].inputs;
      reads += static_cast<int>(std::count(inputs.begin(), inputs.end(), EntryRef{index, 0}));
    }
    return reads > 0 && reads == node.uses[0];
  }

  /*! \brief Whether the op that computes a value may store it as integers. */
  bool MayStore(const EntryRef& entry, const Node& quantize) const {
    const Node& producer = graph_.nodes[entry.node];
    return producer.kind == Node::Kind::kCall && producer.composite == quantize.composite &&
           producer.outputs.size() == 1 && producer.uses[0] == 1 && !MovesElements(producer) &&
           !producer.outputs[0].scales.has_value();
  }

  /*! \brief Real numbers that are moved, and whose dequantize has disappeared. */
  void MoveScales(Node* node) const {
    const TensorInfo& data = graph_.Info(node->inputs[0]);
    TensorInfo& out = node->outputs[0];
    if (!data.scales.has_value() || out.scales.has_value() || !IsFloat(out.dtype)) return;
    // Its fill is a real number, where integers are filled with one.
    if (node->op == "relax.nn.pad") {
      throw Refusal(DescribeNode(*node) + ": there is no pad of real numbers stored as integers");
    }
    Scales moved = *data.scales;
    if (!moved.is_one() && node->op == "relax.permute_dims") {
      std::vector<int32_t> order(data.shape.size());
      std::iota(order.rbegin(), order.rend(), 0);
      const auto axes = node->attributes.find(ffi::String("axes"));
      if (axes != node->attributes.end() && (*axes).second != nullptr) {
        const auto list = (*axes).second.cast<ffi::Array<ffi::Any>>();
        const auto rank = static_cast<int64_t>(order.size());
        for (size_t i = 0; i < order.size(); ++i) {
          order[i] =
              static_cast<int32_t>((list[static_cast<int64_t>(i)].cast<int64_t>() + rank) % rank);
        }
      }
      moved = Permuted(std::move(moved), order.data(), order.size());
    } else if (!moved.is_one()) {
      std::optional<Scales> seen = ScalesOfView(moved, ReadDims(data), ReadDims(out));
      if (!seen.has_value()) throw Refusal(DescribeNode(*node) + ": it mixes several scales");
      moved = *std::move(seen);
    }
    out.dtype = data.dtype;
    out.scales = std::move(moved);
  }

  void CountUses() {
    for (Node& node : graph_.nodes) node.uses.assign(node.outputs.size(), 0);
    const auto count = [this](const EntryRef& entry) {
      std::vector<int>& uses = graph_.nodes[entry.node].uses;
      if (entry.index < uses.size()) ++uses[entry.index];
    };
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (IsGone(i)) continue;
      for (const EntryRef& input : graph_.nodes[i].inputs) count(input);
    }
    for (const EntryRef& head : graph_.heads) count(head);
  }

  bool IsGone(size_t node) const { return node < to_.size() && to_[node].node != node; }

  /*! \brief The scales of the sums of a product, one or one for each channel; empty: it is none. */
  std::vector<double> SumScales(const Node& product) const {
    if (!IsProduct(product) || product.inputs.size() < 2) return {};
    const std::optional<Scales>& data = graph_.Info(product.inputs[0]).scales;
    const std::optional<Scales>& weight = graph_.Info(product.inputs[1]).scales;
    if (!data.has_value() || !weight.has_value() || !data->is_one()) return {};
    std::vector<double> scales;
    for (float scale : weight->scales) {
      scales.push_back(static_cast<double>(data->scales[0]) * static_cast<double>(scale));
    }
    const std::vector<Dim>& out = product.outputs[0].shape;
    const auto channels =
        static_cast<size_t>((product.op == "relax.matmul" ? out.back() : out.at(1)).size);
    // The weight of a transposed convolution has the channels of one group.
    const size_t count = scales.size();
    while (count > 1 && scales.size() < channels) scales.push_back(scales[scales.size() - count]);
    return scales;
  }

  /*! \brief Makes the constant that is added first to a product an integer. */
  void MakeBiasIntegral(size_t index) {
    const std::vector<double> sums = SumScales(graph_.nodes[index]);
    if (sums.empty() || IsGone(index) || graph_.nodes[index].uses[0] != 1) return;
    const bool wide = graph_.Info(graph_.nodes[index].inputs[0]).dtype == "int16";
    for (size_t i = index + 1; i < graph_.nodes.size(); ++i) {
      const auto reads = [&](size_t k) { return graph_.nodes[i].inputs[k] == EntryRef{index, 0}; };
      if (IsGone(i) || graph_.nodes[i].op != "relax.add" ||
          graph_.nodes[i].composite != graph_.nodes[index].composite || (!reads(0) && !reads(1))) {
        continue;
      }
      const size_t place = reads(0) ? 1 : 0;
      const Node constant = graph_.nodes[graph_.nodes[i].inputs[place].node];
      const std::vector<double> numbers = Numbers(constant);
      if (numbers.empty() || (sums.size() > 1 && numbers.size() != sums.size())) return;
      const std::optional<std::vector<int64_t>> bias = InSteps(numbers, sums, wide);
      if (!bias.has_value()) return;
      Node made = constant;
      TensorInfo& info = made.outputs[0];
      std::vector<int64_t> shape;
      Scales scales;
      for (size_t d = 0; d < info.shape.size(); ++d) {
        shape.push_back(info.shape[d].size);
        if (info.shape[d].size != 1 && sums.size() > 1) scales.axis = static_cast<int>(d);
      }
      scales.scales.assign(sums.begin(), sums.end());
      scales.zero_points.assign(sums.size(), 0);
      info.dtype = wide ? "int64" : "int32";
      info.scales = scales;
      made.value = wide ? TensorOf<int64_t>(*bias, shape) : TensorOf<int32_t>(*bias, shape);
      graph_.nodes[i].inputs[place] = {graph_.nodes.size(), 0};
      graph_.nodes.push_back(std::move(made));
      return;
    }
  }

  /*! \brief Removes the calls that have disappeared. */
  void Compact() {
    std::vector<size_t> place(graph_.nodes.size());
    std::vector<Node> kept;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      place[i] = kept.size();
      if (!IsGone(i)) kept.push_back(std::move(graph_.nodes[i]));
    }
    for (Node& node : kept) {
      for (EntryRef& input : node.inputs) input.node = place[input.node];
    }
    for (EntryRef& head : graph_.heads) head.node = place[head.node];
    for (size_t& argument : graph_.arguments) argument = place[argument];
    graph_.nodes = std::move(kept);
    // Of nodes that had other places.
    to_.clear();
  }

  Graph graph_;
  /*! \brief By node: where its first result is now. */
  std::vector<EntryRef> to_;
  std::vector<size_t> first_, groups_;
  /*! \brief By group. */
  std::vector<std::optional<Scales>> scales_;
  /*! \brief Composites of real numbers and integer weights. */
  std::set<int> weight_only_;
  /*! \brief Calls that only change how numbers are stored. */
  std::set<size_t> plain_;
};

}  // namespace

std::optional<Scales> ScalesOfView(const Scales& scales, const std::vector<npu_dim>& from,
                                   const std::vector<npu_dim>& to) {
  if (scales.is_one()) return scales;
  const auto before = [](const std::vector<npu_dim>& dims, size_t axis) {
    int64_t count = 1;
    for (size_t i = 0; i < axis; ++i) count *= dims[i].size;
    return count;
  };
  const auto axis = static_cast<size_t>(scales.axis);
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].size != from[axis].size || before(to, i) != before(from, axis)) continue;
    Scales moved = scales;
    moved.axis = static_cast<int>(i);
    return moved;
  }
  return {};
}

Scales Permuted(Scales scales, const int32_t* order, size_t rank) {
  if (scales.is_one()) return scales;
  scales.axis = static_cast<int>(std::find(order, order + rank, scales.axis) - order);
  return scales;
}

Graph WithScales(const Graph& graph) { return Rewriter(graph).Rewrite(); }

}  // namespace npu
