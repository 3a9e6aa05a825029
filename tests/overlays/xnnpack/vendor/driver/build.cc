// SPDX-License-Identifier: Apache-2.0
/*!
 * \file build.cc
 * \brief The build half: collects the nodes that XNNPACK's graph will have.
 *
 * Tensors of four dimensions are kept channels last. XNNPACK cannot transpose, so what would need
 * it inside the program is declined; inputs and outputs are transposed by the run half.
 */
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "npu_driver.h"
#include "program.h"

namespace {

using driver::Kind;
using driver::kMaxRank;
using driver::Node;
using driver::Source;
using driver::Value;

[[noreturn]] void Decline(const std::string& reason) {
  throw driver::Failure{NPU_DECLINED, reason};
}

void Require(bool holds, const std::string& otherwise) {
  if (!holds) Decline(otherwise);
}

/*! \brief A tensor of the builder. */
struct Tensor {
  /*! \brief As the engine sees it; of an input, with its number. */
  Value port = {};
  /*! \brief Of a constant. */
  const float* data = nullptr;
  /*! \brief Whose elements it has: itself, unless it is a view. */
  npu_tensor root = -1;
  /*! \brief Its place in the program, as soon as something reads or has written it. */
  int32_t value = -1;
};

using Dims = std::vector<int64_t>;

Dims DimsOf(const Value& port) { return Dims(port.dims, port.dims + port.rank); }

/*! \brief How the SDK keeps a shape: channels last; a scalar has one dimension. */
Dims Stored(const Dims& dims) {
  if (dims.empty()) return {1};
  if (dims.size() != 4) return dims;
  return {dims[0], dims[2], dims[3], dims[1]};
}

/*! \brief Whether channels last is the same order of elements. */
bool IsRowMajor(const Dims& dims) {
  return dims.size() != 4 || dims[1] == 1 || dims[2] * dims[3] == 1;
}

}  // namespace

struct npu_builder {
  driver::Program program;
  std::vector<uint8_t> constants, bytes;
  std::vector<Tensor> tensors;
  std::string reason;
};

namespace {

Tensor& At(npu_builder* b, npu_tensor id) {
  if (id < 0 || static_cast<size_t>(id) >= b->tensors.size()) {
    throw driver::Failure{NPU_INVALID, "there is no tensor " + std::to_string(id)};
  }
  return b->tensors[static_cast<size_t>(id)];
}

Dims DimsOf(npu_builder* b, npu_tensor id) { return DimsOf(At(b, id).port); }

npu_tensor AddTensor(npu_builder* b, const npu_tensor_desc* desc, Source source) {
  Require(desc->dtype == NPU_FLOAT32, "only float32 is computed");
  Require(desc->rank <= kMaxRank, "a tensor has 4 dimensions at most");
  Tensor tensor;
  tensor.port.source = source;
  tensor.root = static_cast<npu_tensor>(b->tensors.size());
  tensor.port.rank = desc->rank;
  for (int32_t i = 0; i < desc->rank; ++i) {
    Require(desc->dims[i].symbol < 0, "sizes must be fixed");
    Require(desc->dims[i].size > 0, "a tensor has elements");
    tensor.port.dims[i] = desc->dims[i].size;
  }
  b->tensors.push_back(tensor);
  return tensor.root;
}

npu_tensor AddView(npu_builder* b, npu_tensor data, const Dims& dims) {
  Tensor view = At(b, data);
  view.value = -1;
  view.port.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), view.port.dims);
  b->tensors.push_back(view);
  return static_cast<npu_tensor>(b->tensors.size() - 1);
}

int32_t AddValue(npu_builder* b, Source source, const Dims& dims, int64_t place) {
  Value value = {};
  value.source = source;
  value.rank = static_cast<int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), value.dims);
  value.place = place;
  b->program.values.push_back(value);
  return static_cast<int32_t>(b->program.values.size() - 1);
}

