// SPDX-License-Identifier: Apache-2.0
#include "program_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

namespace npu {

namespace ffi = tvm::ffi;

namespace {

std::deque<OpLowering>& Registry() {
  static std::deque<OpLowering> registry;
  return registry;
}

/*! \brief The ops that a scale, a bias and a residual consist of. */
const std::vector<OpLowering>& FusedArithmetic() {
  static const std::vector<OpLowering> entries = [] {
    std::vector<OpLowering> entries(3);
    entries[0].op = "relax.add";
    entries[0].step = NPU_STEP_ADD;
    entries[0].elementwise = [](const Lowering&, VectorBuilder& v, const Values& x) {
      return v.Add(x[0], x[1]);
    };
    entries[1].op = "relax.multiply";
    entries[1].step = NPU_STEP_MULTIPLY;
    entries[1].elementwise = [](const Lowering&, VectorBuilder& v, const Values& x) {
      return v.Multiply(x[0], x[1]);
    };
    entries[2].op = "relax.divide";
    entries[2].step = NPU_STEP_DIVIDE;
    entries[2].elementwise = [](const Lowering&, VectorBuilder& v, const Values& x) {
      return v.Divide(x[0], x[1]);
    };
    return entries;
  }();
  return entries;
}

/*! \brief An entry's rank; of two entries for a call, the lower rank wins. */
int RankOf(const OpLowering& entry) {
  return (entry.owner == Owner::kVendor ? 0 : 4) + (entry.when != nullptr ? 0 : 2) +
         (entry.lower != nullptr ? 0 : 1);
}

[[noreturn]] void RefuseBoth(const OpLowering& entry, const std::string& who) {
  throw Refusal(who + ": two lowerings of the " +
                (entry.owner == Owner::kVendor ? "vendor" : "engine") +
                " are registered for it; leave one out, or tell them apart by .When");
}

/*! \brief The table's entries by op, in order of precedence. */
std::unordered_map<std::string, std::vector<const OpLowering*>> IndexRegistry() {
  std::unordered_map<std::string, std::vector<const OpLowering*>> index;
  for (const OpLowering& entry : Registry()) index[entry.op].push_back(&entry);
  for (auto& [op, entries] : index) {
    std::stable_sort(entries.begin(), entries.end(), [](const OpLowering* a, const OpLowering* b) {
      return RankOf(*a) < RankOf(*b);
    });
    for (size_t i = 1; i < entries.size(); ++i) {
      bool same = RankOf(*entries[i - 1]) == RankOf(*entries[i]);
      if (same && entries[i]->when == nullptr) RefuseBoth(*entries[i], op);
    }
  }
  return index;
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

/*! \brief How many arguments of a call are data; of a quantize, only the first is. */
size_t DataCount(const Node& node) { return node.op == "relax.quantize" ? 1 : node.inputs.size(); }

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

npu_tensor_desc MakeDesc(npu_dtype dtype, const std::vector<npu_dim>& dims) {
  npu_tensor_desc desc = {};
  desc.dtype = dtype;
  desc.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), desc.dims);
  return desc;
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
  return MakeDesc(*dtype, ReadDims(info));
}

bool IsFloat(const std::string& dtype) { return dtype == "float32" || dtype == "float16"; }

// ---- ProgramBuilder ----

ProgramBuilder::ProgramBuilder(const Graph& graph, const LoweringOptions& options)
    : graph_(graph), options_(options), api_(BuildDriver(options.role)) {
  std::vector<npu_option> pairs;
  for (const auto& [key, value] : options.driver) pairs.push_back({key.c_str(), value.c_str()});
  npu_builder* builder = nullptr;
  npu_status status = api_.create(pairs.data(), pairs.size(), &builder);
  result_.builder = {builder, {&api_}};
  Check(status, "the driver's options");
  sink_ = MakeSink(DriverBuilder{api_, builder}, &result_.constants);
  index_ = IndexRegistry();
}

LoweredProgram ProgramBuilder::Run(LoweringGoal goal) {
  AddSymbolsAndInputs();
  CountUses();
  FormUnits();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    auto unit = unit_ending_at_.find(i);
    if (unit != unit_ending_at_.end()) LowerUnit(units_[unit->second]);
  }
  for (const EntryRef& head : graph_.heads) sink_->MarkOutput(Get(head).id);
  result_.ports = sink_->Finish();
  if (goal != LoweringGoal::kOps) {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    bool compile = goal == LoweringGoal::kProgram;
    Check(api_.finish(builder(), compile ? &bytes : nullptr, compile ? &size : nullptr),
          "the region " + graph_.symbol);
    result_.bytes = {reinterpret_cast<const char*>(bytes), size};
  }
  return std::move(result_);
}

