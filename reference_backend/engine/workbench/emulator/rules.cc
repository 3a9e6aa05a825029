// SPDX-License-Identifier: Apache-2.0
/*!
 * \file rules.cc
 * \brief The rules of each operation.
 */
#include "rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace npu::emulator {
namespace {

/*! \brief Strides, pads and the like stay below this, so that no product of sizes overflows. */
constexpr int64_t kMaxParameter = int64_t{1} << 30;
constexpr size_t kMaxInstructions = 256;

bool One(const Dim& dim) { return Fixed(dim) && dim.size == 1; }

bool IsFloat(npu_dtype dtype) { return !IsInteger(dtype); }

/*! \brief The window of a convolution or pool along one spatial dimension. */
struct Window {
  int64_t in, size, stride, dilation, pad_begin, pad_end;

  int64_t Span() const { return (size - 1) * dilation + 1; }
  /*! \brief Number of positions; 0 where the window does not fit. */
  int64_t Count(bool ceil) const {
    int64_t room = in + pad_begin + pad_end - Span() + (ceil ? stride - 1 : 0);
    return room < 0 ? 0 : room / stride + 1;
  }
  /*! \brief Whether the window at a position touches an element of the data. */
  bool Touches(int64_t position) const {
    int64_t start = position * stride - pad_begin;
    int64_t skipped = start < 0 ? (-start + dilation - 1) / dilation : 0;
    return skipped < size && start + skipped * dilation < in;
  }
  /*! \brief Whether the windows at all positions touch the data. */
  bool AllTouch(int64_t positions) const {
    // Only windows that start before the data, and the last one, can miss it.
    if (!Touches(positions - 1)) return false;
    // Taps are no further apart than the data is long, so if any window misses it, the first one
    // does.
    if (dilation <= in) return Touches(0);
    // Such taps jump over all of the data: no model pads windows by that much, but forged bytes
    // may.
    constexpr int64_t kMostPositions = 65536;
    if (pad_begin / stride > kMostPositions) return false;
    for (int64_t position = 0; position < positions && position * stride < pad_begin; ++position) {
      if (!Touches(position)) return false;
    }
    return true;
  }
};

/*! \brief Sums of products of int16 consist of sums of bytes in int32, which must not overflow. */
void CheckDepth(const std::string& where, npu_dtype dtype, int64_t depth) {
  constexpr int64_t kMost = INT32_MAX / (UINT8_MAX * UINT8_MAX);
  if (dtype == NPU_INT16 && depth > kMost) {
    Declined("The ", where, " sums up ", depth, " products of int16; at most ", kMost,
             " are supported.");
  }
}

/*! \brief A parameter of a convolution or pool along one spatial dimension. */
void CheckParameter(const std::string& where, const char* name, int32_t dimension, int64_t value,
                    int64_t least) {
  if (value < least || value > kMaxParameter) {
    Invalid(name, "[", dimension, "] of ", where, " is ", value, "; it must be ", least, " to ",
            kMaxParameter, ".");
  }
}

void CheckSpatial(const std::string& where, int32_t spatial_rank, const Desc& data,
                  const Desc& out) {
  if (spatial_rank < 1 || spatial_rank > NPU_MAX_SPATIAL) {
    Invalid("The spatial_rank of ", where, " is ", spatial_rank, "; it must be 1 to ",
            NPU_MAX_SPATIAL, ".");
  }
  if (data.rank != spatial_rank + 2 || out.rank != spatial_rank + 2) {
    Invalid("The data of ", where, " has ", data.rank, " dimensions and its output ", out.rank,
            "; with a spatial_rank of ", spatial_rank, " both must have ", spatial_rank + 2, ".");
  }
  for (int32_t i = 1; i < data.rank; ++i) {
    if (!Fixed(data.dims[i]) || !Fixed(out.dims[i])) {
      Declined("Dimension ", i, " of ", where, " is symbolic; only the batch dimension may be.");
    }
    if (data.dims[i].size > kMaxParameter || out.dims[i].size > kMaxParameter) {
      Declined("Dimension ", i, " of ", where, " is larger than ", kMaxParameter, ".");
    }
  }
  if (!(data.dims[0] == out.dims[0])) {
    Invalid("The data of ", where, " and its output have different batch dimensions.");
  }
}

}  // namespace