int32_t AddConstant(npu_builder* b, const Dims& dims, const std::vector<float>& elements) {
  const size_t place = driver::Aligned(b->constants.size());
  const size_t size = elements.size() * sizeof(float);
  b->constants.resize(place + size + driver::kBeyond);
  std::memcpy(b->constants.data() + place, elements.data(), size);
  return AddValue(b, Source::kConstant, dims, static_cast<int64_t>(place));
}

int32_t AddNumber(npu_builder* b, double number) {
  return AddConstant(b, {1}, {static_cast<float>(number)});
}

/*! \brief Dimensions of a value. */
Dims ValueDims(npu_builder* b, int32_t value) {
  const Value& v = b->program.values[static_cast<size_t>(value)];
  return Dims(v.dims, v.dims + v.rank);
}

Node MakeNode(Kind kind, int32_t a, int32_t b = -1, int32_t c = -1) {
  Node node = {};
  node.kind = kind;
  node.inputs[0] = a;
  node.inputs[1] = b;
  node.inputs[2] = c;
  return node;
}

/*! \brief Adds a node whose result has these dimensions, as they are stored. */
int32_t AddNode(npu_builder* b, Node node, const Dims& dims) {
  node.out = AddValue(b, Source::kNode, dims, 0);
  b->program.nodes.push_back(node);
  return node.out;
}

/*! \brief The elements of a constant in another order of its dimensions. */
std::vector<float> Permuted(const float* data, const Dims& dims, const std::vector<int>& order) {
  Dims steps(dims.size(), 1);
  for (size_t i = dims.size() - 1; i-- > 0;) steps[i] = steps[i + 1] * dims[i + 1];
  std::vector<float> result = {};
  int64_t count = 1;
  for (int64_t size : dims) count *= size;
  result.reserve(static_cast<size_t>(count));
  Dims at(dims.size(), 0);
  for (int64_t n = 0; n < count; ++n) {
    int64_t from = 0;
    for (size_t i = 0; i < order.size(); ++i) from += at[i] * steps[order[i]];
    result.push_back(data[from]);
    for (size_t i = order.size(); i-- > 0;) {
      if (++at[i] < dims[order[i]]) break;
      at[i] = 0;
    }
  }
  return result;
}

/*! \brief The value of a tensor that an operation reads. */
int32_t Read(npu_builder* b, npu_tensor id) {
  if (At(b, id).value >= 0) return At(b, id).value;
  const Dims dims = DimsOf(b, id);
  const npu_tensor root = At(b, id).root;
  int32_t value = -1;
  switch (At(b, id).port.source) {
    case Source::kInput:
      // A view of an input is the same input, transposed in another way when it is bound.
      value = AddValue(b, Source::kInput, Stored(dims), At(b, root).port.place);
      break;
    case Source::kConstant: {
      const float* data = At(b, id).data;
      const int64_t count = driver::CountOf(At(b, id).port);
      value = AddConstant(b, Stored(dims),
                          dims.size() == 4 ? Permuted(data, dims, {0, 2, 3, 1})
                                           : std::vector<float>(data, data + count));
      break;
    }
    case Source::kNode: {
      const int32_t from = At(b, root).value;
      if (from < 0) throw driver::Failure{NPU_INVALID, "a tensor is read before it is written"};
      const Dims whole = DimsOf(b, root);
      const bool same_channels =
          whole.size() == 4 && dims.size() == 4 && whole[0] == dims[0] && whole[1] == dims[1];
      Require(same_channels || (IsRowMajor(whole) && IsRowMajor(dims)),
              "XNNPACK keeps channels last and cannot transpose, which this change of shape needs");
      value = ValueDims(b, from) == Stored(dims)
                  ? from
                  : AddNode(b, MakeNode(Kind::kReshape, from), Stored(dims));
    }
  }
  return At(b, id).value = value;
}

