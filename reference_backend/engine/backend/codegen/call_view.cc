// SPDX-License-Identifier: Apache-2.0
#include "call_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph.h"
#include "units.h"

namespace npu {

namespace ffi = tvm::ffi;

const Node& CallView::anchor() const { return graph_->nodes[unit_->anchor]; }

std::string CallView::Name() const { return DescribeNode(anchor()); }

size_t CallView::InputCount() const { return unit_->inputs.size(); }

bool CallView::InputIsTransposed(size_t i) const { return unit_->transposed.at(i); }

std::vector<npu_dim> CallView::InputDims(size_t i) const {
  std::vector<npu_dim> dims = ReadDims(graph_->Info(unit_->inputs.at(i)));
  if (InputIsTransposed(i)) std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  return dims;
}

npu_dtype CallView::InputDtype(size_t i) const {
  return MakeDesc(graph_->Info(unit_->inputs.at(i)), Name()).dtype;
}

size_t CallView::OutputCount() const { return graph_->nodes[unit_->Last()].outputs.size(); }

bool CallView::OutputIsUsed(size_t i) const {
  return graph_->Uses(EntryRef{unit_->Last(), i}) != 0;
}

std::vector<npu_dim> CallView::OutputDims(size_t i) const {
  return ReadDims(graph_->Info(EntryRef{unit_->Last(), i}));
}

npu_dtype CallView::OutputDtype(size_t i) const {
  return MakeDesc(graph_->Info(EntryRef{unit_->Last(), i}), Name()).dtype;
}

bool CallView::IsQuantized() const { return !unit_->dequantized.empty(); }

bool CallView::ReadsScales() const {
  return std::all_of(unit_->inputs.begin(), unit_->inputs.end(), [this](const EntryRef& input) {
    return graph_->Info(input).scales.has_value();
  });
}

int32_t CallView::ZeroPoint(size_t i) const {
  if (i < InputCount() && graph_->Info(unit_->inputs[i]).scales.has_value()) {
    return graph_->Info(unit_->inputs[i]).scales->zero_points[0];
  }
  if (i >= unit_->dequantized.size()) return 0;
  const Node& node = graph_->nodes[unit_->dequantized.at(i)];
  const std::vector<double> numbers = Numbers(graph_->nodes[node.inputs.at(2).node]);
  if (numbers.empty() || std::any_of(numbers.begin(), numbers.end(),
                                     [&](double number) { return number != numbers[0]; })) {
    Refuse("argument " + std::to_string(i) + " has no constant zero point, or several");
  }
  return static_cast<int32_t>(numbers[0]);
}

// ---- Attributes ----

namespace {

/*! \brief The attribute, or None if it is absent. */
ffi::Any FindAttribute(const Node& node, const std::string& name) {
  auto it = node.attributes.find(ffi::String(name));
  return it == node.attributes.end() ? ffi::Any(nullptr) : (*it).second;
}

template <typename T>
T ReadAttribute(const CallView& call, const std::string& name, const char* kind) {
  ffi::Any value = FindAttribute(call.anchor(), name);
  if (value == nullptr) call.Refuse("has no attribute '" + name + "'");
  auto result = value.try_cast<T>();
  if (!result.has_value()) call.Refuse("its attribute '" + name + "' is not " + kind);
  return *result;
}

template <typename T>
std::vector<T> ReadList(const CallView& call, const std::string& name, const char* kind) {
  std::vector<T> values;
  for (const ffi::Any& item : ReadAttribute<ffi::Array<ffi::Any>>(call, name, kind)) {
    auto value = item.try_cast<T>();
    if (!value.has_value()) call.Refuse("its attribute '" + name + "' is not " + kind);
    values.push_back(*value);
  }
  return values;
}

}  // namespace

bool CallView::IsNone(const std::string& name) const {
  return FindAttribute(anchor(), name) == nullptr;
}

bool CallView::Bool(const std::string& name) const {
  return ReadAttribute<bool>(*this, name, "a bool");
}

int64_t CallView::Int(const std::string& name) const {
  return ReadAttribute<int64_t>(*this, name, "an integer");
}

double CallView::Float(const std::string& name) const {
  const Node& node = anchor();
  const auto value = ReadAttribute<double>(*this, name, "a number");
  const TensorInfo& out = node.outputs[0];
  const bool whole = FindAttribute(node, name).try_cast<int64_t>().has_value() ||
                     (!IsFloat(out.dtype) && !out.scales.has_value());
  if (whole && !std::isinf(value) && !(std::trunc(value) == value && std::abs(value) < 0x1p53)) {
    Refuse("its attribute '" + name + "' is not among the integers below 2^53, which float64 " +
           "can tell apart");
  }
  return value;
}

std::string CallView::String(const std::string& name) const {
  if (IsNone(name)) return "";
  return std::string(ReadAttribute<ffi::String>(*this, name, "a string"));
}

std::vector<int64_t> CallView::Ints(const std::string& name) const {
  return ReadList<int64_t>(*this, name, "a list of integers");
}

std::vector<double> CallView::Floats(const std::string& name) const {
  return ReadList<double>(*this, name, "a list of numbers");
}

std::vector<std::vector<IndexTerm>> CallView::IndexMap(const std::string& name) const {
  if (IsNone(name)) {
    Refuse("its attribute '" + name + "' is more than sums of indices, quotients and remainders");
  }
  std::vector<std::vector<IndexTerm>> map;
  auto rows = ReadAttribute<ffi::Array<ffi::Any>>(*this, name, "an index map");
  for (const ffi::Any& row : rows) {
    std::vector<IndexTerm>& terms = map.emplace_back();
    for (const ffi::Any& item : row.cast<ffi::Array<ffi::Any>>()) {
      auto object = item.cast<ffi::json::Object>();
      auto number = [&](const char* key) { return object[ffi::String(key)].cast<int64_t>(); };
      terms.push_back({number("axis"), number("divide"), number("modulo"), number("multiply")});
    }
  }
  return map;
}

void CallView::RequireOneOf(const std::string& name,
                            const std::vector<std::string>& supported) const {
  std::string value = String(name);
  if (std::find(supported.begin(), supported.end(), value) != supported.end()) return;
  std::vector<std::string> quoted;
  quoted.reserve(supported.size());
  for (const std::string& item : supported) quoted.push_back("'" + item + "'");
  Refuse("its attribute '" + name + "' is '" + value + "'; supported: " + Join(quoted));
}

void CallView::Refuse(const std::string& why) const { throw Refusal(Name() + ": " + why); }

int64_t CallView::FixedSize(const Tensor& tensor, int dim) const {
  const npu_dim& size = tensor.desc.dims[dim];
  if (size.symbol >= 0) {
    Refuse("dimension " + std::to_string(dim) + " of an argument is known only at the call ('" +
           graph_->symbols[static_cast<size_t>(size.symbol)] + "'); a fixed size is needed");
  }
  return size.size;
}

npu_dim CallView::Joined(const std::vector<npu_dim>& dims) const {
  npu_dim joined = FixedDim(1);
  for (const npu_dim& dim : dims) {
    if (dim.symbol >= 0 && joined.symbol >= 0) {
      Refuse("dimensions that are known only at the call would have to be joined");
    }
    joined.size *= dim.size;
    if (dim.symbol >= 0) joined.symbol = dim.symbol;
  }
  return joined;
}

}  // namespace npu
