// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "emission.h"
#include "graph.h"
#include "layout.h"
#include "requantization.h"
#include "scales.h"
#include "table.h"
#include "units.h"
#include "updates.h"

namespace npu {

const char* Lowering::OpName() const { return anchor().op.c_str(); }

Tensor Lowering::Input(size_t i) const {
  if (i >= InputCount()) {
    Refuse("has " + std::to_string(InputCount()) + " tensor arguments, but number " +
           std::to_string(i) + " is needed");
  }
  return emission_->Get(unit().inputs[i]);
}

Tensor Lowering::Output(size_t i) {
  const EntryRef entry{unit().Last(), i};
  if (!emission_->Has(entry)) {
    emission_->Set(entry, emission_->NewResult(graph().Info(entry), Name()));
  }
  return emission_->Get(entry);
}

void Lowering::SetOutput(size_t i, const Tensor& tensor) {
  emission_->Set(EntryRef{unit().Last(), i}, tensor);
}

Value Lowering::Apply(VectorBuilder* vector, const std::map<size_t, Value>& known) const {
  Values values;
  for (const EntryRef& input : unit().inputs) {
    auto it = known.find(input.node);
    if (it != known.end()) {
      values.push_back(it->second);
    } else if (auto inlined = units_->inlined.find(input.node); inlined != units_->inlined.end()) {
      const Unit unit(graph(), input.node, inlined->second);
      if (unit.lowering == nullptr) Refuse("a tensor that its epilogue reads has several scales");
      values.push_back(Lowering(&graph(), &unit, units_, emission_).Apply(vector, {}));
    } else {
      values.push_back(vector->Load(emission_->Get(input)));
    }
  }
  const OpLowering& lowering = *unit().lowering;
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
  known[unit().anchor] = value;
  for (const auto& [node, op] : unit().epilogue) {
    const Unit unit(graph(), node, op);
    value = Lowering(&graph(), &unit, units_, emission_).Apply(vector, known);
    known[node] = value;
  }
  return value;
}

const npu_vector_program* Lowering::Epilogue() {
  if (IsQuantized()) {
    const std::optional<IntegerSteps> steps =
        PlacedIntegerSteps(AccumulatorScale(*this, counts_), HasWideSums(*this));
    Tensor factor;
    if (!steps.has_value()) {
      // A tensor even for one number: a program that loads a real number computes in real numbers.
      const std::vector<double> scale = AccumulatorScale(*this, counts_);
      factor = Constant(PerChannel(scale.size()), std::vector<float>(scale.begin(), scale.end()));
    }
    return EpilogueOf([&](VectorBuilder& v, Value sum) {
      if (offset_ != 0) sum = v.Subtract(sum, v.Constant(offset_));
      return steps.has_value() ? Rescaled(v, sum, *steps)
                               : AppendFused(&v, v.Multiply(sum, v.Load(factor)));
    });
  }
  const IntegerWeights* weights = emission_->WeightsOf(unit().anchor);
  if (weights != nullptr && weights->block == 0) {
    return EpilogueOf([&](VectorBuilder& v, Value value) {
      const std::vector<float>& scales = weights->scales;
      const Value factor = scales.size() == 1 ? v.Constant(scales[0])
                                              : v.Load(Constant(PerChannel(scales.size()), scales));
      return AppendFused(&v, v.Multiply(value, factor));
    });
  }
  if (unit().epilogue.empty()) return nullptr;
  return EpilogueOf([this](VectorBuilder& v, Value value) { return AppendFused(&v, value); });
}

const npu_vector_program* Lowering::EpilogueOf(
    const std::function<Value(VectorBuilder&, Value)>& program) {
  VectorBuilder& vector = vectors_.emplace_back();
  const Value result = program(vector, vector.LoadAccumulator());
  return &epilogues_.emplace_back(vector.Finish(result, OpName()));
}

// ---- Quantized ops ----

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
  const int channel = unit().lowering->channel;
  std::vector<npu_dim> dims(channel < 0 ? -channel : rank - channel, FixedDim(1));
  dims[0] = FixedDim(static_cast<int64_t>(count));
  return dims;
}