void CheckDesc(const Desc& desc, const std::vector<Symbol>& symbols) {
  int32_t dtype = Number(desc.dtype);
  if (dtype < 0 || dtype >= kDtypeCount) {
    Invalid("A tensor has element type ", dtype, ", which does not exist.");
  }
  if (desc.rank < 0) Invalid("A tensor has the rank ", desc.rank, ".");
  if (desc.rank > NPU_MAX_RANK) {
    Declined("A tensor has ", desc.rank, " dimensions; at most ", NPU_MAX_RANK, " are supported.");
  }
  int64_t elements = 1;
  for (int32_t i = 0; i < desc.rank; ++i) {
    const Dim& dim = desc.dims[i];
    if (dim.symbol < -1 || dim.symbol >= static_cast<int32_t>(symbols.size())) {
      Invalid("Dimension ", i, " of a tensor names symbol ", dim.symbol, ", but there are ",
              symbols.size(), " symbols.");
    }
    if (dim.size < 0) Invalid("Dimension ", i, " of a tensor has the size ", dim.size, ".");
    if (dim.size == 0) {
      Declined("Dimension ", i, " of a tensor is 0; tensors without elements are not supported.");
    }
    int64_t most = dim.size;
    if (Fixed(dim)) {
      if (dim.begin != 0 || dim.limit != 0) {
        Invalid("Dimension ", i, " of a tensor is fixed, but has the bounds of a symbolic one.");
      }
    } else {
      const Symbol& symbol = symbols[dim.symbol];
      if (symbol.bound < 1) Invalid("The bound of symbol ", symbol.name, " is ", symbol.bound, ".");
      if (dim.size > kMaxElements / symbol.bound) {
        Declined("Dimension ", i, " of a tensor is up to ", dim.size, " * ", symbol.bound, " (",
                 symbol.name, "); more than ", kMaxElements, " elements are not supported.");
      }
      int64_t end = dim.size * symbol.bound;
      if (dim.begin < 0 || dim.begin >= end || dim.limit < 1 || dim.limit > end - dim.begin) {
        Invalid("Dimension ", i, " of a tensor begins at ", dim.begin, " and has up to ", dim.limit,
                " elements, of ", end, ".");
      }
      most = dim.limit;
    }
    if (most > kMaxElements / elements) {
      Declined("A tensor has more than ", kMaxElements, " elements, which is more than is ",
               "supported.");
    }
    elements *= most;
  }
}

