// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "graph.h"
#include "layout.h"
#include "weights.h"

namespace npu {

namespace ffi = tvm::ffi;

namespace {

std::deque<OpLowering>& Registry() {
  static std::deque<OpLowering> registry;
  return registry;
}

/*! \brief What a scale, a bias and a residual are made of. */
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

/*! \brief Which of two entries for a call wins: the lower rank. */
int RankOf(const OpLowering& entry) {
  return (entry.owner == Owner::kVendor ? 0 : 4) + (entry.when != nullptr ? 0 : 2) +
         (entry.lower != nullptr ? 0 : 1);
}

[[noreturn]] void RefuseBoth(const OpLowering& entry, const std::string& who) {
  throw Refusal(who + ": two lowerings of the " +
                (entry.owner == Owner::kVendor ? "vendor" : "engine") +
                " are registered for it; leave one out, or tell them apart by .When");
}

/*! \brief The table's entries by op, those that win first. */
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

std::string Join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

std::string DescribeNode(const Node& node) { return node.op + " (" + node.name + ")"; }

std::optional<npu_dtype> ReadDtype(const std::string& name) {
  static const std::map<std::string, npu_dtype> dtypes = {
      {"float32", NPU_FLOAT32}, {"float16", NPU_FLOAT16}, {"int8", NPU_INT8}, {"uint8", NPU_UINT8},
      {"int32", NPU_INT32},     {"int64", NPU_INT64},     {"bool", NPU_BOOL}, {"int16", NPU_INT16},
  };
  auto it = dtypes.find(name);
  if (it == dtypes.end()) return std::nullopt;
  return it->second;
}

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
                  " is not supported; supported are float32, float16, int8, uint8, int32, int64 "
                  "and bool");
  }
  if (info.shape.size() > NPU_MAX_RANK) {
    throw Refusal(who + ": rank " + std::to_string(info.shape.size()) +
                  " is not supported; the largest is " + std::to_string(NPU_MAX_RANK));
  }
  return MakeDesc(*dtype, ReadDims(info));
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

bool IsFloat(const std::string& dtype) { return dtype == "float32" || dtype == "float16"; }

}  // namespace

/*! \brief One op with what joins it: absorbed transposes before it, fused ops behind it. */
struct Unit {
  size_t anchor = 0;
  const OpLowering* lowering = nullptr;
  /*! \brief The arguments of the anchor, absorbed transposes skipped. */
  std::vector<EntryRef> inputs;
  std::vector<bool> transposed;
  /*! \brief The dequantizations of the arguments, if the op computes with integers. */
  std::vector<size_t> dequantized;
  /*! \brief The dequantization of a constant second argument, if that stays integers. */
  std::optional<size_t> weights;
  /*! \brief The element-wise calls behind the anchor, in order. */
  std::vector<std::pair<size_t, const OpLowering*>> epilogue;

  size_t Last() const { return epilogue.empty() ? anchor : epilogue.back().first; }
};

// ---- VectorBuilder ----

namespace {

/*! \brief The kind of step that an instruction is; OTHER for what drivers read off operands. */
npu_step_kind KindOf(npu_vector_opcode opcode) {
  static constexpr npu_step_kind kKinds[] = {
      NPU_STEP_OTHER,        NPU_STEP_OTHER,     NPU_STEP_ADD,      NPU_STEP_SUBTRACT,
      NPU_STEP_MULTIPLY,     NPU_STEP_DIVIDE,    NPU_STEP_MAXIMUM,  NPU_STEP_MINIMUM,
      NPU_STEP_FLOOR_DIVIDE, NPU_STEP_REMAINDER, NPU_STEP_LESS,     NPU_STEP_EQUAL,
      NPU_STEP_SELECT,       NPU_STEP_ABSOLUTE,  NPU_STEP_POWER,    NPU_STEP_EXP,
      NPU_STEP_LOG,          NPU_STEP_SQRT,      NPU_STEP_TANH,     NPU_STEP_ERF,
      NPU_STEP_SIGMOID,      NPU_STEP_SIN,       NPU_STEP_COS,      NPU_STEP_TAN,
      NPU_STEP_ATAN,         NPU_STEP_FLOOR,     NPU_STEP_TRUNCATE, NPU_STEP_ROUND_EVEN,
      NPU_STEP_ROUND_AWAY,   NPU_STEP_RESCALE,
  };
  static_assert(sizeof(kKinds) / sizeof(kKinds[0]) == NPU_VECTOR_OPCODE_COUNT,
                "an opcode is no step");
  return kKinds[opcode];
}

bool IsCommutative(npu_step_kind kind) {
  return kind == NPU_STEP_ADD || kind == NPU_STEP_MULTIPLY || kind == NPU_STEP_MAXIMUM ||
         kind == NPU_STEP_MINIMUM || kind == NPU_STEP_EQUAL;
}

bool IsComputed(const npu_operand& operand) {
  return operand.kind == NPU_OPERAND_STEP || operand.kind == NPU_OPERAND_ACCUMULATOR;
}

npu_operand OperandOfStep(size_t step) { return {NPU_OPERAND_STEP, static_cast<int32_t>(step), 0}; }

}  // namespace

Value VectorBuilder::Emit(npu_vector_opcode opcode, Value a, Value b, Value c) {
  instructions_.push_back(npu_vector_instruction{opcode, a.index, b.index, c.index, 0.0});
  if (opcode != NPU_VECTOR_LOAD && opcode != NPU_VECTOR_CONSTANT) {
    std::vector<npu_operand> operands;
    for (Value value : {a, b, c}) {
      if (value.index >= 0) operands.push_back(OperandOf(value));
    }
    AddStep(KindOf(opcode), operands);
    operands_.push_back(OperandOfStep(steps_.size() - 1));
  }
  return Value{static_cast<int32_t>(instructions_.size()) - 1};
}

void VectorBuilder::AddStep(npu_step_kind kind, const std::vector<npu_operand>& operands) {
  npu_step step = {};
  step.kind = kind;
  step.op = "";
  step.operand_count = static_cast<int32_t>(operands.size());
  std::copy(operands.begin(), operands.end(), step.operands);
  if (IsCommutative(kind) && !IsComputed(step.operands[0]) && IsComputed(step.operands[1])) {
    std::swap(step.operands[0], step.operands[1]);
  }
  steps_.push_back(step);
}