std::optional<IntegerSteps> Lowering::PlacedIntegerSteps(const std::vector<double>& scale,
                                                         bool wide) {
  std::optional<IntegerSteps> steps =
      ReadIntegerSteps(*this, *units_, scale, wide, emission_->options().requantization);
  if (!steps.has_value()) return steps;
  const std::vector<int64_t>& bias = steps->bias_values;
  if (!bias.empty() && wide) {
    steps->bias = Constant(steps->bias_dims, bias);
  } else if (!bias.empty()) {
    steps->bias = Integers(steps->bias_dims, bias);
  }
  for (IntegerSteps::Addend& addend : steps->addends) addend.tensor = emission_->Get(addend.data);
  return steps;
}

Value Lowering::RescaledBy(VectorBuilder& v, Value value, const Factors& by) {
  const std::vector<npu_dim> dims = PerChannel(by.multipliers.size());
  return v.Rescale(value, v.Load(Integers(dims, by.multipliers)), v.Load(Integers(dims, by.shifts)),
                   by.rounding);
}

Value Lowering::Rescaled(VectorBuilder& v, Value result, const IntegerSteps& steps) {
  if (steps.bias.id >= 0) result = v.Add(result, v.Load(steps.bias));
  result = RescaledBy(v, result, steps.factor);
  for (const IntegerSteps::Addend& addend : steps.addends) {
    Value value = v.Load(addend.tensor);
    if (addend.zero_point != 0) value = v.Subtract(value, v.Constant(addend.zero_point));
    result = v.Add(result, RescaledBy(v, value, addend.factor));
  }
  if (steps.zero_point != 0) result = v.Add(result, v.Constant(steps.zero_point));
  return v.Minimum(v.Maximum(result, v.Constant(steps.least)), v.Constant(steps.most));
}

void Lowering::Lower() {
  emission_->sink().SetLabel(Name());
  if (unit().weights.has_value()) emission_->AddWeights(unit(), Name());
  if (unit().lowering->elementwise != nullptr) {
    LowerAsElementwise();
  } else {
    unit().lowering->lower(*this);
  }
  for (size_t i = 0; i < OutputCount(); ++i) {
    // An unused result need not be computed.
    if (emission_->Has(EntryRef{unit().Last(), i}) || !OutputIsUsed(i)) continue;
    Refuse("its lowering does not write output " + std::to_string(i));
  }
}

void Lowering::LowerAsElementwise() {
  if (LowerAsLookup()) return;
  std::optional<IntegerSteps> steps;
  if (IsQuantized()) steps = PlacedIntegerSteps(AccumulatorScale(*this, {}), HasWideSums(*this));
  Elementwise(Output(), [&](VectorBuilder& v) {
    if (!steps.has_value()) return AppendFused(&v, Apply(&v, {}));
    Value data = v.Load(Input(0));
    if (ZeroPoint(0) != 0) data = v.Subtract(data, v.Constant(ZeroPoint(0)));
    return Rescaled(v, data, *steps);
  });
}

bool Lowering::RescalesElements() const {
  return !ChipRequantization().has_reals && emission_->driver().api.integers != 0 &&
         !emission_->HasScales();
}