void OperationRules::CheckVector(const std::vector<npu_vector_instruction>& instructions,
                                 const std::vector<npu_tensor>& inputs, const Desc& out,
                                 std::optional<npu_dtype> accumulator, bool converts) {
  bool epilogue = accumulator.has_value();
  std::vector<npu_dtype> types(1, accumulator.value_or(NPU_FLOAT32));
  types.resize(std::max<size_t>(1, inputs.size()));
  if (inputs.size() > NPU_MAX_VECTOR_INPUTS) {
    Declined("The vector program of ", Where(), " reads ", inputs.size(), " tensors; at most ",
             NPU_MAX_VECTOR_INPUTS, " are supported.");
  }
  if (instructions.size() > kMaxInstructions) {
    Declined("The vector program of ", Where(), " has ", instructions.size(),
             " instructions; at most ", kMaxInstructions, " are supported.");
  }
  if (instructions.empty() && (!epilogue || !inputs.empty())) {
    Invalid("The vector program of ", Where(), " has no instructions.");
  }
  for (size_t i = epilogue ? 1 : 0; i < inputs.size(); ++i) {
    const Desc& in = Read(inputs[i], epilogue ? "epilogue input" : "input", false);
    bool fits = in.rank <= out.rank;
    for (int32_t d = 0; fits && d < in.rank; ++d) {
      fits = One(in.dims[d]) || in.dims[d] == out.dims[out.rank - in.rank + d];
    }
    if (!fits) {
      Invalid("Input ", i, " of ", Where(), ", ", Describe(inputs[i]),
              ", does not broadcast to the output's shape.");
    }
    types[i] = in.dtype;
  }
  for (size_t i = 0; i < instructions.size(); ++i) {
    const npu_vector_instruction& instruction = instructions[i];
    int32_t opcode = Number(instruction.opcode);
    if (opcode < 0 || opcode >= NPU_VECTOR_OPCODE_COUNT) {
      Invalid("Instruction ", i, " of ", Where(), " has opcode ", opcode,
              ", which does not exist.");
    }
    if (opcode == NPU_VECTOR_LOAD) {
      auto loadable = std::max<int32_t>(static_cast<int32_t>(inputs.size()), epilogue ? 1 : 0);
      if (instruction.a < 0 || instruction.a >= loadable) {
        Invalid("Instruction ", i, " of ", Where(), " loads input ", instruction.a,
                ", but there are ", loadable, " inputs.");
      }
    }
    const int32_t operands[] = {instruction.a, instruction.b, instruction.c};
    for (int32_t k = 0; k < kVectorOpcodes[opcode].operands; ++k) {
      if (operands[k] < 0 || operands[k] >= static_cast<int32_t>(i)) {
        Invalid("Instruction ", i, " of ", Where(), " uses value ", operands[k],
                ", which no earlier instruction defines.");
      }
    }
  }
  bool integers = IsInteger(out.dtype) && (!epilogue || IsInteger(*accumulator)) &&
                  LoadsIntegers(instructions.data(), instructions.size(),
                                [&](int32_t input) { return types[input]; });
  if (integers) return CheckIntegers(instructions);
  for (size_t i = 0; i < instructions.size(); ++i) {
    const VectorOpcode& opcode = kVectorOpcodes[instructions[i].opcode];
    if (opcode.reals) continue;
    Invalid("Instruction ", i, " of ", Where(), " is ", opcode.name,
            ", which exists for integers only; something that this program loads or stores is a ",
            "real number.");
  }
  if (epilogue && IsInteger(*accumulator) && !converts) {
    Declined("The ", Where(), " computes integers, but its output or what its epilogue loads are ",
             "real numbers; this mixture is not supported.");
  }
}

void OperationRules::CheckIntegers(const std::vector<npu_vector_instruction>& instructions) const {
  for (size_t i = 0; i < instructions.size(); ++i) {
    const npu_vector_instruction& instruction = instructions[i];
    const VectorOpcode& opcode = kVectorOpcodes[instruction.opcode];
    if (!opcode.integers) {
      Invalid("Instruction ", i, " of ", Where(), " is ", opcode.name,
              ", which exists for real numbers only; all that this program loads and stores are ",
              "integers.");
    }
    // The limits are powers of two, the rounded number is below them. NaN is not.
    bool fits =
        std::round(instruction.immediate) >= -0x1p63 && std::round(instruction.immediate) < 0x1p63;
    if (instruction.opcode == NPU_VECTOR_CONSTANT && !fits) {
      Invalid("Instruction ", i, " of ", Where(), " is the constant ", instruction.immediate,
              ", which is not an integer of 64 bits.");
    }
    // Not NaN either.
    bool rounds = instruction.immediate >= double{NPU_ROUND_HALF_UP} &&
                  instruction.immediate <= double{NPU_ROUND_TO_ZERO} &&
                  instruction.immediate == std::floor(instruction.immediate);
    if (instruction.opcode == NPU_VECTOR_RESCALE && !rounds) {
      Invalid("Instruction ", i, " of ", Where(), " rounds as ", instruction.immediate,
              " says, which is not an npu_rounding.");
    }
  }
}

