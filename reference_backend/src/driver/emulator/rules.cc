// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file rules.cc
 * \brief The rules that programs obey.
 */
#include <algorithm>
#include <cstring>
#include <utility>

#include "program.h"

namespace tvm_example_npu::emulator {
namespace {

/*! \brief Strides, pads and the like stay below this, so that no product of sizes overflows. */
constexpr int64_t kMaxParameter = int64_t{1} << 30;
constexpr int32_t kMaxInstructions = 256;
constexpr int32_t kMaxThreads = 64;

/*! \brief Number of operands of each vector opcode. */
constexpr int32_t kOperands[] = {0, 0, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3};
static_assert(sizeof(kOperands) / sizeof(kOperands[0]) == NPU_VECTOR_OPCODE_COUNT, "");

/*! \brief The number behind an enumerator that came from C, where it may be any. */
template <typename Enum>
int32_t Number(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int32_t), "the C API has 32-bit enumerations");
  int32_t number;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

bool Same(const npu_dim& a, const npu_dim& b) { return a.size == b.size && a.symbol == b.symbol; }

bool Fixed(const npu_dim& dim) { return dim.symbol < 0; }

bool One(const npu_dim& dim) { return Fixed(dim) && dim.size == 1; }

bool Same(const npu_tensor_desc& desc, const std::vector<npu_dim>& dims) {
  return desc.rank == static_cast<int32_t>(dims.size()) &&
         std::equal(dims.begin(), dims.end(), desc.dims,
                    [](const npu_dim& a, const npu_dim& b) { return Same(a, b); });
}

/*! \brief The number of elements, with every symbol taken as 1. */
int64_t Elements(const npu_tensor_desc& desc) {
  int64_t elements = 1;
  for (int32_t i = 0; i < desc.rank; ++i) elements *= desc.dims[i].size;
  return elements;
}

/*! \brief The symbols of a shape, sorted. */
std::vector<int32_t> Symbols(const npu_tensor_desc& desc) {
  std::vector<int32_t> symbols;
  for (int32_t i = 0; i < desc.rank; ++i) {
    if (!Fixed(desc.dims[i])) symbols.push_back(desc.dims[i].symbol);
  }
  std::sort(symbols.begin(), symbols.end());
  return symbols;
}

bool IsFloat(npu_dtype dtype) { return dtype == NPU_FLOAT32 || dtype == NPU_FLOAT16; }

const char* Name(npu_dtype dtype) {
  static const char* const names[] = {"float32", "float16", "int8", "uint8",
                                      "int32",   "int64",   "bool"};
  return names[dtype];
}

std::string ToString(const npu_dim* dims, int32_t rank, const std::vector<std::string>& symbols) {
  std::ostringstream out;
  out << "[";
  for (int32_t i = 0; i < rank; ++i) {
    if (i > 0) out << ", ";
    if (Fixed(dims[i])) {
      out << dims[i].size;
    } else {
      if (dims[i].size != 1) out << dims[i].size << "*";
      out << symbols[dims[i].symbol];
    }
  }
  out << "]";
  return out.str();
}

}  // namespace

std::string ToString(const npu_tensor_desc& desc, const std::vector<std::string>& symbols) {
  return Join(Name(desc.dtype), " ", ToString(desc.dims, desc.rank, symbols));
}

npu_tensor Output(const Command& command) {
  return std::visit([](const auto& op) { return op.out; }, command.op);
}

npu_tensor MatrixWeight(const Command& command) {
  if (auto* matmul = std::get_if<npu_matmul>(&command.op)) return matmul->b;
  if (auto* convolution = std::get_if<npu_convolution>(&command.op)) return convolution->weight;
  return -1;
}

TensorView Resolve(const npu_tensor_desc& desc, const int64_t* symbols) {
  TensorView view;
  view.dtype = desc.dtype;
  view.rank = desc.rank;
  for (int32_t i = 0; i < desc.rank; ++i) {
    bool known = Fixed(desc.dims[i]) || symbols == nullptr;
    view.dims[i] = desc.dims[i].size * (known ? 1 : symbols[desc.dims[i].symbol]);
  }
  return view;
}