void VectorBuilder::NameSteps(size_t first, Value result, const char* op, npu_step_kind kind,
                              const std::vector<npu_operand>& operands) {
  // An op that returns its operand unchanged adds no step.
  if (kind != NPU_STEP_OTHER && steps_.size() > first && operands.size() <= NPU_MAX_OPERANDS) {
    steps_.resize(first);
    AddStep(kind, operands);
    operands_[static_cast<size_t>(result.index)] = OperandOfStep(first);
  }
  for (size_t i = first; i < steps_.size(); ++i) steps_[i].op = op;
}

Value VectorBuilder::AsStep(npu_step_kind kind, const char* op, const Values& operands,
                            Value result) {
  std::vector<npu_operand> read;
  for (Value value : operands) read.push_back(OperandOf(value));
  NameSteps(0, result, op, kind, read);
  return result;
}

Value VectorBuilder::Load(const Tensor& tensor) {
  auto input = std::find(inputs_.begin(), inputs_.end(), tensor.id);
  auto index = static_cast<int32_t>(input - inputs_.begin());
  if (input == inputs_.end()) inputs_.push_back(tensor.id);
  operands_.push_back({NPU_OPERAND_TENSOR, tensor.id, 0});
  return Emit(NPU_VECTOR_LOAD, Value{index});
}

Value VectorBuilder::LoadAccumulator() {
  inputs_.push_back(-1);  // Input 0 of an epilogue, known to the driver.
  operands_.push_back({NPU_OPERAND_ACCUMULATOR, 0, 0});
  return Emit(NPU_VECTOR_LOAD, Value{0});
}

Value VectorBuilder::Rescale(Value a, Value multiplier, Value shift, npu_rounding rounding) {
  Value result = Emit(NPU_VECTOR_RESCALE, a, multiplier, shift);
  instructions_.back().immediate = rounding;
  npu_step& step = steps_.back();
  step.operands[step.operand_count++] = {NPU_OPERAND_NUMBER, 0, static_cast<double>(rounding)};
  return result;
}

Value VectorBuilder::Constant(double value) {
  operands_.push_back({NPU_OPERAND_NUMBER, 0, value});
  Value result = Emit(NPU_VECTOR_CONSTANT, Value{0});
  instructions_.back().immediate = value;
  return result;
}

npu_vector_program VectorBuilder::Finish(Value result, const char* op) {
  // The last value is stored; the same holds for the steps.
  npu_operand last = OperandOf(result);
  if (last.kind != NPU_OPERAND_STEP || last.index + 1 != static_cast<int32_t>(steps_.size())) {
    AddStep(NPU_STEP_CAST, {last});
  }
  for (npu_step& step : steps_) {
    if (*step.op == '\0') step.op = op;
  }
  if (result.index + 1 != static_cast<int32_t>(instructions_.size())) {
    instructions_.push_back({NPU_VECTOR_MAXIMUM, result.index, result.index, -1, 0.0});
  }
  npu_vector_program program = {};
  program.size = sizeof(program);
  program.instructions = instructions_.data();
  program.instruction_count = static_cast<int32_t>(instructions_.size());
  program.inputs = inputs_.data();
  program.input_count = static_cast<int32_t>(inputs_.size());
  program.steps = steps_.data();
  program.step_count = static_cast<int32_t>(steps_.size());
  return program;
}

// ---- ProgramBuilder ----

/*! \brief Walks a graph and calls the driver's build half. */
class ProgramBuilder {
 public:
  ProgramBuilder(const Graph& graph, const LoweringOptions& options)
      : graph_(graph), options_(options), api_(BuildDriver(options.role)) {
    std::vector<npu_option> pairs;
    for (const auto& [key, value] : options.driver) pairs.push_back({key.c_str(), value.c_str()});
    npu_builder* builder = nullptr;
    npu_status status = api_.create(pairs.data(), pairs.size(), &builder);
    result_.builder = {builder, {&api_}};
    Check(status, "the driver's options");
    if (api_.layout != nullptr) {
      layouts_.emplace(DriverBuilder{api_, builder}, &result_.constants);
    }
    index_ = IndexRegistry();
  }

  LoweredProgram Run(LoweringGoal goal) {
    AddSymbolsAndInputs();
    CountUses();
    FormUnits();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      auto unit = unit_ending_at_.find(i);
      if (unit != unit_ending_at_.end()) LowerUnit(units_[unit->second]);
    }
    if (layouts_.has_value()) layouts_->SetLabel("an output of the region");
    for (const EntryRef& head : graph_.heads) {
      const Tensor output = Get(head);
      if (layouts_.has_value()) {
        layouts_->MarkOutput(output.id);
      } else {
        Check(api_.mark_output(builder(), output.id), "an output of the region");
      }
    }
    if (layouts_.has_value()) {
      layouts_->AddUnreadInputs();
      result_.ports = layouts_->ports();
    }
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

  // ---- For Lowering ----

  const Graph& graph() const { return graph_; }

  /*! \brief The driver's tensor of a value; constants are added when first used. */
  Tensor Get(const EntryRef& entry) {
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

  /*! \brief A call by itself, with nothing fused or absorbed. */
  Unit MakeUnit(size_t node, const OpLowering* lowering) const {
    Unit unit;
    unit.anchor = node;
    unit.lowering = lowering;
    unit.inputs = graph_.nodes[node].inputs;
    unit.transposed.assign(unit.inputs.size(), false);
    return unit;
  }

  /*! \brief Whether a dequantization has no place of its own: what reads it reads integers. */
  bool IsInlined(size_t node) const { return inlined_.count(node) != 0; }
  /*! \brief The element-wise entry of a call that a vector program computes. */
  const OpLowering* FindElementwise(size_t node) const { return Find(node, true); }
  /*! \brief The numbers of a constant, or of none for another value. */
  std::vector<double> Numbers(const EntryRef& entry) const {
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
    if (dtype == NPU_INT32) read(int32_t{});
    return numbers;
  }

  void Set(const EntryRef& entry, const Tensor& tensor) { tensors_[Key(entry)] = tensor; }
  bool Has(const EntryRef& entry) const { return tensors_.count(Key(entry)) != 0; }

  /*! \brief How often a value is read. */
  int Uses(const EntryRef& entry) const {
    auto it = uses_.find(Key(entry));
    return it == uses_.end() ? 0 : it->second;
  }

  Tensor NewTensor(const npu_tensor_desc& desc, const std::string& who) {
    Tensor tensor;
    tensor.desc = desc;
    RequireType(desc, who);
    if (layouts_.has_value()) {
      tensor.id = layouts_->AddTensor(desc);
    } else {
      Check(api_.add_tensor(builder(), &desc, &tensor.id), who);
    }
    Keep(tensor);
    return tensor;
  }

  Tensor NewConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                     const std::string& who) {
    Tensor tensor;
    tensor.desc = desc;
    // Words, so that every element type is aligned.
    std::vector<uint64_t>& kept = result_.constants.emplace_back((bytes + 7) / 8);
    std::memcpy(kept.data(), data, bytes);
    AddConstant(&tensor, kept.data(), bytes, who);
    return tensor;
  }