/*! \brief The value of an operand that is broadcast to `rank` dimensions. */
int32_t ReadAligned(npu_builder* b, npu_tensor id, int32_t rank) {
  Dims dims = DimsOf(b, id);
  if (rank < 4 || dims.size() == 4) return Read(b, id);
  dims.insert(dims.begin(), 4 - dims.size(), 1);
  return Read(b, AddView(b, id, dims));
}

/*! \brief Says which value a tensor is from now on. */
void Write(npu_builder* b, npu_tensor id, int32_t value) {
  Tensor& out = At(b, id);
  if (out.port.source != Source::kNode || out.root != id || out.value >= 0) {
    throw driver::Failure{NPU_INVALID, "a result is written twice, or is not for results"};
  }
  Require(ValueDims(b, value) == Stored(DimsOf(out.port)), "a result is not broadcast");
  out.value = value;
}

const float* ConstantData(npu_builder* b, npu_tensor id, const std::string& what) {
  Require(At(b, id).port.source == Source::kConstant, what + " must be a constant");
  return At(b, id).data;
}

// ---- Vector programs ----

int32_t AddBinary(npu_builder* b, Kind kind, int32_t x, int32_t y) {
  const Dims of_x = ValueDims(b, x), of_y = ValueDims(b, y);
  Dims dims(std::max(of_x.size(), of_y.size()), 1);
  for (const Dims& from : {of_x, of_y}) {
    const size_t skipped = dims.size() - from.size();
    for (size_t i = 0; i < from.size(); ++i)
      dims[skipped + i] = std::max(dims[skipped + i], from[i]);
  }
  return AddNode(b, MakeNode(kind, x, y), dims);
}

int32_t AddClamp(npu_builder* b, int32_t x, double least, double most) {
  Require(least < most, "a clamp has a least value below its greatest");
  Node node = MakeNode(Kind::kClamp, x);
  node.least = static_cast<float>(least);
  node.most = static_cast<float>(most);
  return AddNode(b, node, ValueDims(b, x));
}

int32_t AddLeakyRelu(npu_builder* b, int32_t x, double slope) {
  Require(std::isfinite(slope) && slope != 0, "the slope is not 0");
  Node node = MakeNode(Kind::kLeakyRelu, x);
  node.least = static_cast<float>(slope);
  return AddNode(b, node, ValueDims(b, x));
}

/*! \brief Steps that are a node of one or two inputs. */
const std::map<npu_step_kind, Kind> kNodes = {
    {NPU_STEP_ADD, Kind::kAdd},         {NPU_STEP_BIAS, Kind::kAdd},
    {NPU_STEP_RESIDUAL, Kind::kAdd},    {NPU_STEP_MULTIPLY, Kind::kMultiply},
    {NPU_STEP_SCALE, Kind::kMultiply},  {NPU_STEP_SUBTRACT, Kind::kSubtract},
    {NPU_STEP_DIVIDE, Kind::kDivide},   {NPU_STEP_MAXIMUM, Kind::kMaximum},
    {NPU_STEP_MINIMUM, Kind::kMinimum}, {NPU_STEP_ABSOLUTE, Kind::kAbs},
    {NPU_STEP_CEIL, Kind::kCeil},       {NPU_STEP_FLOOR, Kind::kFloor},
    {NPU_STEP_NEGATE, Kind::kNegate},   {NPU_STEP_ROUND_EVEN, Kind::kRound},
    {NPU_STEP_SIGMOID, Kind::kSigmoid}, {NPU_STEP_SQUARE, Kind::kSquare},
    {NPU_STEP_SQRT, Kind::kSquareRoot},
};

/*! \brief The nodes of a program, whose first `first` steps are done; `accumulator` is what they
 *  made. */