std::string Program::Where() const { return Join(operation_, " (command ", commands_.size(), ")"); }

std::string Program::Describe(npu_tensor tensor) const {
  return Join("tensor ", tensor, " (", ToString(tensors_[tensor].desc, symbols_), ")");
}

void Program::CheckDesc(const npu_tensor_desc& desc) const {
  int32_t dtype = Number(desc.dtype);
  if (dtype < 0 || dtype > NPU_BOOL) {
    Invalid("Tensor ", tensors_.size(), " has element type ", dtype, ", which does not exist.");
  }
  if (desc.rank < 0) Invalid("Tensor ", tensors_.size(), " has the rank ", desc.rank, ".");
  if (desc.rank > NPU_MAX_RANK) {
    Declined("Tensor ", tensors_.size(), " has ", desc.rank, " dimensions; at most ", NPU_MAX_RANK,
             " are supported.");
  }
  int64_t elements = 1;
  for (int32_t i = 0; i < desc.rank; ++i) {
    const npu_dim& dim = desc.dims[i];
    if (dim.symbol < -1 || dim.symbol >= static_cast<int32_t>(symbols_.size())) {
      Invalid("Dimension ", i, " of tensor ", tensors_.size(), " names symbol ", dim.symbol,
              ", but there are ", symbols_.size(), " symbols.");
    }
    if (dim.size < 0) {
      Invalid("Dimension ", i, " of tensor ", tensors_.size(), " has the size ", dim.size, ".");
    }
    if (dim.size == 0) {
      Declined("Dimension ", i, " of tensor ", tensors_.size(),
               " is 0; tensors without elements are not supported.");
    }
    if (dim.size > kMaxElements / elements) {
      Declined("Tensor ", tensors_.size(), " has more than ", kMaxElements,
               " elements, which is more than is supported.");
    }
    elements *= dim.size;
  }
}

npu_tensor Program::Append(const Tensor& tensor) {
  tensors_.push_back(tensor);
  progress_.emplace_back();
  progress_.back().complete = tensor.kind == TensorKind::kInput ||  //
                              tensor.kind == TensorKind::kConstant;
  return static_cast<npu_tensor>(tensors_.size() - 1);
}

void Program::SetThreads(int64_t threads) {
  if (threads < 1 || threads > kMaxThreads) {
    Invalid("Option threads is ", threads, "; it must be 1 to ", kMaxThreads, ".");
  }
  threads_ = static_cast<int32_t>(threads);
}

int32_t Program::AddSymbol(const std::string& name) {
  symbols_.push_back(name);
  return static_cast<int32_t>(symbols_.size() - 1);
}

npu_tensor Program::AddInput(const npu_tensor_desc& desc) {
  CheckDesc(desc);
  auto id = static_cast<npu_tensor>(tensors_.size());
  inputs_.push_back(id);
  return Append({desc, TensorKind::kInput, static_cast<int32_t>(inputs_.size() - 1), id});
}

npu_tensor Program::AddConstant(const npu_tensor_desc& desc, const Constant& constant) {
  CheckDesc(desc);
  if (!Symbols(desc).empty()) {
    Invalid("Constant tensor ", tensors_.size(), " has a symbolic shape.");
  }
  size_t bytes = static_cast<size_t>(Elements(desc)) * ElementSize(desc.dtype);
  if (constant.storage == Storage::kPlain && constant.bytes != bytes) {
    Invalid("Constant tensor ", tensors_.size(), " (", ToString(desc, symbols_), ") needs ", bytes,
            " bytes of data, but ", constant.bytes, " are given.");
  }
  auto id = static_cast<npu_tensor>(tensors_.size());
  constants_.push_back(constant);
  return Append({desc, TensorKind::kConstant, static_cast<int32_t>(constants_.size() - 1), id});
}

npu_tensor Program::AddResult(const npu_tensor_desc& desc) {
  CheckDesc(desc);
  return Append({desc, TensorKind::kResult, -1, static_cast<npu_tensor>(tensors_.size())});
}

