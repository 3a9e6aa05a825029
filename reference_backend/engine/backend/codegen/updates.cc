// SPDX-License-Identifier: Apache-2.0
#include "updates.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace npu {

namespace {

namespace ffi = tvm::ffi;

struct Update {
  EntryRef data, value, positions;
  int64_t axis = 0;
};

/*! \brief Sizes that are fixed; none if one is not. */
std::optional<std::vector<int64_t>> SizesOf(const TensorInfo& info) {
  std::vector<int64_t> sizes;
  for (const Dim& dim : info.shape) {
    if (dim.symbol >= 0) return std::nullopt;
    sizes.push_back(dim.size);
  }
  return sizes;
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {
    for (const Node& node : graph.nodes) {
      if (node.kind != Node::Kind::kCall || node.composite < 0) continue;
      const auto composite = static_cast<size_t>(node.composite);
      if (composites_.size() <= composite) composites_.resize(composite + 1);
      composites_[composite].last = &node;
      if (!IsOfSpelling(node)) composites_[composite].has_others = true;
    }
  }

  std::optional<Update> Find(const Node& node) const {
    if (node.op != "relax.where" || node.inputs.size() != 3) return std::nullopt;
    if (node.composite < 0) return std::nullopt;
    // What is fused with it would be lost.
    const Composite& own = composites_[static_cast<size_t>(node.composite)];
    if (own.has_others || own.last != &node) return std::nullopt;
    const EntryRef &condition = node.inputs[0], &one = node.inputs[1], &other = node.inputs[2];
    const std::optional<int64_t> axis = AxisOf(condition, node.outputs[0]);
    if (!axis.has_value()) return std::nullopt;
    Update update;
    update.axis = *axis;
    const EntryRef compared = WithoutShape(condition);
    const Node* equal = CallOf(compared, "relax.equal");
    if (equal != nullptr) {
      // where(equal(places, position), value, data)
      const bool is_first = Counts(equal->inputs[0]);
      if (!is_first && !Counts(equal->inputs[1])) return std::nullopt;
      update.positions = equal->inputs[is_first ? 1 : 0];
      if (CountOf(update.positions) != 1) return std::nullopt;
      update.value = one;
      update.data = other;
    } else if (const Node* less = CallOf(compared, "relax.less")) {
      // where(less(last, 0), data, take(value, last)), where `last` is the last of several values
      // for a place, and -1 if there is none.
      const Node* take = CallOf(other, "relax.take");
      const EntryRef last = WithoutShape(less->inputs[0]);
      const size_t rank = node.outputs[0].shape.size();
      if (take == nullptr || graph_.Info(take->inputs[0]).shape.size() != rank ||
          !Is(less->inputs[1], 0) || Text(*take, "mode") != "clip" ||
          Number(*take, "axis") != *axis || !(take->inputs[1] == last)) {
        return std::nullopt;
      }
      equal = ComparisonOf(last);
      if (equal == nullptr) return std::nullopt;
      update.positions = equal->inputs[1];
      update.value = take->inputs[0];
      update.data = one;
    } else {
      return std::nullopt;
    }
    if (equal->composite != node.composite) return std::nullopt;
    update.positions = WithoutShape(update.positions);
    return Fits(update, node.outputs[0]) ? std::optional<Update>(update) : std::nullopt;
  }

 private:
  static bool IsOfSpelling(const Node& node) {
    static const char* const kOps[] = {"relax.where", "relax.equal", "relax.less", "relax.max",
                                       "relax.take"};
    const bool is_one = std::find(std::begin(kOps), std::end(kOps), node.op) != std::end(kOps);
    return is_one || ChangesShape(node);
  }

  static bool ChangesShape(const Node& node) {
    return node.kind == Node::Kind::kCall &&
           (node.op == "relax.reshape" || node.op == "relax.expand_dims");
  }

  const Node* CallOf(const EntryRef& entry, const char* op) const {
    const Node& node = graph_.nodes[entry.node];
    return node.kind == Node::Kind::kCall && node.op == op ? &node : nullptr;
  }

  /*! \brief The value before its shape was changed. */
  EntryRef WithoutShape(EntryRef entry) const {
    while (ChangesShape(graph_.nodes[entry.node])) entry = graph_.nodes[entry.node].inputs[0];
    return entry;
  }

  /*! \brief The number of elements; none if it is not fixed. */
  std::optional<int64_t> CountOf(const EntryRef& entry) const {
    const auto sizes = SizesOf(graph_.Info(entry));
    if (!sizes.has_value()) return std::nullopt;
    return std::accumulate(sizes->begin(), sizes->end(), int64_t{1}, std::multiplies<>());
  }

  static std::optional<int64_t> Number(const Node& node, const char* name) {
    const auto found = node.attributes.find(ffi::String(name));
    if (found == node.attributes.end()) return std::nullopt;
    return (*found).second.try_cast<int64_t>();
  }

  static std::string Text(const Node& node, const char* name) {
    const auto found = node.attributes.find(ffi::String(name));
    if (found == node.attributes.end()) return "";
    const auto text = (*found).second.try_cast<ffi::String>();
    return text.has_value() ? std::string(*text) : "";
  }

  /*! \brief The integers of a constant; none for other values. */
  std::vector<int64_t> IntegersOf(const EntryRef& entry) const {
    const Node& node = graph_.nodes[entry.node];
    std::vector<int64_t> integers;
    if (node.kind != Node::Kind::kConstant) return integers;
    const std::string_view bytes = BytesOf(node);
    const auto read = [&](auto number) {
      for (size_t i = 0; i + sizeof(number) <= bytes.size(); i += sizeof(number)) {
        std::memcpy(&number, bytes.data() + i, sizeof(number));
        integers.push_back(number);
      }
    };
    if (node.outputs[0].dtype == "int64") read(int64_t{});
    if (node.outputs[0].dtype == "int32") read(int32_t{});
    return integers;
  }

  bool Is(const EntryRef& entry, int64_t number) const {
    return IntegersOf(entry) == std::vector<int64_t>{number};
  }

  /*! \brief Whether a constant has 0, 1, 2 and so on. */
  bool Counts(const EntryRef& entry) const {
    const std::vector<int64_t> integers = IntegersOf(entry);
    for (size_t i = 0; i < integers.size(); ++i) {
      if (integers[i] != static_cast<int64_t>(i)) return false;
    }
    return !integers.empty();
  }

  /*! \brief The axis of a result along which a condition differs. */
  std::optional<int64_t> AxisOf(const EntryRef& condition, const TensorInfo& result) const {
    const auto sizes = SizesOf(graph_.Info(condition)), all = SizesOf(result);
    if (!sizes.has_value() || !all.has_value() || sizes->size() > all->size()) return std::nullopt;
    const size_t missing = all->size() - sizes->size();
    std::optional<int64_t> axis;
    for (size_t i = 0; i < sizes->size(); ++i) {
      if ((*sizes)[i] == 1) continue;
      if (axis.has_value() || (*sizes)[i] != (*all)[i + missing]) return std::nullopt;
      axis = static_cast<int64_t>(i + missing);
    }
    return axis;
  }

  /*! \brief The comparison with the positions of which `last` is, for each place, the number of
   *  the last equal one: max(where(equal(places, positions), order, -1), axis=[1]) */
  const Node* ComparisonOf(const EntryRef& last) const {
    const Node* max = CallOf(last, "relax.max");
    if (max == nullptr || !Has1AsAxis(*max)) return nullptr;
    const Node* where = CallOf(max->inputs[0], "relax.where");
    if (where == nullptr || !Is(where->inputs[2], -1) || !Counts(where->inputs[1])) return nullptr;
    const Node* equal = CallOf(where->inputs[0], "relax.equal");
    if (equal == nullptr || !Counts(equal->inputs[0])) return nullptr;
    const auto pairs = SizesOf(graph_.Info(max->inputs[0]));
    const auto rows = SizesOf(graph_.Info(equal->inputs[0]));
    const auto order = SizesOf(graph_.Info(where->inputs[1]));
    const auto positions = SizesOf(graph_.Info(equal->inputs[1]));
    if (!pairs.has_value() || pairs->size() != 2 || !positions.has_value()) return nullptr;
    const std::vector<int64_t> column = {(*pairs)[0], 1}, row = {1, (*pairs)[1]};
    const bool fits =
        rows == column && *positions == row && order == std::vector<int64_t>{(*pairs)[1]};
    return fits ? equal : nullptr;
  }

  static bool Has1AsAxis(const Node& node) {
    const auto found = node.attributes.find(ffi::String("axis"));
    if (found == node.attributes.end()) return false;
    const auto axes = (*found).second.try_cast<ffi::Array<ffi::Any>>();
    return axes.has_value() && axes->size() == 1 && (*axes)[0].try_cast<int64_t>() == 1;
  }

  /*! \brief Whether shapes and types are those of an npu_update. */
  bool Fits(const Update& update, const TensorInfo& result) const {
    const TensorInfo& positions = graph_.Info(update.positions);
    const auto data = SizesOf(graph_.Info(update.data)), all = SizesOf(result);
    auto value = SizesOf(graph_.Info(update.value));
    const std::optional<int64_t> count = CountOf(update.positions);
    if (!data.has_value() || !value.has_value() || !count.has_value() || data != all) return false;
    if (positions.dtype != "int64" && positions.dtype != "int32") return false;
    if (value->size() > data->size()) return false;
    value->insert(value->begin(), data->size() - value->size(), 1);
    std::vector<int64_t> slices = *data;
    slices[static_cast<size_t>(update.axis)] = *count;
    return *value == slices;
  }

  const Graph& graph_;
  struct Composite {
    const Node* last = nullptr;
    /*! \brief Whether it has calls that no update is spelled with. */
    bool has_others = false;
  };
  std::vector<Composite> composites_;
};

/*! \brief Leaves out what neither the outputs nor other calls read. */
Graph WithoutUnread(const Graph& graph) {
  std::vector<bool> is_read(graph.nodes.size());
  for (size_t argument : graph.arguments) is_read[argument] = true;
  for (const EntryRef& head : graph.heads) is_read[head.node] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    if (!is_read[i]) continue;
    for (const EntryRef& input : graph.nodes[i].inputs) is_read[input.node] = true;
  }
  Graph kept = graph;
  kept.nodes.clear();
  std::vector<size_t> numbers(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    numbers[i] = kept.nodes.size();
    if (is_read[i]) kept.nodes.push_back(graph.nodes[i]);
  }
  for (Node& node : kept.nodes) std::fill(node.uses.begin(), node.uses.end(), 0);
  const auto renumber = [&](EntryRef* entry) {
    entry->node = numbers[entry->node];
    std::vector<int>& uses = kept.nodes[entry->node].uses;
    if (entry->index < uses.size()) ++uses[entry->index];
  };
  for (Node& node : kept.nodes) {
    for (EntryRef& input : node.inputs) renumber(&input);
  }
  for (EntryRef& head : kept.heads) renumber(&head);
  for (size_t& argument : kept.arguments) argument = numbers[argument];
  return kept;
}

}  // namespace