  Tensor NewView(const Tensor& tensor, const npu_tensor_desc& desc, const std::string& who) {
    Tensor view;
    view.desc = desc;
    Require(api_.add_view != nullptr, "add_view", who);
    if (layouts_.has_value()) {
      view.id = layouts_->AddView(tensor.id, desc);
    } else {
      Check(api_.add_view(builder(), tensor.id, &desc, &view.id), who);
    }
    Keep(view);
    return view;
  }

  /*! \brief Adds an operation; what the driver has no function for is declined. */
  template <typename Op>
  void Add(Op op, npu_status (*npu_build_api::*function)(npu_builder*, const Op*), const char* name,
           const std::string& who) {
    Require(api_.*function != nullptr, name, who);
    auto is_float = [this](npu_tensor tensor) { return IsFloat(DescOf(tensor).dtype); };
    if (api_.integers == 0 && NeedsIntegers(op, is_float)) {
      throw Refusal(who + ": the driver " + api_.name +
                    " does not say that it has products of integers and RESCALE (integers)");
    }
    if (api_.integer_weights == 0 && NeedsIntegerWeights(op, is_float)) {
      throw Refusal(who + ": the driver " + api_.name + " does not say that it multiplies real " +
                    "numbers by integers (integer_weights)");
    }
    op.size = sizeof(op);
    if (layouts_.has_value()) return layouts_->Add(op);
    Check((api_.*function)(builder(), &op), who);
  }

  /*! \brief The driver's own number of a tensor; see Lowering::AtDriver. */
  npu_tensor AtDriver(npu_tensor tensor, std::optional<npu_tensor> like) {
    return layouts_.has_value() ? layouts_->AtDriver(tensor, like) : tensor;
  }

  /*! \brief The weights of a matmul that are integers; NULL where they are real numbers. */
  const IntegerWeights* WeightsOf(size_t matmul) const {
    auto it = weights_.find(matmul);
    return it == weights_.end() ? nullptr : &it->second;
  }

  /*! \brief The shape and type of a tensor of the builder; a scalar for an unknown one. */
  npu_tensor_desc DescOf(npu_tensor tensor) const {
    auto it = descs_.find(tensor);
    return it == descs_.end() ? npu_tensor_desc{} : it->second;
  }

  /*! \brief The largest value of a symbol. */
  int64_t Bound(int32_t symbol) const {
    return options_.symbol_bounds.at(graph_.symbols[static_cast<size_t>(symbol)]);
  }

  const npu_build_api& api() const { return api_; }
  npu_builder* builder() const { return result_.builder.get(); }

  void Check(npu_status status, const std::string& who) const {
    DriverBuilder{api_, builder()}.Check(status, who);
  }

  void Require(bool has, const char* function, const std::string& who) const {
    DriverBuilder{api_, builder()}.Require(has, function, who);
  }

 private:
  void Keep(const Tensor& tensor) { descs_[tensor.id] = tensor.desc; }

  void AddConstant(Tensor* tensor, const void* data, size_t bytes, const std::string& who) {
    Require(api_.add_constant != nullptr, "add_constant", who);
    RequireType(tensor->desc, who);
    if (layouts_.has_value()) {
      tensor->id = layouts_->AddConstant(tensor->desc, data, bytes);
    } else {
      Check(api_.add_constant(builder(), &tensor->desc, data, bytes, &tensor->id), who);
    }
    Keep(*tensor);
  }

  static uint64_t Key(const EntryRef& entry) {
    return static_cast<uint64_t>(entry.node) << 16 | static_cast<uint64_t>(entry.index);
  }

  static std::string_view BytesOf(const Node& constant) {
    const DLTensor* value = constant.value.value().GetDLTensorPtr();
    if (value->device.device_type != kDLCPU) {
      throw Refusal("the constant " + constant.name + " is not in host memory");
    }
    return {static_cast<const char*>(value->data) + value->byte_offset, ffi::GetDataSize(*value)};
  }

  /*! \brief Declines element types that are newer than the driver. */
  void RequireType(const npu_tensor_desc& desc, const std::string& who) const {
    if (desc.dtype != NPU_INT16 || api_.version >= 3) return;
    throw Refusal(who + ": the driver " + api_.name +
                  " is older than int16, which came with version 3 of the driver interface");
  }