Tensor ProgramBuilder::Get(const EntryRef& entry) {
  auto it = tensors_.find(Key(entry));
  if (it != tensors_.end()) return it->second;
  const Node& node = graph_.nodes[entry.node];
  if (node.kind != Node::Kind::kConstant) {
    throw Refusal(DescribeNode(node) + ": its value is used before it is computed");
  }
  Tensor tensor;
  tensor.desc = MakeDesc(node.outputs[0], "the constant " + node.name);
  const std::string_view bytes = BytesOf(node);
  AddConstant(&tensor, bytes.data(), bytes.size(), "the constant " + node.name);
  tensors_[Key(entry)] = tensor;
  return tensor;
}

Unit ProgramBuilder::MakeUnit(size_t node, const OpLowering* lowering) const {
  Unit unit;
  unit.anchor = node;
  unit.lowering = lowering;
  unit.inputs = graph_.nodes[node].inputs;
  unit.transposed.assign(unit.inputs.size(), false);
  return unit;
}

std::vector<double> ProgramBuilder::Numbers(const EntryRef& entry) const {
  const Node& node = graph_.nodes[entry.node];
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

int ProgramBuilder::Uses(const EntryRef& entry) const {
  auto it = uses_.find(Key(entry));
  return it == uses_.end() ? 0 : it->second;
}

Tensor ProgramBuilder::NewTensor(const npu_tensor_desc& desc, const std::string& who) {
  Tensor tensor;
  tensor.desc = desc;
  RequireType(desc, who);
  tensor.id = sink_->AddTensor(desc);
  Keep(tensor);
  return tensor;
}

Tensor ProgramBuilder::NewConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                                   const std::string& who) {
  Tensor tensor;
  tensor.desc = desc;
  // Words, so that every element type is aligned.
  std::vector<uint64_t>& kept = result_.constants.emplace_back((bytes + 7) / 8);
  std::memcpy(kept.data(), data, bytes);
  AddConstant(&tensor, kept.data(), bytes, who);
  return tensor;
}

Tensor ProgramBuilder::NewView(const Tensor& tensor, const npu_tensor_desc& desc,
                               const std::string& who) {
  Tensor view;
  view.desc = desc;
  Require(api_.add_view != nullptr, "add_view", who);
  view.id = sink_->AddView(tensor.id, desc);
  Keep(view);
  return view;
}

npu_tensor ProgramBuilder::AtDriver(npu_tensor tensor, std::optional<npu_tensor> like) {
  return sink_->AtDriver(tensor, like);
}

const IntegerWeights* ProgramBuilder::WeightsOf(size_t matmul) const {
  auto it = weights_.find(matmul);
  return it == weights_.end() ? nullptr : &it->second;
}

npu_tensor_desc ProgramBuilder::DescOf(npu_tensor tensor) const {
  auto it = descs_.find(tensor);
  return it == descs_.end() ? npu_tensor_desc{} : it->second;
}

int64_t ProgramBuilder::Bound(int32_t symbol) const {
  return options_.symbol_bounds.at(graph_.symbols[static_cast<size_t>(symbol)]);
}

void ProgramBuilder::Check(npu_status status, const std::string& who) const {
  DriverBuilder{api_, builder()}.Check(status, who);
}

void ProgramBuilder::Require(bool has, const char* function, const std::string& who) const {
  DriverBuilder{api_, builder()}.Require(has, function, who);
}

void ProgramBuilder::AddConstant(Tensor* tensor, const void* data, size_t bytes,
                                 const std::string& who) {
  Require(api_.add_constant != nullptr, "add_constant", who);
  RequireType(tensor->desc, who);
  tensor->id = sink_->AddConstant(tensor->desc, data, bytes, who);
  Keep(*tensor);
}

uint64_t ProgramBuilder::Key(const EntryRef& entry) {
  return static_cast<uint64_t>(entry.node) << 16 | static_cast<uint64_t>(entry.index);
}