void Lowering::RescaledElements(
    const std::function<Value(VectorBuilder&, const Values&)>& combine) {
  const bool is_product = anchor().op == "relax.multiply";
  const Requantization& rule = emission_->options().requantization;
  std::vector<Tensor> tensors = {Input(0), Input(1)};
  int bits = 0;
  for (size_t i = 0; i < tensors.size() && IsQuantized(); ++i) {
    const int own = InputDtype(i) == NPU_INT16 ? 17 : 9;
    bits = is_product ? bits + own : std::max(bits, own);
  }
  std::vector<double> scale;
  std::vector<Factors> factors;
  if (IsQuantized() && is_product) {
    scale = AccumulatorScale(*this, {});
  } else if (IsQuantized()) {
    FinerSteps finer = CommonSteps(*this, rule, bits);
    scale = {finer.scale};
    factors = std::move(finer.factors);
  }
  std::optional<IntegerSteps> steps;
  if (IsQuantized()) steps = PlacedIntegerSteps(scale, bits > 31);
  Elementwise(Output(), [&](VectorBuilder& v) {
    Values values;
    for (size_t i = 0; i < tensors.size(); ++i) {
      Value value = v.Load(tensors[i]);
      if (ZeroPoint(i) != 0) value = v.Subtract(value, v.Constant(ZeroPoint(i)));
      if (steps.has_value() && !factors.empty()) {
        value = RescaledBy(v, value, factors[i]);
      } else if (IsQuantized() && !steps.has_value()) {
        // What follows needs real numbers: the driver decides.
        const Node& dequantize = graph().nodes[unit().dequantized[i]];
        const std::vector<double> step = Numbers(graph().nodes[dequantize.inputs.at(1).node]);
        const std::vector<float> number(step.begin(), step.end());
        value = v.Multiply(value, v.Load(Constant(PerChannel(number.size()), number)));
      }
      values.push_back(value);
    }
    const Value result = combine(v, values);
    return steps.has_value() ? Rescaled(v, result, *steps) : AppendFused(&v, result);
  });
}

