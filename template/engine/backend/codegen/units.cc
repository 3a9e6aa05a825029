// SPDX-License-Identifier: Apache-2.0
#include "units.h"

#include <algorithm>
#include <unordered_set>

namespace npu {

namespace {

/*! \brief How many arguments of a call are data; of a quantize, only the first is. */
size_t DataCount(const Node& node) { return node.op == "relax.quantize" ? 1 : node.inputs.size(); }

class UnitFormer {
 public:
  UnitFormer(const Graph& graph, const Registry& registry)
      : graph_(graph),
        registry_(registry),
        claimed_(graph.nodes.size(), 0),
        users_(graph.nodes.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const EntryRef& input : graph.nodes[i].inputs) users_[input.node].push_back(i);
    }
  }

  Units Form() {
    ClaimTransposes();
    InlineDequantizations();
    InlineWeights();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].kind == Node::Kind::kCall && !claimed_[i]) FormUnit(i);
    }
    std::sort(result_.list.begin(), result_.list.end(),
              [](const Unit& a, const Unit& b) { return a.Last() < b.Last(); });
    return std::move(result_);
  }

 private:
  /*! \brief Claims the transposes that ops absorb, since they precede these. */
  void ClaimTransposes() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.kind != Node::Kind::kCall || !registry_.Any(i, &OpLowering::absorbs_transpose)) {
        continue;
      }
      for (const EntryRef& input : node.inputs) {
        if (SwapsLastDims(input.node) && graph_.Uses(input) == 1 &&
            graph_.nodes[input.node].composite == node.composite) {
          claimed_[input.node] = 1;
        }
      }
    }
  }

  /*! \brief Claims the dequantizations in composites whose op computes in integers: those of its
   *  arguments, and those that its epilogue reads. */
  void InlineDequantizations() {
    std::unordered_set<int> quantized;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const auto end = node.inputs.begin() + static_cast<std::ptrdiff_t>(DataCount(node));
      if (end == node.inputs.begin() ||
          !std::all_of(node.inputs.begin(), end,
                       [&](const EntryRef& input) { return IsDequantized(input, node); })) {
        continue;
      }
      const OpLowering* lowering = registry_.Find(i);
      if (lowering != nullptr && lowering->takes_quantized) quantized.insert(node.composite);
    }
    for (const Node& node : graph_.nodes) {
      if (quantized.count(node.composite) == 0) continue;
      for (const EntryRef& input : node.inputs) {
        if (!IsDequantized(input, node)) continue;
        result_.inlined[input.node] = registry_.Find(input.node, true);
        claimed_[input.node] = 1;
      }
    }
  }

  /*! \brief Claims the ops that dequantize the constant weights of a matmul, in its composite.
   */
  void InlineWeights() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op != "relax.matmul" || node.composite < 0 || claimed_[i]) continue;
      if (IsInlined(node.inputs.at(1))) continue;
      EntryRef at = node.inputs.at(1);
      auto is = [&](const char* op) {
        const Node& producer = graph_.nodes[at.node];
        return producer.op == op && producer.composite == node.composite && graph_.Uses(at) == 1;
      };
      if (claimed_[at.node] && SwapsLastDims(at.node)) at = graph_.nodes[at.node].inputs.at(0);
      const EntryRef matrix = at;
      if (is("relax.reshape")) at = graph_.nodes[at.node].inputs.at(0);
      if (!is("relax.dequantize")) continue;
      const EntryRef numbers = graph_.nodes[at.node].inputs.at(0);
      if (graph_.nodes[numbers.node].kind != Node::Kind::kConstant) continue;
      claimed_[matrix.node] = claimed_[at.node] = 1;
      weights_[i] = at.node;
    }
  }

  void FormUnit(size_t index) {
    const Node& node = graph_.nodes[index];
    const OpLowering* lowering = registry_.Find(index);
    if (lowering == nullptr) {
      throw Refusal(DescribeNode(node) + ": this backend has no lowering for it; it has one for " +
                    Join(LoweredOps()));
    }
    Unit unit(graph_, index, lowering);
    for (size_t k = 0; k < unit.inputs.size() && lowering->absorbs_transpose; ++k) {
      const size_t producer = unit.inputs[k].node;
      if (claimed_[producer] && SwapsLastDims(producer)) {
        unit.inputs[k] = graph_.nodes[producer].inputs[0];
        unit.transposed[k] = true;
      }
    }
    auto weights = weights_.find(index);
    if (weights != weights_.end()) {
      unit.weights = weights->second;
    } else if (!lowering->takes_quantized && lowering->elementwise == nullptr &&
               // Others, such as a softmax, read real numbers.
               registry_.Any(index, &OpLowering::takes_quantized) && ReadsDequantized(node)) {
      throw Refusal(DescribeNode(node) + ": its lowering takes no quantized tensors");
    }
    if (lowering->takes_quantized && !unit.inputs.empty() && IsInlined(unit.inputs[0])) {
      for (size_t k = 0; k < DataCount(node); ++k) {
        EntryRef& input = unit.inputs[k];
        unit.dequantized.push_back(input.node);
        input = graph_.nodes[input.node].inputs.at(0);
      }
    }
    claimed_[index] = 1;
    // An op with both kinds of lowering is a vector program only if other ops are fused with it.
    const bool takes_epilogue = lowering->takes_epilogue || !unit.dequantized.empty();
    const OpLowering* elementwise = takes_epilogue ? nullptr : registry_.Find(index, true);
    if (takes_epilogue || elementwise != nullptr) {
      FuseInto(&unit);
      for (const auto& fused : unit.epilogue) claimed_[fused.first] = 1;
      if (!unit.epilogue.empty() && elementwise != nullptr) unit.lowering = elementwise;
    }
    result_.list.push_back(std::move(unit));
  }

  /*! \brief Adds the element-wise calls of the composite that can share a vector program with the
   *  unit: those of the same shape, as long as nothing else reads the intermediate values. */
  void FuseInto(Unit* unit) const {
    const Node& anchor = graph_.nodes[unit->anchor];
    if (anchor.composite < 0 || !MayBeInside(unit->anchor)) return;
    std::unordered_set<size_t> members = {unit->anchor};
    std::vector<EntryRef> operands;
    auto add_operands = [&](const std::vector<EntryRef>& inputs) {
      for (const EntryRef& input : inputs) {
        const bool known = std::find(operands.begin(), operands.end(), input) != operands.end();
        if (members.count(input.node) == 0 && !known) operands.push_back(input);
      }
    };
    add_operands(unit->inputs);
    for (size_t i = unit->anchor + 1; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.kind != Node::Kind::kCall || claimed_[i]) continue;
      if (node.composite != anchor.composite) break;
      if (!MayBeInside(unit->Last()) || node.outputs.size() != 1 ||
          !(node.outputs[0].shape == anchor.outputs[0].shape)) {
        continue;
      }
      const OpLowering* lowering = registry_.FindFused(i);
      if (lowering == nullptr) continue;
      add_operands(node.inputs);
      if (operands.size() > NPU_MAX_VECTOR_INPUTS) break;
      unit->epilogue.emplace_back(i, lowering);
      members.insert(i);
    }
    auto is_read_elsewhere = [&](size_t member) {
      if (member == unit->Last()) return false;
      if (graph_.Uses(EntryRef{member, 0}) != static_cast<int>(users_[member].size())) return true;
      return std::any_of(users_[member].begin(), users_[member].end(),
                         [&](size_t user) { return members.count(user) == 0; });
    };
    while (std::any_of(members.begin(), members.end(), is_read_elsewhere)) {
      members.erase(unit->Last());
      unit->epilogue.pop_back();
    }
  }

  /*! \brief Whether a result may stay inside a vector program. Numbers there are float32; a
   * comparison of them is 0 or 1. */
  bool MayBeInside(size_t index) const {
    const Node& node = graph_.nodes[index];
    if (node.outputs.size() != 1) return false;
    if (node.outputs[0].dtype != "bool") return IsFloat(node.outputs[0].dtype);
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](const EntryRef& input) { return IsFloat(graph_.Info(input).dtype); });
  }

  bool SwapsLastDims(size_t index) const {
    const Node& node = graph_.nodes[index];
    if (node.op != "relax.permute_dims") return false;
    auto rank = static_cast<int64_t>(node.outputs[0].shape.size());
    if (rank < 2) return false;
    auto it = node.attributes.find(tvm::ffi::String("axes"));
    if (it == node.attributes.end()) return false;
    if ((*it).second == nullptr) return rank == 2;
    auto axes = (*it).second.cast<tvm::ffi::Array<tvm::ffi::Any>>();
    for (int64_t i = 0; i < rank; ++i) {
      int64_t expected = i == rank - 1 ? rank - 2 : i == rank - 2 ? rank - 1 : i;
      if ((axes[i].cast<int64_t>() + rank) % rank != expected) return false;
    }
    return true;
  }

  /*! \brief Whether an argument is dequantized only for this call, in its composite. */
  bool IsDequantized(const EntryRef& input, const Node& reader) const {
    const Node& node = graph_.nodes[input.node];
    return node.op == "relax.dequantize" && reader.composite >= 0 &&
           node.composite == reader.composite && graph_.Uses(input) == 1;
  }

  bool ReadsDequantized(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](const EntryRef& input) { return IsDequantized(input, node); });
  }

  bool IsInlined(const EntryRef& input) const { return result_.inlined.count(input.node) != 0; }

  const Graph& graph_;
  const Registry& registry_;
  /*! \brief The calls that are part of a unit, or are not lowered. */
  std::vector<char> claimed_;
  /*! \brief The calls that read each node; one that reads it twice is there twice. */
  std::vector<std::vector<size_t>> users_;
  /*! \brief By matmul: the dequantization of its weights. */
  std::unordered_map<size_t, size_t> weights_;
  Units result_;
};

}  // namespace

Units FormUnits(const Graph& graph, const Registry& registry) {
  return UnitFormer(graph, registry).Form();
}

}  // namespace npu