std::string_view ProgramBuilder::BytesOf(const Node& constant) {
  const DLTensor* value = constant.value.value().GetDLTensorPtr();
  if (value->device.device_type != kDLCPU) {
    throw Refusal("the constant " + constant.name + " is not in host memory");
  }
  return {static_cast<const char*>(value->data) + value->byte_offset, ffi::GetDataSize(*value)};
}

void ProgramBuilder::RequireType(const npu_tensor_desc& desc, const std::string& who) const {
  if (desc.dtype != NPU_INT16 || api_.version >= 3) return;
  throw Refusal(who + ": the driver " + api_.name +
                " is older than int16, which came with version 3 of the driver interface");
}

void ProgramBuilder::AddSymbolsAndInputs() {
  for (const std::string& name : graph_.symbols) {
    auto bound = options_.symbol_bounds.find(name);
    if (bound == options_.symbol_bounds.end()) {
      throw Refusal("the size " + name + ": its largest value, for which memory is planned, is " +
                    "not given; set it in the option symbol_bounds");
    }
    int32_t symbol = 0;
    Require(api_.add_symbol != nullptr, "add_symbol", "the size " + name);
    Check(api_.add_symbol(builder(), name.c_str(), bound->second, &symbol), "the size " + name);
  }
  for (size_t i = 0; i < graph_.arguments.size(); ++i) {
    const size_t argument = graph_.arguments[i];
    const Node& node = graph_.nodes[argument];
    if (node.outputs.empty()) continue;  // A shape, which drivers read off the tensors.
    Tensor tensor;
    tensor.desc = MakeDesc(node.outputs[0], "the argument " + node.name);
    RequireType(tensor.desc, "the argument " + node.name);
    tensor.id = sink_->AddInput(tensor.desc, static_cast<int64_t>(i), "the argument " + node.name);
    Keep(tensor);
    Set(EntryRef{argument, 0}, tensor);
  }
}

void ProgramBuilder::CountUses() {
  for (const Node& node : graph_.nodes) {
    for (const EntryRef& input : node.inputs) ++uses_[Key(input)];
  }
  for (const EntryRef& head : graph_.heads) ++uses_[Key(head)];
}

const OpLowering* ProgramBuilder::Find(size_t node, bool elementwise) const {
  auto it = index_.find(graph_.nodes[node].op);
  if (it == index_.end()) return nullptr;
  const OpLowering* found = nullptr;
  for (const OpLowering* entry : it->second) {
    if (elementwise && entry->elementwise == nullptr) continue;
    if (found != nullptr && RankOf(*found) != RankOf(*entry)) break;
    if (entry->when != nullptr) {
      Unit unit = MakeUnit(node, entry);
      if (!entry->when(Lowering(const_cast<ProgramBuilder*>(this), &unit))) continue;
    }
    if (found != nullptr) RefuseBoth(*entry, DescribeNode(graph_.nodes[node]));
    found = entry;
  }
  return found;
}