npu_tensor Program::AddView(npu_tensor data, const npu_tensor_desc& desc) {
  CheckDesc(desc);
  if (data < 0 || data >= static_cast<npu_tensor>(tensors_.size())) {
    Invalid("A view is to show tensor ", data, ", but there are ", tensors_.size(), " tensors.");
  }
  const Tensor& shown = tensors_[data];
  if (desc.dtype != shown.desc.dtype || Elements(desc) != Elements(shown.desc) ||
      Symbols(desc) != Symbols(shown.desc)) {
    Invalid("A view of ", Describe(data), " as ", ToString(desc, symbols_),
            " does not have the same elements.");
  }
  return Append({desc, TensorKind::kView, -1, shown.base});
}

const Tensor& Program::Get(npu_tensor tensor, const char* role) const {
  if (tensor < 0 || tensor >= static_cast<npu_tensor>(tensors_.size())) {
    Invalid("The ", role, " of ", Where(), " is tensor ", tensor, ", but there are ",
            tensors_.size(), " tensors.");
  }
  return tensors_[tensor];
}

const npu_tensor_desc& Program::Read(npu_tensor tensor, const char* role, bool may_be_packed) {
  const Tensor& read = Get(tensor, role);
  const Tensor& base = tensors_[read.base];
  Progress& progress = progress_[read.base];
  if (!progress.complete) {
    Invalid("The ", role, " of ", Where(), ", ", Describe(tensor), ", is read before ",
            progress.boxes.empty() ? "it is written." : "all of it is written.");
  }
  if (base.kind == TensorKind::kConstant) {
    Storage storage = constants_[base.index].storage;
    if (storage == Storage::kAbsent || (storage == Storage::kPacked && !may_be_packed)) {
      Invalid("The ", role, " of ", Where(), ", ", Describe(tensor), ", has no plain data.");
    }
  }
  progress.read = true;
  ++progress.uses;
  return read.desc;
}

const npu_tensor_desc& Program::Write(npu_tensor tensor) {
  const Tensor& written = Get(tensor, "output");
  if (written.kind != TensorKind::kResult) {
    static const char* const kinds[] = {"an input", "a constant", "", "a view"};
    Invalid("The output of ", Where(), ", ", Describe(tensor), ", is ",
            kinds[static_cast<int>(written.kind)], "; only tensors of add_tensor can be written.");
  }
  if (progress_[tensor].complete || !progress_[tensor].boxes.empty()) {
    Invalid("The output of ", Where(), ", ", Describe(tensor), ", is written twice.");
  }
  return written.desc;
}

void Program::CheckPacked(const Command& command) const {
  npu_tensor weight = MatrixWeight(command);
  if (weight < 0 || tensors_[tensors_[weight].base].kind != TensorKind::kConstant) return;
  const Constant& constant = constants_[tensors_[tensors_[weight].base].index];
  if (constant.storage != Storage::kPacked) return;
  size_t bytes = PackedBytes(*this, command);
  if (constant.bytes != bytes) {
    Invalid("The packed weight of ", Where(), ", ", Describe(weight), ", has ", constant.bytes,
            " bytes instead of ", bytes, ".");
  }
}

void Program::CheckVector(const Command& command, const npu_tensor_desc& out, bool epilogue) {
  const auto& inputs = command.inputs;
  for (size_t i = epilogue ? 1 : 0; i < inputs.size(); ++i) {
    const npu_tensor_desc& in = Read(inputs[i], epilogue ? "epilogue input" : "input");
    bool fits = in.rank <= out.rank;
    for (int32_t d = 0; fits && d < in.rank; ++d) {
      fits = One(in.dims[d]) || Same(in.dims[d], out.dims[out.rank - in.rank + d]);
    }
    if (!fits) {
      Invalid("Input ", i, " of ", Where(), ", ", Describe(inputs[i]),
              ", does not broadcast to the output's shape ", ToString(out.dims, out.rank, symbols_),
              ".");
    }
  }
  auto count = static_cast<int32_t>(command.instructions.size());
  for (int32_t i = 0; i < count; ++i) {
    const npu_vector_instruction& instruction = command.instructions[i];
    int32_t opcode = Number(instruction.opcode);
    if (opcode < 0 || opcode >= NPU_VECTOR_OPCODE_COUNT) {
      Invalid("Instruction ", i, " of ", Where(), " has opcode ", opcode,
              ", which does not exist.");
    }
    if (opcode == NPU_VECTOR_LOAD) {
      int32_t loadable = std::max<int32_t>(static_cast<int32_t>(inputs.size()), epilogue ? 1 : 0);
      if (instruction.a < 0 || instruction.a >= loadable) {
        Invalid("Instruction ", i, " of ", Where(), " loads input ", instruction.a,
                ", but there are ", loadable, " inputs.");
      }
    }
    const int32_t operands[] = {instruction.a, instruction.b, instruction.c};
    for (int32_t k = 0; k < kOperands[opcode]; ++k) {
      if (operands[k] < 0 || operands[k] >= i) {
        Invalid("Instruction ", i, " of ", Where(), " uses value ", operands[k],
                ", which no earlier instruction defines.");
      }
    }
  }
}

