// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>

#include "graph.h"
#include "program_builder.h"
#include "table.h"

namespace npu {

namespace ffi = tvm::ffi;

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

Value Lowering::AppendFused(VectorBuilder* vector, Value value,
                            std::map<size_t, Value> known) const {
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
    // A tensor even for one number: a program that loads a real number computes in real numbers.
    const Tensor factor =
        Constant(PerChannel(scale.size()), std::vector<float>(scale.begin(), scale.end()));
    return EpilogueOf([&](VectorBuilder& v, Value value) {
      if (offset_ != 0) value = v.Subtract(value, v.Constant(offset_));
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

// ---- Quantized ops ----

bool Lowering::IsQuantized() const { return !unit_->dequantized.empty(); }

bool Lowering::HasWideSums() const { return InputDtype(0) == NPU_INT16; }

int32_t Lowering::ZeroPoint(size_t i) const {
  if (i >= unit_->dequantized.size()) return 0;
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
  if (scale.size() > 1) {
    // The weight of a transposed convolution has the channels of one group.
    const std::vector<npu_dim> out = OutputDims();
    const int channel = unit_->lowering->channel;
    const auto channels =
        static_cast<size_t>(out[channel < 0 ? out.size() + channel : channel].size);
    const size_t count = scale.size();
    while (scale.size() < channels) scale.push_back(scale[scale.size() - count]);
  }
  if (counts_.empty()) return scale;
  std::vector<double> means;
  for (double count : counts_) means.push_back(scale.at(0) / count);
  return means;
}

void Lowering::AverageOver(const std::vector<double>& counts, const std::vector<npu_dim>& dims) {
  counts_ = counts;
  count_dims_ = dims;
  if (std::all_of(counts.begin(), counts.end(), [&](double n) { return n == counts[0]; })) {
    counts_.resize(1);
    count_dims_.clear();
  }
}

std::vector<npu_dim> Lowering::PerChannel(size_t count) const {
  if (count == 1) return {};
  if (!count_dims_.empty()) return count_dims_;
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
  npu_rounding rounding = NPU_ROUND_HALF_UP;
};

/*! \brief The multipliers, with as many bits as the chip's, for 32-bit numbers or for `wide` 48-bit
 *  ones. */
Factors MakeFactors(const Lowering& op, const std::vector<double>& factors, bool wide = false) {
  const Requantization& rule = ChipRequantization();
  const int bits = wide ? rule.wide_multiplier_bits : rule.multiplier_bits;
  // Fewer bits would give wide numbers more than 64 bits.
  const int least_shift = wide ? std::max(rule.least_shift, bits - 13) : rule.least_shift;
  Factors made;
  made.rounding = rule.rounding;
  // As in TOSA, which rounds twice only with 31-bit multipliers.
  if (wide && rule.rounding == NPU_ROUND_DOUBLE) made.rounding = NPU_ROUND_HALF_UP;
  for (double factor : factors) {
    int exponent = 0;
    const double mantissa = std::frexp(factor, &exponent);  // In [0.5, 1).
    auto multiplier = static_cast<int64_t>(std::nearbyint(std::ldexp(mantissa, bits)));
    int64_t shift = bits - exponent;
    if (multiplier == int64_t{1} << bits) {
      multiplier /= 2;
      --shift;
    }
    if (!(factor > 0) || shift < least_shift || shift > rule.most_shift) {
      std::ostringstream text;
      text << std::setprecision(9)
           << "the scales of its arguments and of its result make a factor of " << factor
           << ", a shift by " << shift << "; supported: " << least_shift << " to "
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

  /*! \brief In steps of the accumulator; no id means no bias. */
  Tensor bias;
  /*! \brief From steps of the accumulator to steps of the result. */
  Factors factor;
  /*! \brief Added tensors, in steps of the result. */
  std::vector<Addend> addends;
  double zero_point = 0, least = 0, most = 0;
};

std::optional<Lowering::IntegerSteps> Lowering::ReadIntegerSteps() {
  const Graph& graph = program_->graph();
  const std::vector<double> scale = AccumulatorScale();
  if (graph.nodes[unit_->Last()].op != "relax.quantize") return {};
  const Node& quantize = graph.nodes[unit_->Last()];
  const std::vector<double> step = program_->Numbers(quantize.inputs.at(1));
  const std::vector<double> zero = program_->Numbers(quantize.inputs.at(2));
  if (step.size() != 1 || zero.size() != 1) return {};

  auto quantized = [&](double number) { return std::nearbyint(number / step[0]) + zero[0]; };
  const bool wide = HasWideSums();
  IntegerSteps steps;
  steps.zero_point = zero[0];
  std::tie(steps.least, steps.most) = EndsOf(OutputDtype());
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
          if (!(std::abs(count) < (wide ? 0x1p47 : 0x1p31))) return {};
          bias[i] = static_cast<int64_t>(count);
        }
        const std::vector<npu_dim> dims = ReadDims(graph.Info(other));
        steps.bias = wide ? ConstantOf(NPU_INT64, dims, bias.data(), bias.size() * sizeof(int64_t))
                          : Integers(dims, bias);
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
  steps.factor = MakeFactors(*this, factors, wide);
  return steps;
}

const npu_vector_program* Lowering::IntegerEpilogue() {
  const std::optional<IntegerSteps> steps = ReadIntegerSteps();
  if (!steps.has_value()) return nullptr;
  return EpilogueOf([&](VectorBuilder& v, Value sum) {
    if (offset_ != 0) sum = v.Subtract(sum, v.Constant(offset_));
    return Rescaled(v, sum, &*steps);
  });
}

Value Lowering::Rescaled(VectorBuilder& v, Value result, const IntegerSteps* steps) {
  auto rescale = [&](Value value, const Factors& by) {
    const std::vector<npu_dim> dims = PerChannel(by.multipliers.size());
    return v.Rescale(value, v.Load(Integers(dims, by.multipliers)),
                     v.Load(Integers(dims, by.shifts)), by.rounding);
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
}

Requantization& ChipRequantization() {
  static Requantization rule;
  return rule;
}

void Lowering::LowerAsElementwise() {
  if (LowerAsLookup()) return;
  const std::optional<IntegerSteps> steps = IsQuantized() ? ReadIntegerSteps() : std::nullopt;
  Elementwise(Output(), [&](VectorBuilder& v) {
    if (!steps.has_value()) return AppendFused(&v, Apply(&v, {}));
    Value data = v.Load(Input(0));
    if (ZeroPoint(0) != 0) data = v.Subtract(data, v.Constant(ZeroPoint(0)));
    return Rescaled(v, data, &*steps);
  });
}

bool Lowering::LowerAsLookup() {
  const Graph& graph = program_->graph();
  const npu_dtype to = OutputDtype();
  if (program_->api().integers == 0 || program_->api().add_lookup == nullptr || IsQuantized() ||
      unit_->epilogue.size() < 2 || AnchorOf(graph, *unit_).op != "relax.dequantize" ||
      graph.nodes[unit_->Last()].op != "relax.quantize") {
    return false;
  }
  auto has_8_bits = [](npu_dtype dtype) { return dtype == NPU_INT8 || dtype == NPU_UINT8; };
  if (!has_8_bits(InputDtype(0)) || !has_8_bits(to)) return false;
  const EntryRef source = unit_->inputs[0];
  const Tensor data = Input(0);
  std::vector<size_t> members = {unit_->anchor};
  for (const auto& fused : unit_->epilogue) members.push_back(fused.first);
  VectorBuilder vector;
  std::map<size_t, Value> known = {{source.node, vector.Load(data)}};
  for (size_t member : members) {
    for (const EntryRef& input : graph.nodes[member].inputs) {
      // Another result of the op that computes the data.
      if (input.node == source.node && input.index != source.index) return false;
      if (known.count(input.node) != 0 ||
          std::find(members.begin(), members.end(), input.node) != members.end()) {
        continue;
      }
      const std::vector<double> numbers = program_->Numbers(input);
      if (numbers.size() != 1) return false;
      known[input.node] = vector.Constant(numbers[0]);
    }
  }
  const Value result = AppendFused(&vector, Apply(&vector, known), known);
  const npu_vector_program program = vector.Finish(result, OpName());
  if (program.input_count != 1) return false;
  const std::vector<uint8_t> table = TableOf(program, data.desc.dtype, to);
  npu_lookup op = {};
  op.data = data.id;
  op.table =
      ConstantOf(to, {FixedDim(static_cast<int64_t>(table.size()))}, table.data(), table.size()).id;
  op.out = Output().id;
  Emit(op);
  return true;
}

// ---- Attributes ----

namespace {

/*! \brief The attribute, or None if it is absent. */
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
  for (size_t i = 0; i < unit_->dequantized.size(); ++i) {
    const auto [least, most] = EndsOf(InputDtype(i));
    const double zero = ZeroPoint(i);
    largest *= std::max(most - zero, zero - least);
  }
  const int bits = HasWideSums() ? 48 : 32;
  if (largest >= std::ldexp(1, bits - 1)) {
    std::ostringstream text;
    text << "sums of " << terms << " products may be larger than the " << bits
         << " bits of the accumulator";
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

#define NPU_EMIT(name, reads)                                            \
  void Lowering::Emit(const npu_##name& op) {                            \
    program_->Add(op, &npu_build_api::add_##name, "add_" #name, Name()); \
  }
NPU_PLAIN_OPERATIONS(NPU_EMIT, )
#undef NPU_EMIT

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
  if (IsQuantized() && kind == NPU_REDUCE_MEAN) {
    op.kind = NPU_REDUCE_SUM;
    double count = 1;
    for (int i = 0; i < data.rank(); ++i) {
      if ((op.axes >> i & 1) != 0) count *= static_cast<double>(FixedSize(data, i));
    }
    AverageOver({count});
    offset_ = count * ZeroPoint(0);  // The sums are of the stored values.
    op.epilogue = Epilogue();
  }
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

}  // namespace npu