void ProgramBuilder::FormUnits() {
  std::vector<char> claimed(graph_.nodes.size(), 0);
  std::vector<std::vector<size_t>> users(graph_.nodes.size());
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    for (const EntryRef& input : graph_.nodes[i].inputs) users[input.node].push_back(i);
  }
  // Find absorbed transposes first, since they precede the op that absorbs them.
  std::vector<std::pair<size_t, size_t>> absorbed;
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    auto it = index_.find(graph_.nodes[i].op);
    if (graph_.nodes[i].kind != Node::Kind::kCall || it == index_.end()) continue;
    if (!std::any_of(it->second.begin(), it->second.end(),
                     [](const OpLowering* entry) { return entry->absorbs_transpose; })) {
      continue;
    }
    for (const EntryRef& input : graph_.nodes[i].inputs) {
      if (SwapsLastDims(input.node) && Uses(input) == 1 &&
          graph_.nodes[input.node].composite == graph_.nodes[i].composite) {
        claimed[input.node] = 1;
      }
    }
  }
  InlineDequantizations(&claimed);
  InlineWeights(&claimed);
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (graph_.nodes[i].kind != Node::Kind::kCall || claimed[i]) continue;
    const OpLowering* lowering = Find(i);
    if (lowering == nullptr) {
      throw Refusal(DescribeNode(graph_.nodes[i]) +
                    ": this backend has no lowering for it; it has one for " + Join(LoweredOps()));
    }
    Unit unit = MakeUnit(i, lowering);
    if (lowering->absorbs_transpose) {
      for (size_t k = 0; k < unit.inputs.size(); ++k) {
        size_t producer = unit.inputs[k].node;
        if (claimed[producer] && SwapsLastDims(producer)) {
          unit.inputs[k] = graph_.nodes[producer].inputs[0];
          unit.transposed[k] = true;
        }
      }
    }
    auto weights = dequantized_weights_.find(i);
    if (weights != dequantized_weights_.end()) {
      unit.weights = weights->second;
    } else if (!lowering->takes_quantized && lowering->elementwise == nullptr &&
               ComputesIntegers(i) && ReadsDequantized(i)) {
      throw Refusal(DescribeNode(graph_.nodes[i]) + ": its lowering takes no quantized tensors");
    }
    if (lowering->takes_quantized && !unit.inputs.empty() && IsInlined(unit.inputs[0].node)) {
      for (size_t k = 0; k < DataCount(graph_.nodes[i]); ++k) {
        EntryRef& input = unit.inputs[k];
        unit.dequantized.push_back(input.node);
        input = graph_.nodes[input.node].inputs.at(0);
      }
    }
    claimed[i] = 1;
    // An op with both kinds of lowering is a vector program only if other ops are fused with it.
    const bool takes_epilogue = lowering->takes_epilogue || !unit.dequantized.empty();
    const OpLowering* elementwise = takes_epilogue ? nullptr : Find(i, true);
    if (takes_epilogue || elementwise != nullptr) {
      FuseInto(&unit, users, claimed);
      for (const auto& fused : unit.epilogue) claimed[fused.first] = 1;
      if (!unit.epilogue.empty() && elementwise != nullptr) unit.lowering = elementwise;
    }
    unit_ending_at_[unit.Last()] = units_.size();
    units_.push_back(std::move(unit));
  }
}

bool ProgramBuilder::IsDequantized(const EntryRef& input, const Node& reader) const {
  const Node& node = graph_.nodes[input.node];
  return node.op == "relax.dequantize" && reader.composite >= 0 &&
         node.composite == reader.composite && Uses(input) == 1;
}

bool ProgramBuilder::ComputesIntegers(size_t index) const {
  const auto& entries = index_.at(graph_.nodes[index].op);
  return std::any_of(entries.begin(), entries.end(),
                     [](const OpLowering* entry) { return entry->takes_quantized; });
}

bool ProgramBuilder::ReadsDequantized(size_t index) const {
  const Node& node = graph_.nodes[index];
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](const EntryRef& input) { return IsDequantized(input, node); });
}

void ProgramBuilder::InlineDequantizations(std::vector<char>* claimed) {
  std::unordered_set<int> quantized;
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    const auto end = node.inputs.begin() + static_cast<std::ptrdiff_t>(DataCount(node));
    if (end == node.inputs.begin() ||
        !std::all_of(node.inputs.begin(), end,
                     [&](const EntryRef& input) { return IsDequantized(input, node); })) {
      continue;
    }
    const OpLowering* lowering = Find(i);
    if (lowering != nullptr && lowering->takes_quantized) quantized.insert(node.composite);
  }
  for (const Node& node : graph_.nodes) {
    if (quantized.count(node.composite) == 0) continue;
    for (const EntryRef& input : node.inputs) {
      if (!IsDequantized(input, node)) continue;
      inlined_.insert(input.node);
      (*claimed)[input.node] = 1;
    }
  }
}

void ProgramBuilder::InlineWeights(std::vector<char>* claimed) {
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    if (node.op != "relax.matmul" || node.composite < 0 || (*claimed)[i]) continue;
    if (IsInlined(node.inputs.at(1).node)) continue;
    EntryRef at = node.inputs.at(1);
    auto is = [&](const char* op) {
      const Node& producer = graph_.nodes[at.node];
      return producer.op == op && producer.composite == node.composite && Uses(at) == 1;
    };
    if ((*claimed)[at.node] && SwapsLastDims(at.node)) at = graph_.nodes[at.node].inputs.at(0);
    const bool reshaped = is("relax.reshape");
    const EntryRef matrix = at;
    if (reshaped) at = graph_.nodes[at.node].inputs.at(0);
    if (!is("relax.dequantize")) continue;
    const EntryRef numbers = graph_.nodes[at.node].inputs.at(0);
    if (graph_.nodes[numbers.node].kind != Node::Kind::kConstant) continue;
    (*claimed)[matrix.node] = (*claimed)[at.node] = 1;
    dequantized_weights_[i] = at.node;
  }
}