void OperationRules::CheckZeroPoint(npu_tensor tensor, npu_dtype dtype, int32_t zero_point) const {
  int64_t least = dtype == NPU_INT8 ? INT8_MIN : dtype == NPU_INT16 ? INT16_MIN : 0;
  int64_t most = dtype == NPU_UINT8 ? UINT8_MAX : -1 - least;
  if (!IsInteger(dtype)) most = 0;
  if (zero_point < least || zero_point > most) {
    Invalid("The zero point of ", Describe(tensor), " in ", Where(), " is ", zero_point,
            "; it must be ", least, most > least ? Join(" to ", most) : "", ".");
  }
}

void OperationRules::CheckFactors(npu_tensor a, int32_t a_zero_point, npu_tensor b,
                                  int32_t b_zero_point, bool convolution) {
  npu_dtype left = Read(a, "first operand", false).dtype;
  npu_dtype right = Read(b, "second operand", true).dtype;
  auto is_byte = [](npu_dtype dtype) { return dtype == NPU_INT8 || dtype == NPU_UINT8; };
  bool wide = left == NPU_INT16 && (is_byte(right) || (right == NPU_INT16 && !convolution));
  if (!wide && !(is_byte(left) && is_byte(right)) && !(IsFloat(left) && IsFloat(right))) {
    Declined("The operands of ", Where(), " are ", Describe(a), " and ", Describe(b),
             "; both must be float32 or float16, or both int8 or uint8, or int16 and one of these",
             convolution ? "." : ", or both int16.");
  }
  CheckZeroPoint(a, left, a_zero_point);
  CheckZeroPoint(b, right, b_zero_point);
}

void OperationRules::CheckWeights(const npu_matmul& op, const Desc& b) {
  if (b.dtype != NPU_INT8 && b.dtype != NPU_UINT8) {
    Declined("Operand b of ", Where(), " is ", Describe(op.b), "; integers that real numbers are ",
             "multiplied by must be int8 or uint8.");
  }
  CheckZeroPoint(op.b, b.dtype, op.b_zero_point);
  if (op.a_zero_point != 0) {
    Invalid("The zero point of ", Describe(op.a), " in ", Where(), " is ", op.a_zero_point,
            "; real numbers have none.");
  }
  if (op.b_bits != 4 && op.b_bits != 8) {
    Invalid("The b_bits of ", Where(), " are ", op.b_bits, "; they must be 4 or 8.");
  }
  if (op.b_block == 0) return;
  const bool transposed = op.transpose_b != 0;
  const Dim depth = b.dims[transposed ? b.rank - 1 : b.rank - 2];
  const Dim columns = b.dims[transposed ? b.rank - 2 : b.rank - 1];
  if (op.b_block < 0 || b.rank != 2 || !Fixed(depth) || depth.size % op.b_block != 0) {
    Invalid("The b_block of ", Where(), " is ", op.b_block, ", and operand b ", Describe(op.b),
            "; it must have 2 dimensions, and whole blocks in the summed one.");
  }
  const std::vector<Dim> dims = {{depth.size / op.b_block}, columns};
  auto check = [&](npu_tensor tensor, const char* role, npu_dtype dtype) {
    const Desc desc = Read(tensor, role, false);
    if (desc.dtype == dtype && HasDims(desc, dims)) return;
    Invalid("The ", role, " of ", Where(), " are ", Describe(tensor), "; they must be ",
            Name(dtype), ", with one for each of ", dims[0].size, " blocks and each column of b.");
  };
  check(op.b_scales, "scales", NPU_FLOAT32);
  if (op.b_zero_points >= 0) check(op.b_zero_points, "zero points", b.dtype);
}

void OperationRules::CheckPlainProduct(npu_tensor tensor, const Desc& out,
                                       npu_dtype accumulator) const {
  if (IsInteger(accumulator) && out.dtype != accumulator) {
    Invalid("The output of ", Where(), ", ", Describe(tensor), ", must be ", Name(accumulator),
            ": it has no epilogue.");
  }
}