void Program::Add(Command command) {
  static const char* const operations[] = {"matmul",      "convolution", "pool",
                                           "elementwise", "reduce",      "copy"};
  operation_ = operations[command.op.index()];
  if (command.inputs.size() > NPU_MAX_VECTOR_INPUTS) {
    Declined("The vector program of ", Where(), " reads ", command.inputs.size(),
             " tensors; at most ", NPU_MAX_VECTOR_INPUTS, " are supported.");
  }
  if (command.instructions.size() > kMaxInstructions) {
    Declined("The vector program of ", Where(), " has ", command.instructions.size(),
             " instructions; at most ", kMaxInstructions, " are supported.");
  }
  bool elementwise = std::holds_alternative<npu_elementwise>(command.op);
  bool plain = std::holds_alternative<npu_pool>(command.op) ||  //
               std::holds_alternative<npu_copy>(command.op);
  if (plain && !command.instructions.empty()) {
    Invalid("A vector program is given for ", Where(), ", which cannot have one.");
  }
  if (command.instructions.empty() && (elementwise || !command.inputs.empty())) {
    Invalid("The vector program of ", Where(), " has no instructions.");
  }
  std::visit([this](const auto& op) { Check(op); }, command.op);
  CheckPacked(command);
  CheckVector(command, tensors_[Output(command)].desc, !elementwise);
  // Copies say themselves what they have written.
  if (!std::holds_alternative<npu_copy>(command.op)) progress_[Output(command)].complete = true;
  commands_.push_back(std::move(command));
}

void Program::Check(const npu_matmul& op) {
  const npu_tensor_desc& a = Read(op.a, "operand a");
  const npu_tensor_desc& b = Read(op.b, "operand b", true);
  const npu_tensor_desc& out = Write(op.out);
  if (a.rank < 2 || b.rank < 2) {
    Invalid("The operands of ", Where(), " are ", Describe(op.a), " and ", Describe(op.b),
            "; both need at least 2 dimensions.");
  }
  if (!IsFloat(a.dtype) || a.dtype != b.dtype) {
    Declined("The operands of ", Where(), " are ", Name(a.dtype), " and ", Name(b.dtype),
             "; both must be float32 or both float16.");
  }
  bool ta = op.transpose_a != 0;
  bool tb = op.transpose_b != 0;
  if (!Same(a.dims[a.rank - (ta ? 2 : 1)], b.dims[b.rank - (tb ? 1 : 2)])) {
    Invalid("The operands of ", Where(), ", ", Describe(op.a), ta ? " (transposed)" : "", " and ",
            Describe(op.b), tb ? " (transposed)" : "", ", do not agree in the summed dimension.");
  }
  int32_t rank = std::max(a.rank, b.rank);
  std::vector<npu_dim> dims;
  for (int32_t i = 0; i < rank - 2; ++i) {
    int32_t ia = i - (rank - a.rank);
    int32_t ib = i - (rank - b.rank);
    const npu_dim one = {1, -1};
    const npu_dim& da = ia < 0 ? one : a.dims[ia];
    const npu_dim& db = ib < 0 ? one : b.dims[ib];
    if (!Same(da, db) && !One(da) && !One(db)) {
      Invalid("The leading dimensions of ", Describe(op.a), " and ", Describe(op.b), " of ",
              Where(), " do not broadcast.");
    }
    dims.push_back(One(da) ? db : da);
  }
  dims.push_back(a.dims[a.rank - (ta ? 1 : 2)]);
  dims.push_back(b.dims[b.rank - (tb ? 2 : 1)]);
  if (!Same(out, dims)) {
    Invalid("The output of ", Where(), " is ", Describe(op.out), ", but the result has shape ",
            ToString(dims.data(), rank, symbols_), ".");
  }
}