void ProgramBuilder::AddWeights(const Unit& unit, const std::string& who) {
  const Node& dequantize = graph_.nodes[*unit.weights];
  const Node& constant = graph_.nodes[dequantize.inputs.at(0).node];
  const EntryRef& stored = unit.inputs.at(1);
  Tensor tensor;
  tensor.desc = MakeDesc(graph_.Info(stored), who);
  DequantizedMatrix matrix;
  matrix.bytes = BytesOf(constant);
  matrix.dtype = MakeDesc(constant.outputs[0], who).dtype;
  matrix.scales = Numbers(dequantize.inputs.at(1));
  matrix.zero_points = Numbers(dequantize.inputs.at(2));
  if (matrix.scales.empty() || matrix.zero_points.empty() || tensor.desc.rank < 2 ||
      (matrix.dtype != NPU_INT8 && matrix.dtype != NPU_UINT8)) {
    throw Refusal(who + ": its weights are not a matrix of int8 or uint8 with constant scales");
  }
  const std::vector<npu_dim> shape = ReadDims(constant.outputs[0]);
  const Unit of_dequantize = MakeUnit(*unit.weights, nullptr);
  int64_t axis = Lowering(this, &of_dequantize).Int("axis");
  const auto rank = static_cast<int64_t>(shape.size());
  for (axis = (axis + rank) % std::max<int64_t>(rank, 1) + 1; axis < rank; ++axis) {
    matrix.inner *= shape[static_cast<size_t>(axis)].size;
  }
  matrix.transposed = unit.transposed.at(1);
  const npu_dim* dims = tensor.desc.dims + tensor.desc.rank - 2;
  matrix.depth = dims[matrix.transposed ? 1 : 0].size;
  matrix.columns = dims[matrix.transposed ? 0 : 1].size;
  if (api_.integer_weights == 0 || !unit.lowering->takes_integer_weights) {
    if (tensor.desc.dtype != NPU_FLOAT32) {
      throw Refusal(who + ": the driver " + api_.name + " does not multiply float16 by integers");
    }
    const std::vector<float> numbers = RealNumbers(matrix);
    tensor = NewConstant(tensor.desc, numbers.data(), numbers.size() * sizeof(float), who);
    // Read again when the matmul is lowered.
    Set(stored, tensor);
    return;
  }
  if (!ReadWeights(matrix, &weights_[unit.anchor])) {
    throw Refusal(who + ": the scales of its weights change neither by column, nor after equal " +
                  "parts of the summed dimension, of 4 elements or more");
  }
  tensor.desc.dtype = matrix.dtype;
  AddConstant(&tensor, matrix.bytes.data(), matrix.bytes.size(), who);
  Set(stored, tensor);
}

bool ProgramBuilder::SwapsLastDims(size_t index) const {
  const Node& node = graph_.nodes[index];
  if (node.op != "relax.permute_dims") return false;
  auto rank = static_cast<int64_t>(node.outputs[0].shape.size());
  if (rank < 2) return false;
  auto it = node.attributes.find(ffi::String("axes"));
  if (it == node.attributes.end()) return false;
  if ((*it).second == nullptr) return rank == 2;
  auto axes = (*it).second.cast<ffi::Array<ffi::Any>>();
  for (int64_t i = 0; i < rank; ++i) {
    int64_t expected = i == rank - 1 ? rank - 2 : i == rank - 2 ? rank - 1 : i;
    if ((axes[i].cast<int64_t>() + rank) % rank != expected) return false;
  }
  return true;
}

const OpLowering* ProgramBuilder::FindFused(size_t node) const {
  if (Find(node) != nullptr) return Find(node, true);
  const auto& arithmetic = FusedArithmetic();
  auto it = std::find_if(arithmetic.begin(), arithmetic.end(), [&](const OpLowering& entry) {
    return entry.op == graph_.nodes[node].op;
  });
  return it == arithmetic.end() ? nullptr : &*it;
}