void OperationRules::Check(const npu_matmul& op) {
  const Desc a = Read(op.a, "operand a", false);
  const Desc b = Read(op.b, "operand b", true);
  const Desc out = Write(op.out);
  if (a.rank < 2 || b.rank < 2) {
    Invalid("The operands of ", Where(), " are ", Describe(op.a), " and ", Describe(op.b),
            "; both need at least 2 dimensions.");
  }
  if (WeightBits(a.dtype, b.dtype, op.b_bits) != 0) {
    CheckWeights(op, b);
  } else {
    CheckFactors(op.a, op.a_zero_point, op.b, op.b_zero_point, false);
    if (op.b_bits != 0 || op.b_block != 0) {
      Invalid("Operand b of ", Where(), ", ", Describe(op.b), ", has no b_bits and no b_block: ",
              "these are for weights of integers, multiplied by real numbers.");
    }
  }
  CheckDepth(Where(), a.dtype, a.dims[a.rank - (op.transpose_a != 0 ? 2 : 1)].Most());
  bool ta = op.transpose_a != 0;
  bool tb = op.transpose_b != 0;
  if (!(a.dims[a.rank - (ta ? 2 : 1)] == b.dims[b.rank - (tb ? 1 : 2)])) {
    Invalid("The operands of ", Where(), ", ", Describe(op.a), ta ? " (transposed)" : "", " and ",
            Describe(op.b), tb ? " (transposed)" : "", ", do not agree in the summed dimension.");
  }
  int32_t rank = std::max(a.rank, b.rank);
  std::vector<Dim> dims;
  for (int32_t i = 0; i < rank - 2; ++i) {
    int32_t ia = i - (rank - a.rank);
    int32_t ib = i - (rank - b.rank);
    const Dim one = {1};
    const Dim& da = ia < 0 ? one : a.dims[ia];
    const Dim& db = ib < 0 ? one : b.dims[ib];
    if (!(da == db) && !One(da) && !One(db)) {
      Invalid("The leading dimensions of ", Describe(op.a), " and ", Describe(op.b), " of ",
              Where(), " do not broadcast.");
    }
    dims.push_back(One(da) ? db : da);
  }
  dims.push_back(a.dims[a.rank - (ta ? 1 : 2)]);
  dims.push_back(b.dims[b.rank - (tb ? 2 : 1)]);
  if (!HasDims(out, dims)) {
    Invalid("The output of ", Where(), " is ", Describe(op.out),
            ", which does not have the shape of the product of ", Describe(op.a),
            ta ? " (transposed)" : "", " and ", Describe(op.b), tb ? " (transposed)" : "", ".");
  }
}

void OperationRules::Check(const npu_convolution& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc weight = Read(op.weight, "weight", true);
  const Desc out = Write(op.out);
  CheckSpatial(Where(), op.spatial_rank, data, out);
  CheckFactors(op.data, op.data_zero_point, op.weight, op.weight_zero_point, true);
  if (weight.rank != data.rank) {
    Invalid("The weight of ", Where(), ", ", Describe(op.weight), ", must have ", data.rank,
            " dimensions.");
  }
  for (int32_t i = 0; i < weight.rank; ++i) {
    if (!Fixed(weight.dims[i])) Declined("The weight of ", Where(), " has a symbolic shape.");
  }
  int64_t depth = 1;
  for (int32_t i = 1; i < weight.rank; ++i)
    depth = std::min(depth, kMaxParameter) * weight.dims[i].size;
  CheckDepth(Where(), data.dtype, depth);
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
  if (out.dims[1].size != features) {
    Invalid("The output of ", Where(), ", ", Describe(op.out), ", has ", out.dims[1].size,
            " channels, but its weight makes ", features, ".");
  }
  for (int32_t i = 0; i < op.spatial_rank; ++i) {
    CheckParameter(Where(), "strides", i, op.strides[i], 1);
    CheckParameter(Where(), "dilations", i, op.dilations[i], 1);
    CheckParameter(Where(), "pads_begin", i, op.pads_begin[i], 0);
    CheckParameter(Where(), "pads_end", i, op.pads_end[i], 0);
    CheckParameter(Where(), "window", i, weight.dims[i + 2].size, 1);
    Window window = {data.dims[i + 2].size, weight.dims[i + 2].size, op.strides[i],
                     op.dilations[i],       op.pads_begin[i],        op.pads_end[i]};
    int64_t count = window.Count(false);
    if (count == 0) {
      Invalid("The window of ", Where(), " is larger than its padded data in spatial dimension ", i,
              ".");
    }
    if (out.dims[i + 2].size != count) {
      Invalid("The output of ", Where(), ", ", Describe(op.out), ", has ", out.dims[i + 2].size,
              " positions in spatial dimension ", i, "; the window has ", count, ".");
    }
  }
}