namespace {

/*! \brief The window of a convolution or pool along one spatial dimension. */
struct Window {
  int64_t in, size, stride, dilation, pad_begin, pad_end;

  int64_t Span() const { return (size - 1) * dilation + 1; }
  /*! \brief Number of positions; 0 where the window does not fit. */
  int64_t Count(bool ceil) const {
    int64_t room = in + pad_begin + pad_end - Span();
    return room < 0 ? 0 : (room + (ceil ? stride - 1 : 0)) / stride + 1;
  }
  /*! \brief Whether the window at a position touches an element of the data. */
  bool Touches(int64_t position) const {
    int64_t start = position * stride - pad_begin;
    int64_t skipped = start < 0 ? (-start + dilation - 1) / dilation : 0;
    return skipped < size && start + skipped * dilation < in;
  }
};

}  // namespace

void Program::CheckSpatial(int32_t spatial_rank, const npu_tensor_desc& data,
                           const npu_tensor_desc& out) const {
  if (spatial_rank < 1 || spatial_rank > NPU_MAX_SPATIAL) {
    Invalid("The spatial_rank of ", Where(), " is ", spatial_rank, "; it must be 1 to ",
            NPU_MAX_SPATIAL, ".");
  }
  if (data.rank != spatial_rank + 2 || out.rank != spatial_rank + 2) {
    Invalid("The data of ", Where(), " has ", data.rank, " dimensions and its output ", out.rank,
            "; with a spatial_rank of ", spatial_rank, " both must have ", spatial_rank + 2, ".");
  }
  for (int32_t i = 1; i < data.rank; ++i) {
    if (!Fixed(data.dims[i]) || !Fixed(out.dims[i])) {
      Declined("Dimension ", i, " of ", Where(), " is symbolic; only the batch dimension may be.");
    }
    if (data.dims[i].size > kMaxParameter || out.dims[i].size > kMaxParameter) {
      Declined("Dimension ", i, " of ", Where(), " is larger than ", kMaxParameter, ".");
    }
  }
  if (!Same(data.dims[0], out.dims[0])) {
    Invalid("The data of ", Where(), " and its output have different batch dimensions.");
  }
}

void Program::CheckParameter(const char* name, int32_t dimension, int64_t value,
                             int64_t least) const {
  if (value < least || value > kMaxParameter) {
    Invalid(name, "[", dimension, "] of ", Where(), " is ", value, "; it must be ", least, " to ",
            kMaxParameter, ".");
  }
}