void AddSteps(npu_builder* b, const npu_vector_program* program, int32_t accumulator, int32_t first,
              npu_tensor out) {
  const int32_t rank = At(b, out).port.rank;
  std::vector<int32_t> results(static_cast<size_t>(first), accumulator);
  const int32_t count = program == nullptr ? 0 : program->step_count;
  for (int32_t s = first; s < count; ++s) {
    const npu_step& step = program->steps[s];
    const auto number = [&](int32_t i) {
      Require(step.operands[i].kind == NPU_OPERAND_NUMBER, "a limit or a slope is a number");
      return step.operands[i].number;
    };
    const auto x = [&](int32_t i) {
      const npu_operand& operand = step.operands[i];
      if (operand.kind == NPU_OPERAND_ACCUMULATOR) return accumulator;
      if (operand.kind == NPU_OPERAND_STEP) return results.at(static_cast<size_t>(operand.index));
      if (operand.kind == NPU_OPERAND_NUMBER) return AddNumber(b, operand.number);
      return ReadAligned(b, operand.index, rank);
    };
    const auto unary = [&](Kind kind) {
      return AddNode(b, MakeNode(kind, x(0)), ValueDims(b, x(0)));
    };
    int32_t value = -1;
    const auto node = kNodes.find(step.kind);
    if (node != kNodes.end()) {
      value =
          step.operand_count == 1 ? unary(node->second) : AddBinary(b, node->second, x(0), x(1));
    } else if (step.kind == NPU_STEP_RELU) {
      value = AddClamp(b, x(0), 0, std::numeric_limits<float>::infinity());
    } else if (step.kind == NPU_STEP_CLIP) {
      value = AddClamp(b, x(0), number(1), number(2));
    } else if (step.kind == NPU_STEP_LEAKY_RELU) {
      value = AddLeakyRelu(b, x(0), number(1));
    } else if (step.kind == NPU_STEP_RSQRT) {
      value = AddBinary(b, Kind::kDivide, AddNumber(b, 1), unary(Kind::kSquareRoot));
    } else if (step.kind == NPU_STEP_SILU) {
      value = AddBinary(b, Kind::kMultiply, x(0), unary(Kind::kSigmoid));
    } else if (step.kind == NPU_STEP_CAST) {
      value = x(0);
    } else {
      Decline("XNNPACK has no node for " + (*step.op != '\0'
                                                ? "the op " + std::string(step.op)
                                                : "a step of kind " + std::to_string(step.kind)));
    }
    results.push_back(value);
  }
  Write(b, out, results.empty() ? accumulator : results.back());
}

/*! \brief The constant that the first step adds by channel, as an input of the node, or -1. */
int32_t BiasOf(npu_builder* b, const npu_vector_program* program) {
  if (program == nullptr || program->step_count == 0) return -1;
  const npu_step& step = program->steps[0];
  if (step.kind != NPU_STEP_BIAS || step.operands[0].kind != NPU_OPERAND_ACCUMULATOR) return -1;
  const Tensor& bias = At(b, step.operands[1].index);
  if (bias.port.source != Source::kConstant) return -1;
  for (int32_t s = 1; s < program->step_count; ++s) {
    for (int32_t i = 0; i < program->steps[s].operand_count; ++i) {
      if (program->steps[s].operands[i].kind == NPU_OPERAND_ACCUMULATOR) return -1;
    }
  }
  const int64_t count = driver::CountOf(bias.port);
  return AddConstant(b, {count}, std::vector<float>(bias.data, bias.data + count));
}

// ---- Operations ----

void AddElementwise(npu_builder* b, const npu_elementwise* op) {
  Require(op->program->step_count > 0, "XNNPACK has no node that only broadcasts");
  AddSteps(b, op->program, -1, 0, op->out);
}

