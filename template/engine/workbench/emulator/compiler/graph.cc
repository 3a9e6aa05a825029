// SPDX-License-Identifier: Apache-2.0
/*!
 * \file graph.cc
 * \brief The rules of a graph as a whole.
 */
#include "graph.h"

#include <algorithm>
#include <utility>

namespace npu::emulator {
namespace {

/*! \brief The number of elements, with every symbol taken as 1. */
int64_t Elements(const Desc& desc) {
  int64_t elements = 1;
  for (int32_t i = 0; i < desc.rank; ++i) elements *= desc.dims[i].size;
  return elements;
}

/*! \brief The symbols of a shape, sorted. */
std::vector<int32_t> SymbolsOf(const Desc& desc) {
  std::vector<int32_t> symbols;
  for (int32_t i = 0; i < desc.rank; ++i) {
    if (desc.dims[i].symbol >= 0) symbols.push_back(desc.dims[i].symbol);
  }
  std::sort(symbols.begin(), symbols.end());
  return symbols;
}

}  // namespace

std::string Graph::Where() const { return Join(operation_, " (command ", operations_.size(), ")"); }

std::string Graph::Describe(npu_tensor tensor) const {
  return Join("tensor ", tensor, " (", ToString(values_[tensor].desc, symbols_), ")");
}

Desc Graph::ToDesc(const npu_tensor_desc& given) const {
  Desc desc;
  desc.dtype = given.dtype;
  desc.rank = given.rank;
  for (int32_t i = 0; i < std::min<int32_t>(desc.rank, NPU_MAX_RANK); ++i) {
    desc.dims[i].size = given.dims[i].size;
    desc.dims[i].symbol = given.dims[i].symbol;
    // Until CheckDesc has passed, neither the symbol nor the product can be trusted.
    if (desc.dims[i].symbol >= 0 && desc.dims[i].symbol < static_cast<int32_t>(symbols_.size())) {
      int64_t bound = symbols_[desc.dims[i].symbol].bound;
      if (desc.dims[i].size > 0 && desc.dims[i].size <= kMaxElements / bound) {
        desc.dims[i].limit = desc.dims[i].size * bound;
      }
    }
  }
  CheckDesc(desc, symbols_);
  return desc;
}

npu_tensor Graph::Append(const Value& value) {
  values_.push_back(value);
  progress_.emplace_back();
  progress_.back().complete = value.source == Source::kInput || value.source == Source::kConstant;
  return static_cast<npu_tensor>(values_.size() - 1);
}

int32_t Graph::AddSymbol(const std::string& name, int64_t bound) {
  if (bound < 1 || bound > kMaxElements) {
    Invalid("The bound of symbol ", name, " is ", bound, "; it must be 1 to ", kMaxElements, ".");
  }
  symbols_.push_back({name, bound});
  return static_cast<int32_t>(symbols_.size() - 1);
}

npu_tensor Graph::AddInput(const npu_tensor_desc& given) {
  Desc desc = ToDesc(given);
  auto id = static_cast<npu_tensor>(values_.size());
  inputs_.push_back(id);
  return Append({desc, Source::kInput, static_cast<int32_t>(inputs_.size() - 1), id});
}

npu_tensor Graph::AddConstant(const npu_tensor_desc& given, const void* data, size_t bytes) {
  Desc desc = ToDesc(given);
  if (!SymbolsOf(desc).empty()) {
    Invalid("Constant tensor ", values_.size(), " has a symbolic shape.");
  }
  auto needed = static_cast<size_t>(MostBytes(desc));
  if (bytes != needed) {
    Invalid("Constant tensor ", values_.size(), " (", ToString(desc, symbols_), ") needs ", needed,
            " bytes of data, but ", bytes, " are given.");
  }
  auto id = static_cast<npu_tensor>(values_.size());
  constants_.push_back(static_cast<const uint8_t*>(data));
  return Append({desc, Source::kConstant, static_cast<int32_t>(constants_.size() - 1), id});
}

npu_tensor Graph::AddResult(const npu_tensor_desc& given) {
  return Append({ToDesc(given), Source::kResult, -1, static_cast<npu_tensor>(values_.size())});
}

npu_tensor Graph::AddView(npu_tensor data, const npu_tensor_desc& given) {
  Desc desc = ToDesc(given);
  if (data < 0 || data >= static_cast<npu_tensor>(values_.size())) {
    Invalid("A view refers to tensor ", data, ", but there are ", values_.size(), " tensors.");
  }
  const Value& shown = values_[data];
  const std::vector<int32_t> symbols = SymbolsOf(desc), known = SymbolsOf(shown.desc);
  const bool is_symbolic = !symbols.empty() || !known.empty();
  if (desc.dtype != shown.desc.dtype || Elements(desc) != Elements(shown.desc) ||
      symbols != known) {
    const std::string what = Join("A view of ", Describe(data), " as ", ToString(desc, symbols_),
                                  " does not have the same elements");
    if (is_symbolic && desc.dtype == shown.desc.dtype) Declined(what, " for all sizes.");
    Invalid(what, ".");
  }
  return Append({desc, Source::kView, -1, shown.base});
}

void Graph::SetLabel(const std::string& label) {
  if (labels_.back() != label) labels_.push_back(label);
}

const Value& Graph::Get(npu_tensor tensor, const char* role) const {
  if (tensor < 0 || tensor >= static_cast<npu_tensor>(values_.size())) {
    Invalid("The ", role, " of ", Where(), " is tensor ", tensor, ", but there are ",
            values_.size(), " tensors.");
  }
  return values_[tensor];
}

const Desc& Graph::Read(npu_tensor tensor, const char* role, bool) {
  const Value& read = Get(tensor, role);
  Progress& progress = progress_[read.base];
  if (!progress.complete) {
    Invalid("The ", role, " of ", Where(), ", ", Describe(tensor), ", is read before ",
            progress.boxes.empty() ? "it is written." : "all of it is written.");
  }
  progress.read = true;
  return read.desc;
}

const Desc& Graph::Write(npu_tensor tensor) {
  const Value& written = Get(tensor, "output");
  if (written.source != Source::kResult) {
    static const char* const kinds[] = {"an input", "a constant", "", "a view"};
    Invalid("The output of ", Where(), ", ", Describe(tensor), ", is ",
            kinds[static_cast<int>(written.source)],
            "; only tensors of add_tensor can be written.");
  }
  if (progress_[tensor].complete || !progress_[tensor].boxes.empty()) {
    Invalid("The output of ", Where(), ", ", Describe(tensor), ", is written twice.");
  }
  return written.desc;
}

void Graph::Add(Operation operation) {
  operation_ = NameOf(operation);
  operation.label = static_cast<int32_t>(labels_.size() - 1);
  std::visit(
      [this](const auto& op) {
        if constexpr (std::is_same_v<decltype(op), const npu_copy&>) {
          CheckCopy(op);
        } else {
          Check(op);
        }
      },
      operation.op);
  // The machine mixes them for intermediates that it stores as float16; a model has no reason to.
  npu_tensor left = -1;
  npu_tensor right = -1;
  if (auto* matmul = std::get_if<npu_matmul>(&operation.op)) {
    const bool weights = IsInteger(values_[matmul->b].desc.dtype);
    left = weights ? -1 : matmul->a;
    right = matmul->b;
  } else if (auto* convolution = std::get_if<npu_convolution>(&operation.op)) {
    left = convolution->data;
    right = convolution->weight;
  } else if (auto* pool = std::get_if<npu_pool>(&operation.op)) {
    left = pool->data;
    right = pool->out;
  }
  if (left >= 0 && !IsInteger(values_[left].desc.dtype) &&
      values_[left].desc.dtype != values_[right].desc.dtype) {
    Declined("Both ", Describe(left), " and ", Describe(right), " of ", Where(),
             " must be float32, or both float16.");
  }
  npu_tensor out = OutputOf(operation);
  std::visit(
      [&](const auto& op) {
        CheckVector(op, operation.instructions, operation.inputs, values_[out].desc);
      },
      operation.op);
  // Copies track their own writes.
  if (!std::holds_alternative<npu_copy>(operation.op)) progress_[out].complete = true;
  operations_.push_back(std::move(operation));
}

void Graph::CheckStep(int64_t offset, int64_t step, int64_t least, int64_t size, npu_tensor tensor,
                      int32_t dimension) const {
  if (offset < 0 || offset >= size) {
    Invalid("The box of ", Where(), " begins at ", offset, " in dimension ", dimension, " of ",
            Describe(tensor), ", which is outside of it.");
  }
  if (step < least || step > kMaxElements || step == 0) {
    Invalid("The step of ", Where(), " in dimension ", dimension, " of ", Describe(tensor), " is ",
            step, "; it must ", least > 0 ? "be 1 or more." : "not be 0, nor so large.");
  }
}

void Graph::CheckCopy(const npu_copy& op) {
  const Desc data = Read(op.data, "data", false);
  Get(op.out, "output");
  // Further copies may add to what copies wrote, until the tensor is complete.
  bool first = progress_[op.out].boxes.empty();
  const Desc out = first ? Write(op.out) : values_[op.out].desc;
  Progress& progress = progress_[op.out];
  if (!first && (op.fill != 0 || (progress.complete && !progress.filled) || progress.read)) {
    Invalid("The output of ", Where(), ", ", Describe(op.out), ", is written twice.");
  }
  if (data.rank != out.rank || data.dtype != out.dtype) {
    Invalid("The data of ", Where(), ", ", Describe(op.data), ", and its output, ",
            Describe(op.out), ", must have the same rank and element type.");
  }
  bool alone = false;
  for (int32_t d = 0; d < out.rank; ++d) {
    if (op.out_step[d] == 1) continue;
    // Elements between the steps are not in the box.
    if (op.fill == 0) Invalid("With an out_step other than 1, ", Where(), " must fill.");
    alone = true;
  }
  Box box = {};
  int64_t elements = 1;
  uint32_t seen = 0;
  for (int32_t d = 0; d < out.rank; ++d) {
    int32_t from = op.permutation[d];
    if (from < 0 || from >= out.rank || (seen >> from & 1) != 0) {
      Invalid("The permutation of ", Where(), " does not name every dimension once.");
    }
    seen |= 1u << from;
    const Dim& size = data.dims[from];
    bool fixed = size.symbol < 0 && out.dims[d].symbol < 0;
    bool whole = size == out.dims[d] && op.data_offset[from] == 0 && op.data_step[from] == 1 &&
                 op.out_offset[d] == 0 && op.out_step[d] == 1;
    if (!fixed && !whole) {
      Invalid("The box of ", Where(), ", ", Describe(op.data), ", is not all of dimension ", d,
              " of its output, ", Describe(op.out),
              "; symbolic dimensions must be equal, and copied as they are.");
    }
    CheckStep(op.data_offset[from], op.data_step[from], -kMaxElements, size.size, op.data, from);
    CheckStep(op.out_offset[d], op.out_step[d], 1, out.dims[d].size, op.out, d);
    int64_t extent = std::min(StepsIn(size.size, op.data_offset[from], op.data_step[from]),
                              StepsIn(out.dims[d].size, op.out_offset[d], op.out_step[d]));
    box.begin[d] = op.out_offset[d];
    box.end[d] = op.out_offset[d] + extent;
    elements *= extent;
  }
  for (const Box& other : progress.boxes) {
    bool apart = false;
    for (int32_t d = 0; d < out.rank; ++d) {
      apart = apart || box.begin[d] >= other.end[d] || other.begin[d] >= box.end[d];
    }
    if (!apart) {
      Invalid("The box of ", Where(), " overlaps with one that was copied to ", Describe(op.out),
              " before.");
    }
  }
  progress.boxes.push_back(box);
  progress.elements += elements;
  progress.filled = progress.filled || (op.fill != 0 && !alone);
  // Boxes do not overlap, so the count tells whether they cover the tensor.
  progress.complete = op.fill != 0 || progress.filled || progress.elements == Elements(out);
}

void Graph::MarkOutput(npu_tensor tensor) {
  if (tensor < 0 || tensor >= static_cast<npu_tensor>(values_.size())) {
    Invalid("Tensor ", tensor, " cannot be an output: there are ", values_.size(), " tensors.");
  }
  outputs_.push_back(tensor);
}

bool Graph::AddState(npu_tensor input, npu_tensor output) {
  const auto at = std::find(inputs_.begin(), inputs_.end(), input);
  const auto to = std::find(outputs_.begin(), outputs_.end(), output);
  if (at == inputs_.end() || to == outputs_.end()) {
    Invalid("A state has tensor ", input, " as input and tensor ", output,
            " as output, but these are not marked as such.");
  }
  // Only its update reads the input, also through views.
  bool is_updated = false;
  int64_t reads = 0;
  for (const Operation& operation : operations_) {
    ForEachRead(operation, [&](npu_tensor read) { reads += values_[read].base == input; });
    auto* update = std::get_if<npu_update>(&operation.op);
    if (update != nullptr && update->out == output) is_updated = update->data == input;
  }
  for (npu_tensor other : outputs_) reads += values_[other].base == input;
  if (!is_updated || reads != 1 || IsState(output)) return false;
  states_.push_back(
      {static_cast<uint32_t>(at - inputs_.begin()), static_cast<uint32_t>(to - outputs_.begin())});
  return true;
}

void Graph::FoldCopies() {
  // One pass in graph order checks that every tensor was fully written before it is read.
  std::vector<bool> computed(values_.size());
  for (const Operation& operation : operations_) {
    auto* copy = std::get_if<npu_copy>(&operation.op);
    npu_tensor base = copy == nullptr ? -1 : values_[copy->data].base;
    bool constant = copy != nullptr && !computed[base] && values_[base].source != Source::kInput;
    if (!constant) computed[OutputOf(operation)] = true;
  }
  std::vector<Operation> kept;
  for (Operation& operation : operations_) {
    npu_tensor output = OutputOf(operation);
    if (computed[output]) {
      kept.push_back(std::move(operation));
      continue;
    }
    const auto& op = std::get<npu_copy>(operation.op);
    Value& out = values_[output];
    if (out.source != Source::kConstant) {
      folded_.emplace_back(static_cast<size_t>(MostBytes(out.desc)));
      out.source = Source::kConstant;
      out.index = static_cast<int32_t>(constants_.size());
      constants_.push_back(folded_.back().data());
    }
    CopyArgs args;
    args.data = Resolve(values_[op.data].desc, nullptr);
    args.data.data = const_cast<uint8_t*>(constants_[values_[values_[op.data].base].index]);
    args.out = Resolve(out.desc, nullptr);
    args.out.data = const_cast<uint8_t*>(constants_[out.index]);
    int32_t rank = out.desc.rank;
    std::copy_n(op.permutation, rank, args.permutation);
    std::copy_n(op.data_offset, rank, args.data_offset);
    std::copy_n(op.data_step, rank, args.data_step);
    std::copy_n(op.out_offset, rank, args.out_offset);
    std::copy_n(op.out_step, rank, args.out_step);
    args.fill = op.fill != 0;
    args.fill_value = op.fill_value;
    Execute(args, KernelContext());
  }
  operations_ = std::move(kept);
}

void Graph::Finish() const {
  if (outputs_.empty()) Invalid("The program has no outputs.");
  for (npu_tensor output : outputs_) {
    if (!progress_[values_[output].base].complete) {
      Invalid("The output ", Describe(output), " is never written in full.");
    }
  }
  std::vector<bool> known(symbols_.size());
  for (npu_tensor input : inputs_) {
    for (int32_t symbol : SymbolsOf(values_[input].desc)) known[symbol] = true;
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    for (int32_t symbol : SymbolsOf(values_[i].desc)) {
      if (!known[symbol]) {
        Invalid("The shape of ", Describe(static_cast<npu_tensor>(i)), " depends on symbol ",
                symbols_[symbol].name, ", which is in no input's shape.");
      }
    }
  }
}

}  // namespace npu::emulator