void Program::Check(const npu_convolution& op) {
  const npu_tensor_desc& data = Read(op.data, "data");
  const npu_tensor_desc& weight = Read(op.weight, "weight", true);
  const npu_tensor_desc& out = Write(op.out);
  CheckSpatial(op.spatial_rank, data, out);
  if (!IsFloat(data.dtype) || data.dtype != weight.dtype) {
    Declined("The operands of ", Where(), " are ", Name(data.dtype), " and ", Name(weight.dtype),
             "; both must be float32 or both float16.");
  }
  if (weight.rank != data.rank) {
    Invalid("The weight of ", Where(), ", ", Describe(op.weight), ", must have ", data.rank,
            " dimensions.");
  }
  for (int32_t i = 0; i < weight.rank; ++i) {
    if (!Fixed(weight.dims[i])) Declined("The weight of ", Where(), " has a symbolic shape.");
  }
  int64_t channels = data.dims[1].size;
  int64_t features = weight.dims[0].size;
  if (op.groups < 1 || channels % op.groups != 0 || features % op.groups != 0) {
    Invalid("The groups of ", Where(), ", ", op.groups, ", must divide its ", channels,
            " input and ", features, " output channels.");
  }
  if (weight.dims[1].size != channels / op.groups) {
    Invalid("The weight of ", Where(), ", ", Describe(op.weight), ", reads ", weight.dims[1].size,
            " channels per group, but ", Describe(op.data), " in ", op.groups, " groups has ",
            channels / op.groups, ".");
  }
  std::vector<npu_dim> dims = {data.dims[0], {features, -1}};
  for (int32_t i = 0; i < op.spatial_rank; ++i) {
    CheckParameter("strides", i, op.strides[i], 1);
    CheckParameter("dilations", i, op.dilations[i], 1);
    CheckParameter("pads_begin", i, op.pads_begin[i], 0);
    CheckParameter("pads_end", i, op.pads_end[i], 0);
    CheckParameter("window", i, weight.dims[i + 2].size, 1);
    Window window = {data.dims[i + 2].size, weight.dims[i + 2].size, op.strides[i],
                     op.dilations[i],       op.pads_begin[i],        op.pads_end[i]};
    dims.push_back({window.Count(false), -1});
    if (dims.back().size == 0) {
      Invalid("The window of ", Where(), " is larger than its padded data in spatial dimension ", i,
              ".");
    }
  }
  if (!Same(out, dims)) {
    Invalid("The output of ", Where(), " is ", Describe(op.out), ", but the result has shape ",
            ToString(dims.data(), out.rank, symbols_), ".");
  }
}

void Program::Check(const npu_pool& op) {
  const npu_tensor_desc& data = Read(op.data, "data");
  const npu_tensor_desc& out = Write(op.out);
  CheckSpatial(op.spatial_rank, data, out);
  int32_t kind = Number(op.kind);
  if (kind < 0 || kind > NPU_POOL_AVERAGE_ADAPTIVE) {
    Invalid("The kind of ", Where(), " is ", kind, ", which does not exist.");
  }
  // Maxima of small integers are exact in float32; means would be rounded.
  bool small = data.dtype == NPU_INT8 || data.dtype == NPU_UINT8;
  if (data.dtype != out.dtype || !(IsFloat(data.dtype) || (small && kind == NPU_POOL_MAX))) {
    Declined("The data of ", Where(), " is ", Name(data.dtype), " and its output ", Name(out.dtype),
             "; both must be float32 or float16, or for maxima int8 or uint8.");
  }
  if (data.dims[1].size != out.dims[1].size) {
    Invalid("The data of ", Where(), " and its output have different channels.");
  }
  if (kind == NPU_POOL_AVERAGE_ADAPTIVE) return;
  for (int32_t i = 0; i < op.spatial_rank; ++i) {
    CheckParameter("window", i, op.window[i], 1);
    CheckParameter("strides", i, op.strides[i], 1);
    CheckParameter("dilations", i, op.dilations[i], 1);
    CheckParameter("pads_begin", i, op.pads_begin[i], 0);
    CheckParameter("pads_end", i, op.pads_end[i], 0);
    Window window = {data.dims[i + 2].size, op.window[i],     op.strides[i],
                     op.dilations[i],       op.pads_begin[i], op.pads_end[i]};
    int64_t size = out.dims[i + 2].size;
    int64_t floor = window.Count(false);
    int64_t ceil = window.Count(true);
    if (size < floor || size > ceil) {
      Invalid("The output of ", Where(), ", ", Describe(op.out), ", has ", size,
              " positions in spatial dimension ", i, "; the window has ", floor,
              floor == ceil ? "." : Join(", or ", ceil, " in ceil mode."));
    }
    // Only windows that start before the data, and the last one, can miss it.
    bool touches = window.Touches(size - 1);
    for (int64_t position = 0; touches && position * op.strides[i] < op.pads_begin[i]; ++position) {
      touches = window.Touches(position);
    }
    if (!touches) {
      Declined("A window of ", Where(), " lies wholly in the padding of spatial dimension ", i,
               ", which is not supported.");
    }
  }
}

void Program::Check(const npu_elementwise& op) { Write(op.out); }