void AddMatmul(npu_builder* b, const npu_matmul* op) {
  const float* data = ConstantData(b, op->b, "the second operand of a matmul");
  const Dims weight = DimsOf(b, op->b);
  const Dims of_a = DimsOf(b, op->a);
  Dims dims = DimsOf(b, op->out);
  Require(std::all_of(weight.begin(), weight.end() - 2, [](int64_t size) { return size == 1; }),
          "the second operand of a matmul is one matrix");
  Require(op->transpose_a == 0, "the first operand of a matmul is not transposed");
  Require(of_a.size() == dims.size() && std::equal(of_a.begin(), of_a.end() - 1, dims.begin()),
          "the first operand of a matmul is not broadcast");
  Require(dims.size() < 4, "a matmul has 3 dimensions at most");
  const Dims matrix(weight.end() - 2, weight.end());
  const bool turned = op->transpose_b != 0;
  const int32_t filter =
      AddConstant(b, turned ? matrix : Dims{matrix[1], matrix[0]},
                  Permuted(data, matrix, turned ? std::vector<int>{0, 1} : std::vector<int>{1, 0}));
  const int32_t bias = BiasOf(b, op->epilogue);
  const Node node = MakeNode(Kind::kFullyConnected, Read(b, op->a), filter, bias);
  AddSteps(b, op->epilogue, AddNode(b, node, Stored(dims)), bias < 0 ? 0 : 1, op->out);
}

/*! \brief The window of a convolution or a pool; a last window may reach beyond the padding. */
template <typename T>
driver::Window WindowOf(npu_builder* b, const T* op, const int64_t* size) {
  Require(op->spatial_rank == 2, "windows have two spatial dimensions");
  const Dims data = DimsOf(b, op->data), out = DimsOf(b, op->out);
  driver::Window window = {};
  for (int i = 0; i < 2; ++i) {
    const int64_t extent = (size[i] - 1) * op->dilations[i] + 1;
    const int64_t whole = (out[2 + i] - 1) * op->strides[i] + extent - data[2 + i];
    Require(op->pads_begin[i] >= 0 && op->pads_end[i] >= 0, "padding is not negative");
    window.begin[i] = static_cast<int32_t>(op->pads_begin[i]);
    window.end[i] = static_cast<int32_t>(std::max(op->pads_end[i], whole - op->pads_begin[i]));
    window.size[i] = static_cast<int32_t>(size[i]);
    window.strides[i] = static_cast<int32_t>(op->strides[i]);
    window.dilations[i] = static_cast<int32_t>(op->dilations[i]);
  }
  window.groups = 1;
  return window;
}

void AddConvolution(npu_builder* b, const npu_convolution* op) {
  const float* data = ConstantData(b, op->weight, "the weight of a convolution");
  Require(op->spatial_rank == 2, "windows have two spatial dimensions");
  const Dims weight = DimsOf(b, op->weight);
  const int32_t filter = AddConstant(b, Stored(weight), Permuted(data, weight, {0, 2, 3, 1}));
  const int32_t bias = BiasOf(b, op->epilogue);
  Node node = MakeNode(Kind::kConvolution, Read(b, op->data), filter, bias);
  node.window = WindowOf(b, op, weight.data() + 2);
  node.window.groups = static_cast<int32_t>(op->groups);
  const int32_t value = AddNode(b, node, Stored(DimsOf(b, op->out)));
  AddSteps(b, op->epilogue, value, bias < 0 ? 0 : 1, op->out);
}