void OperationRules::Check(const npu_pool& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc out = Write(op.out);
  CheckSpatial(Where(), op.spatial_rank, data, out);
  int32_t kind = CheckKind(op.kind, NPU_POOL_AVERAGE_ADAPTIVE);
  // Maxima of small integers are exact in float32; means would be rounded.
  bool floats = IsFloat(data.dtype) && IsFloat(out.dtype);
  bool small = data.dtype == out.dtype &&
               (data.dtype == NPU_INT8 || data.dtype == NPU_UINT8 || data.dtype == NPU_INT16);
  if (!floats && !(small && kind == NPU_POOL_MAX)) {
    Declined("The data of ", Where(), " is ", Describe(op.data), " and its output ",
             Describe(op.out),
             "; both must be float32 or float16, or for maxima int8, uint8 or int16.");
  }
  if (!(data.dims[1] == out.dims[1])) {
    Invalid("The data of ", Where(), " and its output have different channels.");
  }
  if (kind == NPU_POOL_AVERAGE_ADAPTIVE) return;
  for (int32_t i = 0; i < op.spatial_rank; ++i) {
    CheckParameter(Where(), "window", i, op.window[i], 1);
    CheckParameter(Where(), "strides", i, op.strides[i], 1);
    CheckParameter(Where(), "dilations", i, op.dilations[i], 1);
    CheckParameter(Where(), "pads_begin", i, op.pads_begin[i], 0);
    CheckParameter(Where(), "pads_end", i, op.pads_end[i], 0);
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
    if (!window.AllTouch(size)) {
      Declined("A window of ", Where(), " lies wholly in the padding of spatial dimension ", i,
               ", which is not supported.");
    }
  }
}

void OperationRules::CheckAxis(int32_t axis, npu_tensor tensor, const Desc& desc) const {
  if (axis < 0 || axis >= desc.rank) {
    Invalid("The axis of ", Where(), " is ", axis, ", which ", Describe(tensor), " does not have.");
  }
}

void OperationRules::Check(const npu_elementwise& op) { Write(op.out); }

void OperationRules::Check(const npu_reduce& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc out = Write(op.out);
  int32_t kind = CheckKind(op.kind, NPU_REDUCE_PRODUCT);
  if (kind == NPU_REDUCE_MEAN && IsInteger(data.dtype)) {
    Declined("The data of ", Where(), " is ", Describe(op.data),
             "; a mean is supported of float32 or float16 only.");
  }
  if (op.axes >> data.rank != 0) {
    Invalid("The axes of ", Where(), " name a dimension that ", Describe(op.data),
            " does not have.");
  }
  std::vector<Dim> kept;
  std::vector<Dim> all;
  for (int32_t i = 0; i < data.rank; ++i) {
    bool reduced = (op.axes >> i & 1) != 0;
    if (!reduced) kept.push_back(data.dims[i]);
    all.push_back(reduced ? Dim{1} : data.dims[i]);
  }
  if (!HasDims(out, kept) && !HasDims(out, all)) {
    Invalid("The output of ", Where(), " is ", Describe(op.out),
            ", which does not have the dimensions that are kept of ", Describe(op.data), ".");
  }
}