  void AddSymbolsAndInputs() {
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
      if (node.outputs.empty()) continue;  // A shape: the driver reads sizes off the tensors.
      Tensor tensor;
      tensor.desc = MakeDesc(node.outputs[0], "the argument " + node.name);
      RequireType(tensor.desc, "the argument " + node.name);
      if (layouts_.has_value()) {
        tensor.id = layouts_->AddInput(tensor.desc, static_cast<int64_t>(i));
      } else {
        Check(api_.add_input(builder(), &tensor.desc, &tensor.id), "the argument " + node.name);
      }
      Keep(tensor);
      Set(EntryRef{argument, 0}, tensor);
    }
  }

  void CountUses() {
    for (const Node& node : graph_.nodes) {
      for (const EntryRef& input : node.inputs) ++uses_[Key(input)];
    }
    for (const EntryRef& head : graph_.heads) ++uses_[Key(head)];
  }

  /*! \brief The table's entry for a call, or NULL; only `elementwise` ones, if asked for. */
  const OpLowering* Find(size_t node, bool elementwise = false) const {
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

  /*! \brief Decides which calls are lowered together. A call behind another is lowered at the
   *  place of the last one, where everything that it reads is known. */
  void FormUnits() {
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
                      ": this backend has no lowering for it; it has one for " +
                      Join(LoweredOps()));
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
                 ReadsDequantized(i)) {
        throw Refusal(DescribeNode(graph_.nodes[i]) + ": its lowering takes no quantised tensors");
      }
      if (lowering->takes_quantized && !unit.inputs.empty() && IsInlined(unit.inputs[0].node)) {
        for (EntryRef& input : unit.inputs) {
          unit.dequantized.push_back(input.node);
          input = graph_.nodes[input.node].inputs.at(0);
        }
      }
      claimed[i] = 1;
      // An op with both kinds of lowering is a vector program only if other ops are fused with it.
      const OpLowering* elementwise = lowering->takes_epilogue ? nullptr : Find(i, true);
      if (lowering->takes_epilogue || elementwise != nullptr) {
        FuseInto(&unit, users, claimed);
        for (const auto& fused : unit.epilogue) claimed[fused.first] = 1;
        if (!unit.epilogue.empty() && elementwise != nullptr) unit.lowering = elementwise;
      }
      unit_ending_at_[unit.Last()] = units_.size();
      units_.push_back(std::move(unit));
    }
  }

  /*! \brief Whether an argument is dequantized for a call alone, in its composite. */
  bool IsDequantized(const EntryRef& input, const Node& reader) const {
    const Node& node = graph_.nodes[input.node];
    return node.op == "relax.dequantize" && reader.composite >= 0 &&
           node.composite == reader.composite && Uses(input) == 1;
  }

  bool ReadsDequantized(size_t index) const {
    const Node& node = graph_.nodes[index];
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](const EntryRef& input) { return IsDequantized(input, node); });
  }

  /*! \brief Claims the dequantizations in the composites of ops that compute with integers: those
   *  of its arguments, and those that its epilogue reads. */
  void InlineDequantizations(std::vector<char>* claimed) {
    std::unordered_set<int> quantized;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.inputs.size() != 2 ||
          !std::all_of(node.inputs.begin(), node.inputs.end(),
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

  /*! \brief Claims what makes real numbers of the constant weights of a matmul, in its composite.
   */
  void InlineWeights(std::vector<char>* claimed) {
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

  /*! \brief Adds the weights of a unit, as integers if its lowering and the driver take such. */
  void AddWeights(const Unit& unit, const std::string& who) {
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
      throw Refusal(who + ": its weights are no matrix of int8 or uint8 with constant scales");
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

  bool SwapsLastDims(size_t index) const {
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

  /*! \brief The element-wise entry for a call that is fused behind another one, or NULL. A scale, a
   *  bias or a residual belongs to the op before it: it needs no entry of its own. */
  const OpLowering* FindFused(size_t node) const {
    if (Find(node) != nullptr) return Find(node, true);
    const auto& arithmetic = FusedArithmetic();
    auto it = std::find_if(arithmetic.begin(), arithmetic.end(), [&](const OpLowering& entry) {
      return entry.op == graph_.nodes[node].op;
    });
    return it == arithmetic.end() ? nullptr : &*it;
  }

  /*! \brief Adds the element-wise calls of the composite that can be one vector program with the
   *  unit: those of the same shape, as far as nothing else reads what they compute on the way. */
  void FuseInto(Unit* unit, const std::vector<std::vector<size_t>>& users,
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

  /*! \brief Whether a result may stay inside of a vector program. Numbers there are those of
   * float32; a comparison of such numbers is 0 or 1. */
  bool MayBeInside(size_t index) const {
    const Node& node = graph_.nodes[index];
    if (node.outputs.size() != 1) return false;
    if (node.outputs[0].dtype != "bool") return IsFloat(node.outputs[0].dtype);
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](const EntryRef& input) { return IsFloat(graph_.Info(input).dtype); });
  }

  static void AddOperands(const std::vector<EntryRef>& inputs,
                          const std::unordered_set<size_t>& members,
                          std::unordered_set<uint64_t>* operands) {
    for (const EntryRef& input : inputs) {
      if (members.count(input.node) == 0) operands->insert(Key(input));
    }
  }

  void LowerUnit(const Unit& unit) {
    Lowering lowering(this, &unit);
    if (layouts_.has_value()) {
      layouts_->SetLabel(lowering.Name());
    } else if (api_.set_label != nullptr) {
      Check(api_.set_label(builder(), lowering.Name().c_str()), lowering.Name());
    }
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
        throw Refusal(lowering.Name() + ": its lowering does not write output " +
                      std::to_string(i));
      }
    }
  }

  const Graph& graph_;
  const LoweringOptions& options_;
  const npu_build_api& api_;
  LoweredProgram result_;
  /*! \brief There if the driver declares layouts. */
  std::optional<LayoutAdapter> layouts_;
  std::unordered_map<std::string, std::vector<const OpLowering*>> index_;
  std::unordered_map<uint64_t, Tensor> tensors_;
  std::unordered_map<npu_tensor, npu_tensor_desc> descs_;
  std::unordered_map<uint64_t, int> uses_;
  std::unordered_set<size_t> inlined_;
  /*! \brief By matmul: the dequantizations of weights, and what they mean. */
  std::unordered_map<size_t, size_t> dequantized_weights_;
  std::unordered_map<size_t, IntegerWeights> weights_;
  std::vector<Unit> units_;
  std::unordered_map<size_t, size_t> unit_ending_at_;
};

// ---- Lowering ----

namespace {

const Node& AnchorOf(const Graph& graph, const Unit& unit) { return graph.nodes[unit.anchor]; }

}  // namespace

std::string Lowering::Name() const { return DescribeNode(AnchorOf(program_->graph(), *unit_)); }

size_t Lowering::InputCount() const { return unit_->inputs.size(); }

const char* Lowering::OpName() const { return AnchorOf(program_->graph(), *unit_).op.c_str(); }

Tensor Lowering::Input(size_t i) const {
  if (i >= unit_->inputs.size()) {
    Refuse("has " + std::to_string(unit_->inputs.size()) + " tensor arguments, but number " +
           std::to_string(i) + " is needed");
  }
  return program_->Get(unit_->inputs[i]);
}

bool Lowering::InputIsTransposed(size_t i) const { return unit_->transposed.at(i); }

std::vector<npu_dim> Lowering::InputDims(size_t i) const {
  std::vector<npu_dim> dims = ReadDims(program_->graph().Info(unit_->inputs.at(i)));
  if (InputIsTransposed(i)) std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  return dims;
}

npu_dtype Lowering::InputDtype(size_t i) const {
  return MakeDesc(program_->graph().Info(unit_->inputs.at(i)), Name()).dtype;
}

size_t Lowering::OutputCount() const {
  return program_->graph().nodes[unit_->Last()].outputs.size();
}

bool Lowering::OutputIsUsed(size_t i) const {
  return program_->Uses(EntryRef{unit_->Last(), i}) != 0;
}

Tensor Lowering::Output(size_t i) {
  EntryRef entry{unit_->Last(), i};
  if (!program_->Has(entry)) {
    const TensorInfo& info = program_->graph().Info(entry);
    program_->Set(entry, program_->NewTensor(MakeDesc(info, Name()), Name()));
  }
  return program_->Get(entry);
}

std::vector<npu_dim> Lowering::OutputDims(size_t i) const {
  return ReadDims(program_->graph().Info(EntryRef{unit_->Last(), i}));
}

npu_dtype Lowering::OutputDtype(size_t i) const {
  return MakeDesc(program_->graph().Info(EntryRef{unit_->Last(), i}), Name()).dtype;
}

void Lowering::SetOutput(size_t i, const Tensor& tensor) {
  program_->Set(EntryRef{unit_->Last(), i}, tensor);
}

Value Lowering::Apply(VectorBuilder* vector, const std::map<size_t, Value>& known) const {
  Values values;
  for (const EntryRef& input : unit_->inputs) {
    auto it = known.find(input.node);
    if (it != known.end()) {
      values.push_back(it->second);
    } else if (program_->IsInlined(input.node)) {
      Unit unit = program_->MakeUnit(input.node, program_->FindElementwise(input.node));
      if (unit.lowering == nullptr) Refuse("a tensor that its epilogue reads has several scales");
      values.push_back(Lowering(program_, &unit).Apply(vector, {}));
    } else {
      values.push_back(vector->Load(program_->Get(input)));
    }
  }
  const OpLowering& lowering = *unit_->lowering;
  std::vector<npu_operand> operands;
  for (Value value : values) operands.push_back(vector->OperandOf(value));
  size_t first = vector->steps_.size();
  Value result = lowering.elementwise(*this, *vector, values);
  if (lowering.step != NPU_STEP_OTHER) {
    for (const std::string& name : lowering.step_numbers) {
      operands.push_back({NPU_OPERAND_NUMBER, 0, Float(name)});
    }
  }
  vector->NameSteps(first, result, lowering.op.c_str(), lowering.step, operands);
  return result;
}

Value Lowering::AppendFused(VectorBuilder* vector, Value value) const {
  std::map<size_t, Value> known;
  known[unit_->anchor] = value;
  for (const auto& [node, op] : unit_->epilogue) {
    Unit unit = program_->MakeUnit(node, op);
    value = Lowering(program_, &unit).Apply(vector, known);
    known[node] = value;
  }
  return value;
}

const npu_vector_program* Lowering::Epilogue() {
  if (IsQuantized()) {
    if (const npu_vector_program* integers = IntegerEpilogue()) return integers;
    const std::vector<double> scale = AccumulatorScale();
    // A tensor, also for one number: a program that loads a real number computes with such.
    const Tensor factor =
        Constant(PerChannel(scale.size()), std::vector<float>(scale.begin(), scale.end()));
    return EpilogueOf([&](VectorBuilder& v, Value value) {
      return AppendFused(&v, v.Multiply(value, v.Load(factor)));
    });
  }
  const IntegerWeights* weights = program_->WeightsOf(unit_->anchor);
  if (weights != nullptr && weights->block == 0) {
    return EpilogueOf([&](VectorBuilder& v, Value value) {
      const std::vector<float>& scales = weights->scales;
      const Value factor = scales.size() == 1 ? v.Constant(scales[0])
                                              : v.Load(Constant(PerChannel(scales.size()), scales));
      return AppendFused(&v, v.Multiply(value, factor));
    });
  }
  if (unit_->epilogue.empty()) return nullptr;
  return EpilogueOf([this](VectorBuilder& v, Value value) { return AppendFused(&v, value); });
}

const npu_vector_program* Lowering::EpilogueOf(
    const std::function<Value(VectorBuilder&, Value)>& program) {
  VectorBuilder& vector = vectors_.emplace_back();
  const Value result = program(vector, vector.LoadAccumulator());
  return &epilogues_.emplace_back(vector.Finish(result, OpName()));
}

// ---- Quantised ops ----

bool Lowering::IsQuantized() const { return !unit_->dequantized.empty(); }

int32_t Lowering::ZeroPoint(size_t i) const {
  if (!IsQuantized()) return 0;
  const Node& node = program_->graph().nodes[unit_->dequantized.at(i)];
  const std::vector<double> numbers = program_->Numbers(node.inputs.at(2));
  if (numbers.empty() || std::any_of(numbers.begin(), numbers.end(),
                                     [&](double number) { return number != numbers[0]; })) {
    Refuse("argument " + std::to_string(i) + " has no constant zero point, or several");
  }
  return static_cast<int32_t>(numbers[0]);
}

std::vector<double> Lowering::AccumulatorScale() const {
  std::vector<double> scale = {1};
  for (size_t node : unit_->dequantized) {
    const std::vector<double> numbers =
        program_->Numbers(program_->graph().nodes[node].inputs.at(1));
    if (numbers.empty()) Refuse("an argument has no constant scale");
    const std::vector<double>& longer = numbers.size() > scale.size() ? numbers : scale;
    std::vector<double> product(longer.size());
    for (size_t i = 0; i < product.size(); ++i) {
      product[i] = scale[scale.size() == 1 ? 0 : i] * numbers[numbers.size() == 1 ? 0 : i];
    }
    scale = std::move(product);
  }
  return scale;
}

std::vector<npu_dim> Lowering::PerChannel(size_t count) const {
  if (count == 1) return {};
  const int rank = static_cast<int>(OutputDims().size());
  const int channel = unit_->lowering->channel;
  std::vector<npu_dim> dims(channel < 0 ? -channel : rank - channel, FixedDim(1));
  dims[0] = FixedDim(static_cast<int64_t>(count));
  return dims;
}

namespace {

/*! \brief Multipliers and shifts: factor is about multiplier / 2^shift. */
struct Factors {
  std::vector<int64_t> multipliers, shifts;
};

/*! \brief The multipliers with as many bits as the chip's have. */
Factors MakeFactors(const Lowering& op, const std::vector<double>& factors) {
  const Requantization& rule = ChipRequantization();
  Factors made;
  for (double factor : factors) {
    int exponent = 0;
    const double mantissa = std::frexp(factor, &exponent);  // In [0.5, 1).
    auto multiplier =
        static_cast<int64_t>(std::nearbyint(std::ldexp(mantissa, rule.multiplier_bits)));
    int64_t shift = rule.multiplier_bits - exponent;
    if (multiplier == int64_t{1} << rule.multiplier_bits) {
      multiplier /= 2;
      --shift;
    }
    if (!(factor > 0) || shift < rule.least_shift || shift > rule.most_shift) {
      std::ostringstream text;
      text << std::setprecision(9)
           << "the scales of its arguments and of its result make a factor of " << factor
           << ", a shift by " << shift << "; supported: " << rule.least_shift << " to "
           << rule.most_shift;
      op.Refuse(text.str());
    }
    made.multipliers.push_back(multiplier);
    made.shifts.push_back(shift);
  }
  return made;
}

}  // namespace

struct Lowering::IntegerSteps {
  struct Addend {
    Tensor tensor;
    double zero_point = 0;
    Factors factor;
  };

  /*! \brief As steps of the accumulator; without an id there is none. */
  Tensor bias;
  /*! \brief From steps of the accumulator to those of the result. */
  Factors factor;
  /*! \brief Tensors that are added, as steps of the result. */
  std::vector<Addend> addends;
  double zero_point = 0, least = 0, most = 0;
};

std::optional<Lowering::IntegerSteps> Lowering::ReadIntegerSteps() {
  const Graph& graph = program_->graph();
  const std::vector<double> scale = AccumulatorScale();
  if (unit_->epilogue.empty() || graph.nodes[unit_->Last()].op != "relax.quantize") return {};
  const Node& quantize = graph.nodes[unit_->Last()];
  const std::vector<double> step = program_->Numbers(quantize.inputs.at(1));
  const std::vector<double> zero = program_->Numbers(quantize.inputs.at(2));
  if (step.size() != 1 || zero.size() != 1) return {};

  auto quantized = [&](double number) { return std::nearbyint(number / step[0]) + zero[0]; };
  const bool is_signed = Output().desc.dtype == NPU_INT8;
  IntegerSteps steps;
  steps.zero_point = zero[0];
  steps.least = is_signed ? -128 : 0;
  steps.most = is_signed ? 127 : 255;
  size_t value = unit_->anchor;
  for (const auto& [index, lowering] : unit_->epilogue) {
    const Node& node = graph.nodes[index];
    if (index == unit_->Last()) break;
    const bool first = node.inputs.at(0).node == value;
    if (node.op == "relax.add") {
      const EntryRef other = node.inputs.at(first ? 1 : 0);
      const std::vector<double> numbers = program_->Numbers(other);
      if (program_->IsInlined(other.node)) {
        const Node& dequantize = graph.nodes[other.node];
        const std::vector<double> scales = program_->Numbers(dequantize.inputs.at(1));
        const std::vector<double> zeros = program_->Numbers(dequantize.inputs.at(2));
        if (scales.size() != 1 || zeros.size() != 1) return {};
        steps.addends.push_back({program_->Get(dequantize.inputs.at(0)), zeros[0],
                                 MakeFactors(*this, {scales[0] / step[0]})});
      } else if (!numbers.empty() && steps.bias.id < 0 && steps.addends.empty() &&
                 (scale.size() == 1 || numbers.size() == scale.size())) {
        std::vector<int64_t> bias(numbers.size());
        for (size_t i = 0; i < bias.size(); ++i) {
          const double count = std::nearbyint(numbers[i] / scale[scale.size() == 1 ? 0 : i]);
          if (!(std::abs(count) < 0x1p31)) return {};
          bias[i] = static_cast<int64_t>(count);
        }
        steps.bias = Integers(ReadDims(graph.Info(other)), bias);
      } else {
        return {};
      }
    } else if (node.op == "relax.nn.relu") {
      steps.least = std::max(steps.least, zero[0]);
    } else if (node.op == "relax.clip") {
      const Unit clip = program_->MakeUnit(index, lowering);
      const Lowering at(program_, &clip);
      steps.least = std::max(steps.least, quantized(at.Float("min")));
      steps.most = std::min(steps.most, quantized(at.Float("max")));
    } else {
      return {};
    }
    value = index;
  }
  steps.least = std::min(steps.least, steps.most);
  std::vector<double> factors(scale.size());
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = scale[i] / step[0];
  steps.factor = MakeFactors(*this, factors);
  return steps;
}

const npu_vector_program* Lowering::IntegerEpilogue() {
  const std::optional<IntegerSteps> steps = ReadIntegerSteps();
  if (!steps.has_value()) return nullptr;
  const npu_rounding rounding = ChipRequantization().rounding;
  return EpilogueOf([&](VectorBuilder& v, Value result) {
    auto rescale = [&](Value value, const Factors& by) {
      const std::vector<npu_dim> dims = PerChannel(by.multipliers.size());
      return v.Rescale(value, v.Load(Integers(dims, by.multipliers)),
                       v.Load(Integers(dims, by.shifts)), rounding);
    };
    if (steps->bias.id >= 0) result = v.Add(result, v.Load(steps->bias));
    result = rescale(result, steps->factor);
    for (const IntegerSteps::Addend& addend : steps->addends) {
      Value value = v.Load(addend.tensor);
      if (addend.zero_point != 0) value = v.Subtract(value, v.Constant(addend.zero_point));
      result = v.Add(result, rescale(value, addend.factor));
    }
    if (steps->zero_point != 0) result = v.Add(result, v.Constant(steps->zero_point));
    return v.Minimum(v.Maximum(result, v.Constant(steps->least)), v.Constant(steps->most));
  });
}

Requantization& ChipRequantization() {
  static Requantization rule;
  return rule;
}

void Lowering::LowerAsElementwise() {
  Tensor out = Output();
  Elementwise(out,
              [this](VectorBuilder& vector) { return AppendFused(&vector, Apply(&vector, {})); });
}

// ---- Attributes ----

namespace {

/*! \brief The attribute, or None where there is none. */
ffi::Any FindAttribute(const Node& node, const std::string& name) {
  auto it = node.attributes.find(ffi::String(name));
  return it == node.attributes.end() ? ffi::Any(nullptr) : (*it).second;
}

}  // namespace

bool Lowering::IsNone(const std::string& name) const {
  return FindAttribute(AnchorOf(program_->graph(), *unit_), name) == nullptr;
}

namespace {

template <typename T>
T ReadAttribute(const Lowering& lowering, const Node& node, const std::string& name,
                const char* kind) {
  ffi::Any value = FindAttribute(node, name);
  if (value == nullptr) lowering.Refuse("has no attribute '" + name + "'");
  auto result = value.try_cast<T>();
  if (!result.has_value()) lowering.Refuse("its attribute '" + name + "' is not " + kind);
  return *result;
}

template <typename T>
std::vector<T> ReadList(const Lowering& lowering, const Node& node, const std::string& name,
                        const char* kind) {
  std::vector<T> values;
  for (const ffi::Any& item : ReadAttribute<ffi::Array<ffi::Any>>(lowering, node, name, kind)) {
    auto value = item.try_cast<T>();
    if (!value.has_value()) lowering.Refuse("its attribute '" + name + "' is not " + kind);
    values.push_back(*value);
  }
  return values;
}

}  // namespace

bool Lowering::Bool(const std::string& name) const {
  return ReadAttribute<bool>(*this, AnchorOf(program_->graph(), *unit_), name, "a bool");
}

int64_t Lowering::Int(const std::string& name) const {
  return ReadAttribute<int64_t>(*this, AnchorOf(program_->graph(), *unit_), name, "an integer");
}

double Lowering::Float(const std::string& name) const {
  const Node& node = AnchorOf(program_->graph(), *unit_);
  const auto value = ReadAttribute<double>(*this, node, name, "a number");
  const bool whole =
      FindAttribute(node, name).try_cast<int64_t>().has_value() || !IsFloat(node.outputs[0].dtype);
  if (whole && !std::isinf(value) && !(std::trunc(value) == value && std::abs(value) < 0x1p53)) {
    Refuse("its attribute '" + name + "' is not among the integers below 2^53, which float64 " +
           "can tell apart");
  }
  return value;
}

std::string Lowering::String(const std::string& name) const {
  if (IsNone(name)) return "";
  return std::string(
      ReadAttribute<ffi::String>(*this, AnchorOf(program_->graph(), *unit_), name, "a string"));
}

std::vector<int64_t> Lowering::Ints(const std::string& name) const {
  return ReadList<int64_t>(*this, AnchorOf(program_->graph(), *unit_), name, "a list of integers");
}

std::vector<double> Lowering::Floats(const std::string& name) const {
  return ReadList<double>(*this, AnchorOf(program_->graph(), *unit_), name, "a list of numbers");
}

std::vector<std::vector<IndexTerm>> Lowering::IndexMap(const std::string& name) const {
  if (IsNone(name)) {
    Refuse("its attribute '" + name + "' is more than sums of indices, quotients and remainders");
  }
  std::vector<std::vector<IndexTerm>> map;
  auto rows = ReadAttribute<ffi::Array<ffi::Any>>(*this, AnchorOf(program_->graph(), *unit_), name,
                                                  "an index map");
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

void Lowering::RequireOneOf(const std::string& name,
                            const std::vector<std::string>& supported) const {
  std::string value = String(name);
  if (std::find(supported.begin(), supported.end(), value) != supported.end()) return;
  std::vector<std::string> quoted;
  quoted.reserve(supported.size());
  for (const std::string& item : supported) quoted.push_back("'" + item + "'");
  Refuse("its attribute '" + name + "' is '" + value + "'; supported: " + Join(quoted));
}

void Lowering::Refuse(const std::string& why) const { throw Refusal(Name() + ": " + why); }

int64_t Lowering::FixedSize(const Tensor& tensor, int dim) const {
  const npu_dim& size = tensor.desc.dims[dim];
  if (size.symbol >= 0) {
    Refuse("dimension " + std::to_string(dim) + " of an argument is known only at the call ('" +
           program_->graph().symbols[static_cast<size_t>(size.symbol)] +
           "'); a fixed size is needed");
  }
  return size.size;
}

npu_dim Lowering::Joined(const std::vector<npu_dim>& dims) const {
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

// ---- Driver operations ----

npu_builder* Lowering::Builder() const { return program_->builder(); }

const void* Lowering::FindExtension(const char* name) const {
  const npu_build_api& api = program_->api();
  const void* found = api.extension == nullptr ? nullptr : api.extension(name);
  if (found == nullptr) {
    Refuse("the driver " + std::string(api.name) + " has no extension " + name);
  }
  return found;
}

npu_tensor Lowering::AtDriver(const Tensor& tensor) const {
  return program_->AtDriver(tensor.id, std::nullopt);
}

npu_tensor Lowering::AtDriver(const Tensor& tensor, const Tensor& like) const {
  return program_->AtDriver(tensor.id, like.id);
}

void Lowering::Check(npu_status status) const { program_->Check(status, Name()); }

void Lowering::NameEpilogue(const npu_vector_program* epilogue, npu_tensor out, int channel) {
  if (epilogue == nullptr) return;
  auto vector = std::find_if(vectors_.begin(), vectors_.end(), [&](const VectorBuilder& known) {
    return known.steps_.data() == epilogue->steps;
  });
  if (vector == vectors_.end()) return;
  const npu_tensor_desc to = program_->DescOf(out);
  if (channel < 0) channel += to.rank;
  auto same = [](const npu_dim& a, const npu_dim& b) {
    return a.size == b.size && a.symbol == b.symbol;
  };
  for (npu_step& step : vector->steps_) {
    bool adds = step.kind == NPU_STEP_ADD;
    if (!adds && step.kind != NPU_STEP_MULTIPLY) continue;
    if (step.operands[1].kind != NPU_OPERAND_TENSOR || !IsComputed(step.operands[0])) continue;
    const npu_tensor_desc from = program_->DescOf(step.operands[1].index);
    const int skipped = to.rank - from.rank;
    bool whole = skipped == 0;
    bool by_channel = skipped <= channel;
    for (int i = 0; i < from.rank; ++i) {
      bool is_same = same(from.dims[i], to.dims[skipped + i]);
      whole = whole && is_same;
      by_channel = by_channel && (skipped + i == channel ? is_same : same(from.dims[i], {1, -1}));
    }
    if (by_channel) {
      step.kind = adds ? NPU_STEP_BIAS : NPU_STEP_SCALE;
    } else if (whole && adds) {
      step.kind = NPU_STEP_RESIDUAL;
    }
  }
}

void Lowering::RequireSumsFit(const npu_tensor_desc& factors, int first, int last) const {
  double terms = 1;
  for (int i = first; i < last; ++i) {
    const npu_dim& dim = factors.dims[i];
    terms *= static_cast<double>(dim.size);
    if (dim.symbol >= 0) terms *= static_cast<double>(program_->Bound(dim.symbol));
  }
  double largest = terms;
  for (size_t i : {0, 1}) {
    const bool is_signed = InputDtype(i) == NPU_INT8;
    const double zero = ZeroPoint(i);
    largest *= std::max((is_signed ? 127 : 255) - zero, zero + (is_signed ? 128 : 0));
  }
  if (largest >= 0x1p31) {
    std::ostringstream text;
    text << "sums of " << terms << " products may be larger than the 32 bits of the accumulator";
    Refuse(text.str());
  }
}

Tensor Lowering::Integers(const std::vector<npu_dim>& dims, const std::vector<int64_t>& values) {
  const std::vector<int32_t> narrow(values.begin(), values.end());
  return ConstantOf(NPU_INT32, dims, narrow.data(), narrow.size() * sizeof(int32_t));
}

Tensor Lowering::Temporary(npu_dtype dtype, const std::vector<npu_dim>& dims) {
  return program_->NewTensor(MakeDesc(dtype, dims), Name());
}

Tensor Lowering::View(const Tensor& tensor, const std::vector<npu_dim>& dims) {
  return program_->NewView(tensor, MakeDesc(tensor.desc.dtype, dims), Name());
}

Tensor Lowering::ConstantOf(npu_dtype dtype, const std::vector<npu_dim>& dims, const void* data,
                            size_t bytes) {
  return program_->NewConstant(MakeDesc(dtype, dims), data, bytes, Name());
}

void Lowering::Emit(const npu_matmul& op) {
  npu_matmul known = op;
  if (IsQuantized()) {
    known.a_zero_point = ZeroPoint(0);
    known.b_zero_point = ZeroPoint(1);
    const npu_tensor_desc a = program_->DescOf(op.a);
    const int summed = op.transpose_a != 0 ? a.rank - 2 : a.rank - 1;
    RequireSumsFit(a, summed, summed + 1);
  }
  if (const IntegerWeights* weights = program_->WeightsOf(unit_->anchor)) {
    known.b_zero_point = weights->zero_point;
    known.b_bits = weights->bits;
    known.b_block = static_cast<int32_t>(weights->block);
    known.b_zero_points = -1;
    if (weights->block != 0) {
      const npu_tensor_desc b = program_->DescOf(op.b);
      const int64_t columns = b.dims[op.transpose_b != 0 ? 0 : 1].size;
      const auto blocks = static_cast<int64_t>(weights->scales.size()) / columns;
      const std::vector<npu_dim> dims = {FixedDim(blocks), FixedDim(columns)};
      known.b_scales = Constant(dims, weights->scales).id;
      const std::vector<uint8_t>& zeros = weights->zero_points;
      if (!zeros.empty()) {
        known.b_zero_points = ConstantOf(b.dtype, dims, zeros.data(), zeros.size()).id;
      }
    }
  }
  NameEpilogue(op.epilogue, op.out, -1);
  program_->Add(known, &npu_build_api::add_matmul, "add_matmul", Name());
}

void Lowering::Emit(const npu_convolution& op) {
  npu_convolution known = op;
  if (IsQuantized()) {
    known.data_zero_point = ZeroPoint(0);
    known.weight_zero_point = ZeroPoint(1);
    const npu_tensor_desc weight = program_->DescOf(op.weight);
    RequireSumsFit(weight, 1, weight.rank);
  }
  NameEpilogue(op.epilogue, op.out, 1);
  program_->Add(known, &npu_build_api::add_convolution, "add_convolution", Name());
}

void Lowering::Emit(const npu_pool& op) {
  program_->Add(op, &npu_build_api::add_pool, "add_pool", Name());
}

void Lowering::Emit(const npu_reduce& op) {
  program_->Add(op, &npu_build_api::add_reduce, "add_reduce", Name());
}

void Lowering::Emit(const npu_copy& op) {
  program_->Add(op, &npu_build_api::add_copy, "add_copy", Name());
}

void Lowering::Emit(const npu_gather& op) {
  program_->Add(op, &npu_build_api::add_gather, "add_gather", Name());
}

void Lowering::Emit(const npu_scan& op) {
  program_->Add(op, &npu_build_api::add_scan, "add_scan", Name());
}

void Lowering::Emit(const npu_order& op) {
  program_->Add(op, &npu_build_api::add_order, "add_order", Name());
}

void Lowering::Emit(const npu_lookup& op) {
  program_->Add(op, &npu_build_api::add_lookup, "add_lookup", Name());
}

npu_copy Lowering::CopyOf(const Tensor& data, const Tensor& out) const {
  npu_copy copy = {};
  copy.data = data.id;
  copy.out = out.id;
  for (int32_t i = 0; i < NPU_MAX_RANK; ++i) {
    copy.permutation[i] = i;
    copy.data_step[i] = copy.out_step[i] = 1;
  }
  return copy;
}

void Lowering::Elementwise(const Tensor& out, const std::function<Value(VectorBuilder&)>& program) {
  VectorBuilder& vector = vectors_.emplace_back();
  npu_elementwise op = {};
  const npu_vector_program finished = vector.Finish(program(vector), OpName());
  op.program = &finished;
  op.out = out.id;
  program_->Add(op, &npu_build_api::add_elementwise, "add_elementwise", Name());
}

void Lowering::Gather(const Tensor& data, const Tensor& indices, int64_t axis, const Tensor& out,
                      bool elementwise) {
  npu_gather op = {};
  op.data = data.id;
  op.indices = indices.id;
  op.out = out.id;
  op.axis = static_cast<int32_t>(axis);
  op.elementwise = elementwise;
  Emit(op);
}

void Lowering::Reduce(npu_reduce_kind kind, const Tensor& data, const std::vector<int64_t>& axes,
                      const Tensor& out,
                      const std::function<Value(VectorBuilder&, Value)>& epilogue) {
  npu_reduce op = {};
  op.data = data.id;
  op.out = out.id;
  op.kind = kind;
  for (int64_t axis : axes) {
    int64_t rank = data.rank();
    if (axis < -rank || axis >= rank) {
      Refuse("axis " + std::to_string(axis) + " is outside of rank " + std::to_string(rank));
    }
    op.axes |= 1u << static_cast<uint32_t>(axis < 0 ? axis + rank : axis);
  }
  if (epilogue) op.epilogue = EpilogueOf(epilogue);
  Emit(op);
}

Tensor Lowering::Exponentials(const Tensor& data, int64_t axis, Tensor* maximum) {
  std::vector<npu_dim> kept = data.dims();
  kept[axis] = FixedDim(1);
  *maximum = Temporary(NPU_FLOAT32, kept);
  Reduce(NPU_REDUCE_MAX, data, {axis}, *maximum);
  Tensor result = Temporary(NPU_FLOAT32, data.dims());
  Elementwise(result,
              [&](VectorBuilder& v) { return v.Exp(v.Subtract(v.Load(data), v.Load(*maximum))); });
  return result;
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