void AddPool(npu_builder* b, const npu_pool* op) {
  Require(op->spatial_rank == 2, "windows have two spatial dimensions");
  const Dims data = DimsOf(b, op->data), out = DimsOf(b, op->out);
  Node node =
      MakeNode(op->kind == NPU_POOL_MAX ? Kind::kMaxPool : Kind::kAveragePool, Read(b, op->data));
  if (op->kind == NPU_POOL_AVERAGE_ADAPTIVE) {
    node.kind = out[2] * out[3] == 1 ? Kind::kGlobalAverage : Kind::kAveragePool;
    for (int i = 0; i < 2; ++i) {
      Require(data[2 + i] % out[2 + i] == 0, "windows of a pool have one size");
      node.window.size[i] = node.window.strides[i] = static_cast<int32_t>(data[2 + i] / out[2 + i]);
    }
  } else {
    node.window = WindowOf(b, op, op->window);
  }
  const driver::Window& w = node.window;
  if (op->kind == NPU_POOL_AVERAGE || op->kind == NPU_POOL_AVERAGE_INCLUDE_PAD) {
    Require(w.dilations[0] == 1 && w.dilations[1] == 1, "a mean has no dilation");
  }
  if (op->kind == NPU_POOL_AVERAGE_INCLUDE_PAD) {
    // XNNPACK leaves padding out of the mean: pad with zeros before.
    Require(w.end[0] == op->pads_end[0] && w.end[1] == op->pads_end[1],
            "no window of a mean reaches beyond the padding");
    Node pad = MakeNode(Kind::kPad, node.inputs[0]);
    Dims dims = Stored(data);
    for (int i = 0; i < 2; ++i) {
      dims[1 + i] += w.begin[i] + w.end[i];
      pad.before[1 + i] = w.begin[i];
      pad.after[1 + i] = w.end[i];
      node.window.begin[i] = node.window.end[i] = 0;
    }
    if (dims != Stored(data)) node.inputs[0] = AddNode(b, pad, dims);
  }
  Require(node.kind == Kind::kGlobalAverage || w.size[0] * w.size[1] > 1,
          "a window has more than one element");
  Write(b, op->out, AddNode(b, node, Stored(out)));
}

void AddReduce(npu_builder* b, const npu_reduce* op) {
  const Dims data = DimsOf(b, op->data);
  Require(op->kind == NPU_REDUCE_MEAN && data.size() == 4 && op->axes == 0xc,
          "XNNPACK reduces only to means over the last two of four dimensions");
  const int32_t mean =
      AddNode(b, MakeNode(Kind::kGlobalAverage, Read(b, op->data)), {data[0], 1, 1, data[1]});
  const Dims out = Stored(DimsOf(b, op->out));
  AddSteps(b, op->epilogue,
           out.size() == 4 ? mean : AddNode(b, MakeNode(Kind::kReshape, mean), out), 0, op->out);
}

void AddCopy(npu_builder* b, const npu_copy* op) {
  const Dims data = DimsOf(b, op->data), out = DimsOf(b, op->out);
  Node pad = MakeNode(Kind::kPad, Read(b, op->data));
  const bool last = data.size() == 4;
  for (size_t i = 0; i < data.size(); ++i) {
    const int64_t after = out[i] - op->out_offset[i] - data[i];
    Require(op->permutation[i] == static_cast<int32_t>(i), "XNNPACK cannot transpose");
    Require(op->data_offset[i] == 0 && op->data_step[i] == 1 && op->out_step[i] == 1 && after >= 0,
            "XNNPACK cannot slice");
    Require(op->fill != 0 || after + op->out_offset[i] == 0, "XNNPACK cannot concatenate");
    const size_t at = last ? (i == 1 ? 3 : i > 1 ? i - 1 : i) : i;
    pad.before[at] = static_cast<int32_t>(op->out_offset[i]);
    pad.after[at] = static_cast<int32_t>(after);
  }
  pad.least = static_cast<float>(op->fill_value);
  const bool whole = data == out;
  Write(b, op->out, whole ? pad.inputs[0] : AddNode(b, pad, Stored(out)));
}

void MarkOutput(npu_builder* b, npu_tensor id) {
  // An output that is a view has the elements of what it views: they are transposed back alike.
  Value port = At(b, id).port;
  port.place = Read(b, At(b, id).root);
  b->program.outputs.push_back(port);
}

npu_tensor AddInput(npu_builder* b, const npu_tensor_desc* desc) {
  const npu_tensor id = AddTensor(b, desc, Source::kInput);
  At(b, id).port.place = static_cast<int32_t>(b->program.inputs.size());
  b->program.inputs.push_back(At(b, id).port);
  return id;
}