bool IsUpdate(const Node& node) { return node.attributes.count(ffi::String(kUpdateAxis)) != 0; }

int64_t AxisOfUpdate(const Graph& graph) {
  const std::optional<Graph> updated = WithUpdates(graph, [](const Node&) { return true; });
  if (!updated.has_value()) return -1;
  int64_t axis = -1;
  for (const Node& node : updated->nodes) {
    if (node.kind != Node::Kind::kCall) continue;
    if (axis >= 0 || !IsUpdate(node)) return -1;
    axis = node.attributes.at(ffi::String(kUpdateAxis)).cast<int64_t>();
  }
  return axis;
}

std::optional<Graph> WithUpdates(const Graph& graph,
                                 const std::function<bool(const Node&)>& may_be) {
  std::optional<Graph> result;
  const Finder finder(graph);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const std::optional<Update> found = finder.Find(graph.nodes[i]);
    if (!found.has_value() || !may_be(graph.nodes[i])) continue;
    if (!result.has_value()) result = graph;
    Node& node = result->nodes[i];
    node.inputs = {found->data, found->value, found->positions};
    node.attributes.Set(ffi::String(kUpdateAxis), found->axis);
  }
  return result.has_value() ? std::optional<Graph>(WithoutUnread(*result)) : std::nullopt;
}

}  // namespace npu