void Program::Check(const npu_reduce& op) {
  const npu_tensor_desc& data = Read(op.data, "data");
  const npu_tensor_desc& out = Write(op.out);
  int32_t kind = Number(op.kind);
  if (kind < 0 || kind > NPU_REDUCE_MIN) {
    Invalid("The kind of ", Where(), " is ", kind, ", which does not exist.");
  }
  if (op.axes >> data.rank != 0) {
    Invalid("The axes of ", Where(), " name a dimension that ", Describe(op.data),
            " does not have.");
  }
  std::vector<npu_dim> kept;
  std::vector<npu_dim> all;
  for (int32_t i = 0; i < data.rank; ++i) {
    bool reduced = (op.axes >> i & 1) != 0;
    if (!reduced) kept.push_back(data.dims[i]);
    all.push_back(reduced ? npu_dim{1, -1} : data.dims[i]);
  }
  if (!Same(out, kept) && !Same(out, all)) {
    Invalid("The output of ", Where(), " is ", Describe(op.out), ", but the result has shape ",
            ToString(kept.data(), static_cast<int32_t>(kept.size()), symbols_), " or ",
            ToString(all.data(), data.rank, symbols_), ".");
  }
}

void Program::Check(const npu_copy& op) {
  const npu_tensor_desc& data = Read(op.data, "data");
  Get(op.out, "output");
  // Further copies may add to what copies wrote, until the tensor is complete.
  bool first = progress_[op.out].boxes.empty();
  const npu_tensor_desc& out = first ? Write(op.out) : tensors_[op.out].desc;
  Progress& progress = progress_[op.out];
  if (!first && (op.fill != 0 || (progress.complete && !progress.filled) || progress.read)) {
    Invalid("The output of ", Where(), ", ", Describe(op.out), ", is written twice.");
  }
  if (data.rank != out.rank || data.dtype != out.dtype) {
    Invalid("The data of ", Where(), ", ", Describe(op.data), ", and its output, ",
            Describe(op.out), ", must have the same rank and element type.");
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
    const npu_dim& size = data.dims[from];
    bool whole = op.offset[d] == 0 && Same(size, out.dims[d]);
    bool inside = Fixed(size) && Fixed(out.dims[d]) && op.offset[d] >= 0 &&
                  op.offset[d] <= out.dims[d].size - size.size;
    if (!whole && !inside) {
      Invalid("The box of ", Where(), ", ", Describe(op.data), ", at offset ", op.offset[d],
              " in dimension ", d, " does not fit into its output, ", Describe(op.out),
              Fixed(size) && Fixed(out.dims[d]) ? "." : "; symbolic dimensions must be equal.");
    }
    box.begin[d] = op.offset[d];
    box.end[d] = op.offset[d] + size.size;
    elements *= size.size;
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
  progress.filled = progress.filled || op.fill != 0;
  // Boxes do not overlap, so the count tells whether they cover the tensor.
  progress.complete = progress.filled || progress.elements == Elements(out);
}

void Program::MarkOutput(npu_tensor tensor) {
  if (tensor < 0 || tensor >= static_cast<npu_tensor>(tensors_.size())) {
    Invalid("Tensor ", tensor, " cannot be an output: there are ", tensors_.size(), " tensors.");
  }
  outputs_.push_back(tensor);
  ++progress_[tensors_[tensor].base].uses;
}

void Program::Finish() const {
  if (outputs_.empty()) Invalid("The program has no outputs.");
  for (npu_tensor output : outputs_) {
    const Tensor& base = tensors_[tensors_[output].base];
    if (!progress_[tensors_[output].base].complete) {
      Invalid("The output ", Describe(output), " is never written in full.");
    }
    if (base.kind == TensorKind::kConstant && constants_[base.index].storage != Storage::kPlain) {
      Invalid("The output ", Describe(output), " has no plain data.");
    }
  }
  std::vector<bool> known(symbols_.size());
  for (npu_tensor input : inputs_) {
    for (int32_t symbol : Symbols(tensors_[input].desc)) known[symbol] = true;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (int32_t symbol : Symbols(tensors_[i].desc)) {
      if (!known[symbol]) {
        Invalid("The shape of ", Describe(static_cast<npu_tensor>(i)), " depends on symbol ",
                symbols_[symbol], ", which is in no input's shape.");
      }
    }
  }
}

}  // namespace tvm_example_npu::emulator