void OperationRules::CheckSameShape(npu_tensor tensor, const Desc& data, npu_tensor output,
                                    const Desc& out) const {
  if (!HasDims(out, {data.dims, data.dims + data.rank})) {
    Invalid("The output of ", Where(), ", ", Describe(output), ", does not have the shape of ",
            Describe(tensor), ".");
  }
}

void OperationRules::Check(const npu_gather& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc indices = Read(op.indices, "indices", false);
  const Desc out = Write(op.out);
  if (data.dtype != out.dtype) {
    Invalid("The data of ", Where(), ", ", Describe(op.data), ", and its output, ",
            Describe(op.out), ", must have the same element type.");
  }
  if (indices.dtype != NPU_INT32 && indices.dtype != NPU_INT64) {
    Declined("The indices of ", Where(), ", ", Describe(op.indices), ", must be int32 or int64.");
  }
  CheckAxis(op.axis, op.data, data);
  // Part of a symbolic dimension may have no elements to take.
  if (data.dims[op.axis].begin != 0) {
    Invalid("The axis of ", Where(), " is a part of a symbolic dimension.");
  }
  bool fits;
  if (op.elementwise != 0) {
    fits = data.rank == out.rank && HasDims(indices, {out.dims, out.dims + out.rank});
    for (int32_t d = 0; fits && d < data.rank; ++d) {
      const Dim& all = data.dims[d];
      const Dim& part = out.dims[d];
      bool smaller = Fixed(all) && Fixed(part) && part.size <= all.size;
      fits = d == op.axis || smaller || part == all;
    }
  } else {
    std::vector<Dim> dims(data.dims, data.dims + op.axis);
    dims.insert(dims.end(), indices.dims, indices.dims + indices.rank);
    dims.insert(dims.end(), data.dims + op.axis + 1, data.dims + data.rank);
    fits = HasDims(out, dims);
  }
  if (!fits) {
    const std::string what = Join("The output of ", Where(), " is ", Describe(op.out),
                                  ", which does not have the shape of what is gathered of ",
                                  Describe(op.data), " by ", Describe(op.indices));
    const bool is_fixed = HasFixedDims(data) && HasFixedDims(indices) && HasFixedDims(out);
    if (!is_fixed) Declined(what, ", for all sizes.");
    Invalid(what, ".");
  }
}

void OperationRules::Check(const npu_update& op) {
  const Desc value = Read(op.value, "value", false);
  const Desc positions = Read(op.positions, "positions", false);
  const Desc data = Read(op.data, "data", false);
  const Desc out = Write(op.out);
  CheckSameShape(op.data, data, op.out, out);
  CheckAxis(op.axis, op.out, out);
  if (value.dtype != out.dtype || data.dtype != out.dtype) {
    Invalid("The value of ", Where(), ", ", Describe(op.value), ", and its output, ",
            Describe(op.out), ", must have the same element type.");
  }
  if (positions.dtype != NPU_INT32 && positions.dtype != NPU_INT64) {
    Declined("The positions of ", Where(), ", ", Describe(op.positions),
             ", must be int32 or int64.");
  }
  if (!HasFixedDims(out) || !HasFixedDims(value) || !HasFixedDims(positions)) {
    Declined("The sizes of ", Where(), " must be fixed.");
  }
  std::vector<Dim> dims(out.dims, out.dims + out.rank);
  if (positions.rank == 1) dims[op.axis] = positions.dims[0];
  if (positions.rank != 1 || !HasDims(value, dims)) {
    Invalid("The value of ", Where(), ", ", Describe(op.value), ", does not have a slice of ",
            Describe(op.out), " for each of the positions, ", Describe(op.positions), ".");
  }
}

}  // namespace npu::emulator