bool Lowering::LowerAsLookup() {
  const npu_build_api& api = emission_->driver().api;
  const npu_dtype to = OutputDtype();
  if (api.integers == 0 || api.add_lookup == nullptr || emission_->HasScales() || IsQuantized() ||
      unit().epilogue.size() < 2 || anchor().op != "relax.dequantize" ||
      graph().nodes[unit().Last()].op != "relax.quantize") {
    return false;
  }
  auto has_8_bits = [](npu_dtype dtype) { return dtype == NPU_INT8 || dtype == NPU_UINT8; };
  if (!has_8_bits(InputDtype(0)) || !has_8_bits(to)) return false;
  const EntryRef source = unit().inputs[0];
  const Tensor data = Input(0);
  std::vector<size_t> members = {unit().anchor};
  for (const auto& fused : unit().epilogue) members.push_back(fused.first);
  VectorBuilder vector;
  std::map<size_t, Value> known = {{source.node, vector.Load(data)}};
  for (size_t member : members) {
    for (const EntryRef& input : graph().nodes[member].inputs) {
      // Another result of the op that computes the data.
      if (input.node == source.node && input.index != source.index) return false;
      if (known.count(input.node) != 0 ||
          std::find(members.begin(), members.end(), input.node) != members.end()) {
        continue;
      }
      const std::vector<double> numbers = Numbers(graph().nodes[input.node]);
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

// ---- Driver operations ----

npu_builder* Lowering::Builder() const { return emission_->driver().handle; }

const void* Lowering::ExtensionOrNull(const char* name) const {
  const npu_build_api& api = emission_->driver().api;
  return api.extension == nullptr ? nullptr : api.extension(name);
}

const npu_build_api* Lowering::AskedForWhole() const {
  return emission_->IsComposed(Name()) ? nullptr : &emission_->driver().api;
}

const void* Lowering::FindExtension(const char* name) const {
  const void* found = ExtensionOrNull(name);
  if (found == nullptr) {
    Refuse("the driver " + std::string(emission_->driver().api.name) + " has no extension " + name);
  }
  return found;
}

npu_tensor Lowering::AtDriver(const Tensor& tensor) const {
  return emission_->sink().AtDriver(tensor.id, std::nullopt);
}

npu_tensor Lowering::AtDriver(const Tensor& tensor, const Tensor& like) const {
  return emission_->sink().AtDriver(tensor.id, like.id);
}

void Lowering::Check(npu_status status) const { emission_->driver().Check(status, Name()); }

void Lowering::NameEpilogue(const npu_vector_program* epilogue, npu_tensor out, int channel) {
  if (epilogue == nullptr) return;
  auto vector = std::find_if(vectors_.begin(), vectors_.end(), [&](const VectorBuilder& known) {
    return known.steps_.data() == epilogue->steps;
  });
  if (vector == vectors_.end()) return;
  const npu_tensor_desc to = emission_->DescOf(out);
  if (channel < 0) channel += to.rank;
  auto same = [](const npu_dim& a, const npu_dim& b) {
    return a.size == b.size && a.symbol == b.symbol;
  };
  for (npu_step& step : vector->steps_) {
    bool adds = step.kind == NPU_STEP_ADD;
    if (!adds && step.kind != NPU_STEP_MULTIPLY) continue;
    if (step.operands[1].kind != NPU_OPERAND_TENSOR || !VectorBuilder::IsComputed(step.operands[0]))
      continue;
    const npu_tensor_desc from = emission_->DescOf(step.operands[1].index);
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

double Lowering::MostElements(const npu_tensor_desc& desc, int first, int last) const {
  double count = 1;
  for (int i = first; i < last; ++i) {
    const npu_dim& dim = desc.dims[i];
    count *= static_cast<double>(dim.size);
    if (dim.symbol < 0) continue;
    const std::string& name = graph().symbols[static_cast<size_t>(dim.symbol)];
    count *= static_cast<double>(emission_->options().symbol_bounds.at(name));
  }
  return count;
}

Tensor Lowering::Integers(const std::vector<npu_dim>& dims, const std::vector<int64_t>& values) {
  const std::vector<int32_t> narrow(values.begin(), values.end());
  return ConstantOf(NPU_INT32, dims, narrow.data(), narrow.size() * sizeof(int32_t));
}

Tensor Lowering::Temporary(npu_dtype dtype, const std::vector<npu_dim>& dims) {
  return emission_->NewTensor(DescOf(dtype, dims), Name());
}

Tensor Lowering::View(const Tensor& tensor, const std::vector<npu_dim>& dims) {
  return emission_->NewView(tensor, DescOf(tensor.desc.dtype, dims), Name());
}

Tensor Lowering::ConstantOf(npu_dtype dtype, const std::vector<npu_dim>& dims, const void* data,
                            size_t bytes) {
  return emission_->NewConstant(DescOf(dtype, dims), data, bytes, Name());
}

void Lowering::Emit(const npu_matmul& op) {
  npu_matmul known = op;
  if (IsQuantized()) {
    known.a_zero_point = ZeroPoint(0);
    known.b_zero_point = ZeroPoint(1);
  }
  if (IsQuantized() || ReadsScales()) {
    const npu_tensor_desc a = emission_->DescOf(op.a);
    const int summed = op.transpose_a != 0 ? a.rank - 2 : a.rank - 1;
    RequireSumsFit(*this, MostElements(a, summed, summed + 1));
  }
  if (const IntegerWeights* weights = emission_->WeightsOf(unit().anchor)) {
    known.b_zero_point = weights->zero_point;
    known.b_bits = weights->bits;
    known.b_block = static_cast<int32_t>(weights->block);
    known.b_zero_points = -1;
    if (weights->block != 0) {
      const npu_tensor_desc b = emission_->DescOf(op.b);
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
  emission_->Add(known, Name());
}

void Lowering::Emit(const npu_convolution& op) {
  npu_convolution known = op;
  if (IsQuantized()) {
    known.data_zero_point = ZeroPoint(0);
    known.weight_zero_point = ZeroPoint(1);
  }
  if (IsQuantized() || ReadsScales()) {
    const npu_tensor_desc weight = emission_->DescOf(op.weight);
    RequireSumsFit(*this, MostElements(weight, 1, weight.rank));
  }
  NameEpilogue(op.epilogue, op.out, 1);
  emission_->Add(known, Name());
}

void Lowering::Emit(const npu_pool& op) { emission_->Add(op, Name()); }
void Lowering::Emit(const npu_reduce& op) { emission_->Add(op, Name()); }
void Lowering::Emit(const npu_copy& op) { emission_->Add(op, Name()); }
void Lowering::Emit(const npu_gather& op) { emission_->Add(op, Name()); }
#define NPU_EMIT(name, reads) \
  void Lowering::Emit(const npu_##name& op) { emission_->Add(op, Name()); }
NPU_PLAIN_OPERATIONS(NPU_EMIT, )
#undef NPU_EMIT
void Lowering::Emit(const npu_concat& op) { emission_->Add(op, Name()); }
void Lowering::Emit(const npu_softmax& op) { emission_->Add(op, Name()); }
void Lowering::Emit(const npu_resize& op) { emission_->Add(op, Name()); }
void Lowering::Emit(const npu_update& op) { emission_->Add(op, Name()); }

void Lowering::Emit(const npu_transposed_convolution& op) {
  if (ReadsScales()) {
    const npu_tensor_desc weight = emission_->DescOf(op.weight);
    const double channels = MostElements(weight, 0, 1) / static_cast<double>(op.groups);
    RequireSumsFit(*this, channels * MostElements(weight, 2, weight.rank));
  }
  NameEpilogue(op.epilogue, op.out, 1);
  emission_->Add(op, Name());
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
  emission_->Add(op, Name());
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

// ---- A whole graph ----

namespace {

/*! \brief Only for lowerings of vendors. */
thread_local Requantization rule_of_graph;

}  // namespace

const Requantization& ChipRequantization() { return rule_of_graph; }

void CheckDriverOptions(const LoweringOptions& options) {
  const Graph nothing;
  const Emission emission(nothing, options);
  const Registry registry(nothing, nullptr);
}

std::string IdentityOf(const LoweringOptions& options) {
  const Graph nothing;
  const Emission emission(nothing, options);
  const DriverBuilder& driver = emission.driver();
  const char* text = nullptr;
  if (driver.api.identity != nullptr) {
    driver.Check(driver.api.identity(driver.handle, &text), "the driver's identity");
  }
  return text == nullptr ? "" : text;
}

namespace {

/*! \brief Lowers a graph on a builder; the calls `composed` are not asked for as whole operations.
 */
LoweredProgram LowerOnce(const Graph& given, const LoweringOptions& options, LoweringGoal goal,
                         const DeclinedCalls& composed) {
  std::optional<Graph> updated;
  if (BuildDriver(options.role).add_update != nullptr) {
    updated = WithUpdates(
        given, [&](const Node& node) { return composed.count(DescribeNode(node)) == 0; });
  }
  const Graph& graph = updated.has_value() ? *updated : given;
  Emission emission(graph, options, composed);
  Units units;
  // Predicates may ask the driver.
  const Registry registry(graph, [&](const OpLowering& entry, size_t node) {
    const Unit unit(graph, node, &entry);
    const Lowering call(&graph, &unit, &units, &emission);
    if (!entry.extension.empty() && !call.HasExtension(entry.extension.c_str())) return false;
    return entry.when == nullptr || entry.when(call);
  });
  emission.AddSymbolsAndInputs();
  units = FormUnits(graph, registry);
  for (const Unit& unit : units.list) Lowering(&graph, &unit, &units, &emission).Lower();
  return emission.Finish(goal);
}

/*! \brief Lowers a graph. What the driver declines as a whole operation is composed of others: a
 *  builder that has declined something is of no use, so all of it begins again. */
LoweredProgram LowerComposing(const Graph& graph, const LoweringOptions& options,
                              LoweringGoal goal) {
  DeclinedCalls composed;
  while (true) {
    try {
      return LowerOnce(graph, options, goal, composed);
    } catch (const WholeDeclined& declined) {
      if (!composed.emplace(declined.label, declined.reason).second) throw;
    } catch (const Refusal& refusal) {
      const std::string why = refusal.what();
      for (const auto& [label, reason] : composed) {
        const bool is_other = why != std::string(label).append(": ").append(reason);
        if (why.rfind(label, 0) != 0 || !is_other) continue;
        throw Refusal(std::string(why).append(" (as one operation: ").append(reason).append(")"));
      }
      throw;
    }
  }
}

}  // namespace

LoweredProgram LowerGraph(const Graph& graph, const LoweringOptions& options, LoweringGoal goal) {
  rule_of_graph = options.requantization;
  if (BuildDriver(options.role).set_quantization == nullptr) {
    return LowerComposing(graph, options, goal);
  }
  const auto scaled = std::make_shared<const Graph>(WithScales(graph));
  LoweredProgram program = LowerComposing(*scaled, options, goal);
  program.graph = scaled;
  return program;
}

}  // namespace npu