void ProgramBuilder::FuseInto(Unit* unit, const std::vector<std::vector<size_t>>& users,
                              const std::vector<char>& claimed) const {
  const Node& anchor = graph_.nodes[unit->anchor];
  if (anchor.composite < 0 || !MayBeInside(unit->anchor)) return;
  std::unordered_set<size_t> members = {unit->anchor};
  std::unordered_set<uint64_t> operands;
  AddOperands(unit->inputs, members, &operands);
  for (size_t i = unit->anchor + 1; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    if (node.kind != Node::Kind::kCall || claimed[i]) continue;
    if (node.composite != anchor.composite) break;
    if (!MayBeInside(unit->Last()) || node.outputs.size() != 1 ||
        !(node.outputs[0].shape == anchor.outputs[0].shape)) {
      continue;
    }
    const OpLowering* lowering = FindFused(i);
    if (lowering == nullptr) continue;
    AddOperands(node.inputs, members, &operands);
    if (operands.size() > NPU_MAX_VECTOR_INPUTS) break;
    unit->epilogue.emplace_back(i, lowering);
    members.insert(i);
  }
  auto is_read_elsewhere = [&](size_t member) {
    if (member == unit->Last()) return false;
    if (Uses(EntryRef{member, 0}) != static_cast<int>(users[member].size())) return true;
    return std::any_of(users[member].begin(), users[member].end(),
                       [&](size_t user) { return members.count(user) == 0; });
  };
  while (std::any_of(members.begin(), members.end(), is_read_elsewhere)) {
    members.erase(unit->Last());
    unit->epilogue.pop_back();
  }
}

bool ProgramBuilder::MayBeInside(size_t index) const {
  const Node& node = graph_.nodes[index];
  if (node.outputs.size() != 1) return false;
  if (node.outputs[0].dtype != "bool") return IsFloat(node.outputs[0].dtype);
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](const EntryRef& input) { return IsFloat(graph_.Info(input).dtype); });
}

void ProgramBuilder::AddOperands(const std::vector<EntryRef>& inputs,
                                 const std::unordered_set<size_t>& members,
                                 std::unordered_set<uint64_t>* operands) {
  for (const EntryRef& input : inputs) {
    if (members.count(input.node) == 0) operands->insert(Key(input));
  }
}

void ProgramBuilder::LowerUnit(const Unit& unit) {
  Lowering lowering(this, &unit);
  sink_->SetLabel(lowering.Name());
  if (unit.weights.has_value()) AddWeights(unit, lowering.Name());
  if (unit.lowering->elementwise != nullptr) {
    lowering.LowerAsElementwise();
  } else {
    unit.lowering->lower(lowering);
  }
  const Node& last = graph_.nodes[unit.Last()];
  for (size_t i = 0; i < last.outputs.size(); ++i) {
    if (!Has(EntryRef{unit.Last(), i})) {
      // An unused result need not be computed.
      if (Uses(EntryRef{unit.Last(), i}) == 0) continue;
      throw Refusal(lowering.Name() + ": its lowering does not write output " + std::to_string(i));
    }
  }
}

// ---- Table ----

namespace {

OpLowering& AddToRegistry(const std::string& op, Owner owner) {
  OpLowering& entry = Registry().emplace_back();
  entry.op = op;
  entry.owner = owner;
  return entry;
}

}  // namespace

OpLowering& RegisterOp(const std::string& op, OpLowering::LowerFunction lower, Owner owner) {
  OpLowering& entry = AddToRegistry(op, owner);
  entry.lower = lower;
  return entry;
}

OpLowering& RegisterOp(const std::string& op, OpLowering::ElementwiseFunction elementwise,
                       Owner owner) {
  OpLowering& entry = AddToRegistry(op, owner);
  entry.elementwise = elementwise;
  return entry;
}

std::vector<std::string> LoweredOps() {
  std::vector<std::string> ops;
  for (const OpLowering& entry : Registry()) ops.push_back(entry.op);
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  return ops;
}

void CheckDriverOptions(const LoweringOptions& options) {
  const Graph nothing;
  ProgramBuilder(nothing, options);
}

LoweredProgram LowerGraph(const Graph& graph, const LoweringOptions& options, LoweringGoal goal) {
  return ProgramBuilder(graph, options).Run(goal);
}

}  // namespace npu