npu_tensor AddConstantTensor(npu_builder* b, const npu_tensor_desc* desc, const void* data,
                             size_t bytes) {
  const npu_tensor id = AddTensor(b, desc, Source::kConstant);
  if (bytes != driver::CountOf(At(b, id).port) * sizeof(float)) {
    throw driver::Failure{NPU_INVALID, "a constant has another size than its shape says"};
  }
  At(b, id).data = static_cast<const float*>(data);
  return id;
}

// ---- The table ----

template <typename Op, void (*kAdd)(npu_builder*, const Op*)>
npu_status Add(npu_builder* b, const Op* op) {
  return driver::Try(&b->reason, [&] { kAdd(b, op); });
}

thread_local std::string create_reason;

npu_status Create(const npu_option* options, size_t count, npu_builder** builder) {
  return driver::Try(&create_reason, [&] {
    driver::Program program;
    for (size_t i = 0; i < count; ++i) {
      if (std::string(options[i].key) != "threads") {
        throw driver::Failure{NPU_INVALID, "there is no option " + std::string(options[i].key)};
      }
      program.threads = std::strtol(options[i].value, nullptr, 10);
      if (program.threads < 1 || program.threads > 64) {
        throw driver::Failure{NPU_INVALID, "the option threads is 1 to 64"};
      }
    }
    *builder = new npu_builder();
    (*builder)->program = program;
  });
}

constexpr npu_option_info kOptions[] = {
    {"threads", NPU_OPTION_INT, "1", 1, 64, nullptr, 0, "how many threads a program runs on"},
};

npu_build_api MakeTable() {
  npu_build_api api = {};
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = "xnnpack";
  api.release = "1.0";
  api.options = kOptions;
  api.option_count = 1;
  api.create = Create;
  api.destroy = [](npu_builder* b) { delete b; };
  api.error = [](const npu_builder* b) {
    return b == nullptr ? create_reason.c_str() : b->reason.c_str();
  };
  api.add_input = [](npu_builder* b, const npu_tensor_desc* desc, npu_tensor* id) {
    return driver::Try(&b->reason, [&] { *id = AddInput(b, desc); });
  };
  api.add_constant = [](npu_builder* b, const npu_tensor_desc* desc, const void* data, size_t bytes,
                        npu_tensor* id) {
    return driver::Try(&b->reason, [&] { *id = AddConstantTensor(b, desc, data, bytes); });
  };
  api.add_tensor = [](npu_builder* b, const npu_tensor_desc* desc, npu_tensor* id) {
    return driver::Try(&b->reason, [&] { *id = AddTensor(b, desc, Source::kNode); });
  };
  api.add_view = [](npu_builder* b, npu_tensor data, const npu_tensor_desc* desc, npu_tensor* id) {
    return driver::Try(&b->reason, [&] {
      Require(desc->rank <= kMaxRank, "a tensor has 4 dimensions at most");
      Dims dims;
      for (int32_t i = 0; i < desc->rank; ++i) dims.push_back(desc->dims[i].size);
      *id = AddView(b, data, dims);
    });
  };
  api.add_matmul = Add<npu_matmul, AddMatmul>;
  api.add_convolution = Add<npu_convolution, AddConvolution>;
  api.add_pool = Add<npu_pool, AddPool>;
  api.add_elementwise = Add<npu_elementwise, AddElementwise>;
  api.add_reduce = Add<npu_reduce, AddReduce>;
  api.add_copy = Add<npu_copy, AddCopy>;
  api.mark_output = [](npu_builder* b, npu_tensor id) {
    return driver::Try(&b->reason, [&] { MarkOutput(b, id); });
  };
  api.finish = [](npu_builder* b, const uint8_t** bytes, size_t* size) {
    if (bytes == nullptr) return NPU_OK;
    return driver::Try(&b->reason, [&] {
      b->bytes = driver::Serialize(b->program, b->constants);
      *bytes = b->bytes.data();
      *size = b->bytes.size();
    });
  };
  return api;
}

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = MakeTable();
  return &api;
}
