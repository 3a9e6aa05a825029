// SPDX-License-Identifier: Apache-2.0
/*!
 * \file compile_test.cc
 * \brief Programs for machines of many sizes compute the operations of a model.
 *
 * The tests run programs naively, command by command, on memory of exactly the planned size that
 * initially holds NaN; driver_test.cc tests the device's own execution.
 */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "emulator/compiler/compile.h"
#include "emulator/kernels/oracle.h"
#include "emulator/timeline.h"

namespace emulator = npu::emulator;
using emulator::Command;
using emulator::Compiled;
using emulator::Desc;
using emulator::Error;
using emulator::Graph;
using emulator::Machine;
using emulator::Memory;
using emulator::Operation;
using emulator::PlainArgs;
using emulator::Program;
using emulator::RunCounters;
using emulator::Tensor;
using emulator::TensorView;
using emulator::Transfer;
using Bytes = std::vector<uint8_t>;

namespace {

// ---- Models ----

/*! \brief A dimension, fixed or symbolic. */
struct Dim : npu_dim {
  Dim(int64_t size) : npu_dim{size, -1} {}
  Dim(int64_t factor, int32_t symbol) : npu_dim{factor, symbol} {}
};
using Dims = std::vector<Dim>;

npu_tensor_desc ToDesc(const Dims& dims, npu_dtype dtype) {
  npu_tensor_desc desc = {};
  desc.dtype = dtype;
  desc.rank = static_cast<int32_t>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) desc.dims[i] = dims[i];
  return desc;
}

/*! \brief An epilogue: a program, and its inputs. */
struct Vector {
  std::vector<npu_vector_instruction> instructions;
  std::vector<npu_tensor> inputs;
};

/*! \brief input 0 `opcode` input 1. */
Vector Combine(npu_vector_opcode opcode, npu_tensor a, npu_tensor b) {
  Vector vector;
  vector.instructions.push_back({NPU_VECTOR_LOAD, 0, 0, 0, 0});
  vector.instructions.push_back({NPU_VECTOR_LOAD, 1, 0, 0, 0});
  vector.instructions.push_back({opcode, 0, 1, 0, 0});
  vector.inputs = {a, b};
  return vector;
}

/*! \brief max(accumulator + input, 0). */
Vector BiasRelu(npu_tensor bias) {
  Vector vector = Combine(NPU_VECTOR_ADD, -1, bias);
  vector.instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, 0});
  vector.instructions.push_back({NPU_VECTOR_MAXIMUM, 2, 3, 0, 0});
  return vector;
}

/*! \brief A graph under construction, with its data. */
class Model {
 public:
  Graph graph;

  npu_tensor Input(const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    return graph.AddInput(ToDesc(dims, dtype));
  }
  /*! \brief Random data, scaled so that sums over `summed` elements are about as large as
   *  what they are computed from. */
  npu_tensor Constant(const Dims& dims, int64_t summed = 6) {
    size_t count = 1;
    for (const Dim& dim : dims) count *= static_cast<size_t>(dim.size);
    data_.emplace_back(count);
    float scale = std::sqrt(6.0f / static_cast<float>(summed));
    for (float& value : data_.back()) value = scale * uniform_(random_);
    return graph.AddConstant(ToDesc(dims, NPU_FLOAT32), data_.back().data(), 4 * count);
  }
  /*! \brief Random integers from `low` to `high`. */
  npu_tensor Integers(const Dims& dims, npu_dtype dtype, int64_t low, int64_t high) {
    TensorView view = emulator::Resolve(graph.values()[Result(dims, dtype)].desc, nullptr);
    bytes_.emplace_back(static_cast<size_t>(ElementCount(view)) * emulator::ElementSize(dtype));
    view.data = bytes_.back().data();
    for (int64_t i = 0; i < ElementCount(view); ++i) {
      emulator::oracle::StoreInteger(view, i, low + random_() % (high - low + 1));
    }
    return graph.AddConstant(ToDesc(dims, dtype), view.data, bytes_.back().size());
  }
  npu_tensor Result(const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    return graph.AddResult(ToDesc(dims, dtype));
  }
  npu_tensor View(npu_tensor data, const Dims& dims) {
    return graph.AddView(data, ToDesc(dims, graph.values()[data].desc.dtype));
  }

  template <typename Op>
  npu_tensor Add(const Op& op, const Vector& vector = {}) {
    graph.Add(Operation{op, vector.instructions, vector.inputs, 0});
    return op.out;
  }
  npu_tensor MatMul(npu_tensor a, npu_tensor b, const Dims& dims, const Vector& epilogue = {},
                    bool transpose_a = false, bool transpose_b = false) {
    return Add(
        npu_matmul{0, a, b, Result(dims), transpose_a, transpose_b, nullptr, 0, 0, 0, 0, -1, -1},
        epilogue);
  }
  /*! \brief A convolution of two spatial dimensions with a new weight. */
  npu_tensor Conv(npu_tensor data, int64_t features, int64_t window, int64_t stride, int64_t pad,
                  int64_t groups = 1, const Vector& epilogue = {}) {
    const Desc desc = graph.values()[data].desc;
    npu_convolution op = {};
    op.data = data;
    int64_t depth = desc.dims[1].size / groups;
    op.weight = Constant({features, depth, window, window}, depth * window * window);
    op.spatial_rank = 2;
    op.groups = groups;
    Dims dims = {Dim(desc.dims[0].size, desc.dims[0].symbol), features};
    for (int i = 0; i < 2; ++i) {
      op.strides[i] = stride;
      op.dilations[i] = 1;
      op.pads_begin[i] = op.pads_end[i] = pad;
      dims.emplace_back((desc.dims[i + 2].size + 2 * pad - window) / stride + 1);
    }
    op.out = Result(dims);
    return Add(op, epilogue);
  }
  npu_tensor Pool(npu_tensor data, npu_pool_kind kind, int64_t window, int64_t stride, int64_t pad,
                  bool ceil = false) {
    const Desc desc = graph.values()[data].desc;
    npu_pool op = {};
    op.data = data;
    op.kind = kind;
    op.spatial_rank = 2;
    Dims dims = {Dim(desc.dims[0].size, desc.dims[0].symbol), desc.dims[1].size};
    for (int i = 0; i < 2; ++i) {
      op.window[i] = window;
      op.strides[i] = stride;
      op.dilations[i] = 1;
      op.pads_begin[i] = op.pads_end[i] = pad;
      int64_t room = desc.dims[i + 2].size + 2 * pad - window + (ceil ? stride - 1 : 0);
      dims.emplace_back(kind == NPU_POOL_AVERAGE_ADAPTIVE ? window : room / stride + 1);
    }
    op.out = Result(dims, desc.dtype);
    return Add(op);
  }
  npu_tensor Elementwise(const Vector& vector, const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    npu_elementwise op = {};
    op.out = Result(dims, dtype);
    return Add(op, vector);
  }
  npu_tensor Binary(npu_vector_opcode opcode, npu_tensor a, npu_tensor b, const Dims& dims) {
    return Elementwise(Combine(opcode, a, b), dims);
  }
  npu_tensor Unary(npu_vector_opcode opcode, npu_tensor a, const Dims& dims) {
    Vector vector;
    vector.instructions.push_back({NPU_VECTOR_LOAD, 0, 0, 0, 0});
    vector.instructions.push_back({opcode, 0, 0, 0, 0});
    vector.inputs = {a};
    return Elementwise(vector, dims);
  }
  npu_tensor Reduce(npu_tensor data, npu_reduce_kind kind, uint32_t axes, const Dims& dims,
                    const Vector& epilogue = {}, npu_dtype dtype = NPU_FLOAT32) {
    return Add(npu_reduce{0, data, Result(dims, dtype), kind, axes, nullptr}, epilogue);
  }
  npu_tensor Copy(npu_tensor data, npu_tensor out, const std::vector<int64_t>& offset = {},
                  const std::vector<int32_t>& permutation = {}, bool fill = false) {
    npu_copy op = {};
    op.data = data;
    op.out = out;
    for (int32_t d = 0; d < NPU_MAX_RANK; ++d) {
      op.permutation[d] = d;
      op.data_step[d] = op.out_step[d] = 1;
    }
    std::copy(permutation.begin(), permutation.end(), op.permutation);
    std::copy(offset.begin(), offset.end(), op.out_offset);
    op.fill = fill;
    op.fill_value = 0.5f;
    return Add(op);
  }
  /*! \brief The shape of a tensor. */
  Dims Shape(npu_tensor tensor) const {
    const Desc& desc = graph.values()[tensor].desc;
    Dims dims;
    for (int32_t d = 0; d < desc.rank; ++d) {
      dims.emplace_back(desc.dims[d].size, desc.dims[d].symbol);
    }
    return dims;
  }

 private:
  std::list<std::vector<float>> data_;
  std::list<Bytes> bytes_;
  std::mt19937 random_{7};
  std::uniform_real_distribution<float> uniform_{-1, 1};
};

// ---- The oracle of a model ----

using Symbols = std::vector<int64_t>;

size_t BytesOf(const TensorView& view) {
  return static_cast<size_t>(ElementCount(view)) * emulator::ElementSize(view.dtype);
}

/*! \brief Random inputs. */
std::vector<Bytes> Inputs(const Graph& graph, const Symbols& symbols) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Bytes> inputs;
  for (npu_tensor input : graph.inputs()) {
    TensorView view = emulator::Resolve(graph.values()[input].desc, symbols.data());
    inputs.emplace_back(BytesOf(view));
    view.data = inputs.back().data();
    for (int64_t i = 0; i < ElementCount(view); ++i) {
      emulator::oracle::Store(view, i, uniform(random) * (view.dtype > NPU_FLOAT16 ? 100 : 1));
    }
  }
  return inputs;
}

/*! \brief Sets the fields that operations, commands and kernels share. */
template <typename Op, typename Args>
void SetWindows(const Op& op, Args* args) {
  args->spatial_rank = op.spatial_rank;
  std::copy_n(op.strides, NPU_MAX_SPATIAL, args->strides);
  std::copy_n(op.dilations, NPU_MAX_SPATIAL, args->dilations);
  std::copy_n(op.pads_begin, NPU_MAX_SPATIAL, args->pads_begin);
  std::copy_n(op.pads_end, NPU_MAX_SPATIAL, args->pads_end);
}

/*! \brief Converts operations and commands to arguments of kernels. `view` finds tensors. */
template <typename Run, typename View>
struct Caller {
  const Run& run;
  const View& view;
  const std::vector<npu_vector_instruction>& instructions;
  const std::vector<npu_tensor>& inputs;
  std::vector<TensorView> views = {};

  emulator::VectorProgram Vector(bool epilogue) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      views.push_back(epilogue && i == 0 ? TensorView() : view(inputs[i]));
    }
    return {instructions.data(), static_cast<int32_t>(instructions.size()), views.data(),
            static_cast<int32_t>(views.size())};
  }
  void operator()(const npu_matmul& op) {
    emulator::MatMulArgs args;
    args.a = view(op.a);
    args.b = view(op.b);
    args.out = view(op.out);
    args.transpose_a = op.transpose_a != 0;
    args.transpose_b = op.transpose_b != 0;
    args.a_zero_point = op.a_zero_point;
    args.b_zero_point = op.b_zero_point;
    args.b_bits = op.b_bits;
    args.b_block = op.b_block;
    if (op.b_block != 0) {
      args.b_scales = view(op.b_scales);
      if (op.b_zero_points >= 0) args.b_zero_points = view(op.b_zero_points);
    }
    args.packed_b = view.Packed(op.b);
    args.b_halved = view.IsHalved(op);
    args.epilogue = Vector(true);
    run(args);
  }
  void operator()(const npu_convolution& op) {
    emulator::ConvolutionArgs args;
    args.data = view(op.data);
    args.weight = view(op.weight);
    args.out = view(op.out);
    SetWindows(op, &args);
    args.groups = op.groups;
    args.data_zero_point = op.data_zero_point;
    args.weight_zero_point = op.weight_zero_point;
    args.packed_weight = view.Packed(op.weight);
    args.weight_halved = view.IsHalved(op);
    args.epilogue = Vector(true);
    run(args);
  }
  void operator()(const npu_pool& op) {
    emulator::PoolArgs args;
    args.data = view(op.data);
    args.out = view(op.out);
    args.kind = op.kind;
    SetWindows(op, &args);
    std::copy_n(op.window, NPU_MAX_SPATIAL, args.window);
    run(args);
  }
  void operator()(const npu_elementwise& op) {
    emulator::ElementwiseArgs args;
    args.out = view(op.out);
    args.program = Vector(false);
    run(args);
  }
  void operator()(const npu_reduce& op) {
    emulator::ReduceArgs args;
    args.data = view(op.data);
    args.out = view(op.out);
    args.kind = op.kind;
    args.axes = op.axes;
    args.epilogue = Vector(true);
    run(args);
  }
  void operator()(const npu_gather& op) {
    emulator::GatherArgs args;
    args.data = view(op.data);
    args.indices = view(op.indices);
    args.out = view(op.out);
    args.axis = op.axis;
    args.elementwise = op.elementwise != 0;
    run(args);
  }
  void operator()(const npu_update& op) {
    emulator::UpdateArgs args;
    args.value = view(op.value);
    args.positions = view(op.positions);
    args.out = view(op.out);
    args.axis = op.axis;
    if (op.data != op.out) std::memcpy(args.out.data, view(op.data).data, BytesOf(args.out));
    run(args);
  }
  template <typename Op>
  std::enable_if_t<emulator::kIsPlain<Op>> operator()(const Op& op) {
    emulator::PlainArgs<Op> args = {op, {}, view(op.out)};
    TensorView* read = args.reads;
    emulator::ForEachOperand(op, [&](npu_tensor tensor) { *read++ = view(tensor); });
    run(args);
  }
  template <typename Op>
  std::enable_if_t<!emulator::kIsPlain<Op>> operator()(const Op& op) {
    emulator::CopyArgs args;
    args.out = view(op.out);
    if (op.data >= 0) args.data = view(op.data);
    std::copy_n(op.permutation, NPU_MAX_RANK, args.permutation);
    if constexpr (std::is_same_v<Op, Transfer>) {
      if (view.Packed(op.out) != nullptr) {
        std::memcpy(const_cast<void*>(view.Packed(op.out)), view.Packed(op.data),
                    view.PackedBytes(op.out));
        return;
      }
    }
    std::copy_n(op.data_offset, NPU_MAX_RANK, args.data_offset);
    std::copy_n(op.data_step, NPU_MAX_RANK, args.data_step);
    std::copy_n(op.out_offset, NPU_MAX_RANK, args.out_offset);
    std::copy_n(op.out_step, NPU_MAX_RANK, args.out_step);
    args.fill = op.fill != 0;
    args.fill_value = op.fill_value;
    run(args);
  }
};

/*! \brief The oracle's results of a graph. */
class Expected {
 public:
  Expected(const Graph& graph, const std::vector<Bytes>& inputs, const Symbols& symbols)
      : graph_(graph), inputs_(inputs), symbols_(symbols), memory_(graph.values().size()) {
    for (const Operation& operation : graph.operations()) {
      Caller<Expected, Expected> call{*this, *this, operation.instructions, operation.inputs};
      std::visit(call, operation.op);
    }
  }

  TensorView operator()(npu_tensor tensor) const {
    const emulator::Value& value = graph_.values()[tensor];
    const emulator::Value& base = graph_.values()[value.base];
    TensorView view = emulator::Resolve(value.desc, symbols_.data());
    Bytes& memory = memory_[value.base];
    if (base.source == emulator::Source::kInput) {
      view.data = const_cast<uint8_t*>(inputs_[base.index].data());
    } else if (base.source == emulator::Source::kConstant) {
      view.data = const_cast<uint8_t*>(graph_.constant(base.index));
    } else {
      if (memory.empty()) memory.resize(BytesOf(view));
      view.data = memory.data();
    }
    return view;
  }
  const void* Packed(npu_tensor) const { return nullptr; }
  template <typename Op>
  bool IsHalved(const Op&) const {
    return false;
  }
  size_t PackedBytes(npu_tensor) const { return 0; }

  void operator()(const emulator::MatMulArgs& args) const { emulator::oracle::MatMul(args); }
  void operator()(const emulator::ConvolutionArgs& args) const {
    emulator::oracle::Convolution(args);
  }
  void operator()(const emulator::PoolArgs& args) const { emulator::oracle::Pool(args); }
  void operator()(const emulator::ElementwiseArgs& args) const {
    emulator::oracle::Elementwise(args);
  }
  void operator()(const emulator::ReduceArgs& args) const { emulator::oracle::Reduce(args); }
  void operator()(const emulator::CopyArgs& args) const { emulator::oracle::Copy(args); }
  void operator()(const emulator::GatherArgs& args) const { emulator::oracle::Gather(args); }
  void operator()(const emulator::UpdateArgs& args) const { emulator::oracle::Update(args); }
  void operator()(const PlainArgs<npu_scan>& args) const { emulator::oracle::Scan(args); }
  void operator()(const PlainArgs<npu_order>& args) const { emulator::oracle::Order(args); }
  void operator()(const PlainArgs<npu_lookup>& args) const { emulator::oracle::Lookup(args); }
  template <typename Op>
  void operator()(const PlainArgs<Op>&) const {
    throw std::logic_error("an operation without an oracle");
  }

 private:
  const Graph& graph_;
  const std::vector<Bytes>& inputs_;
  const Symbols& symbols_;
  mutable std::vector<Bytes> memory_;
};

/*! \brief Runs a program, command by command. */
class Execution {
 public:
  Execution(const Graph& graph, const Compiled& compiled, const std::vector<Bytes>& inputs,
            const Symbols& symbols)
      : program_(compiled.program), inputs_(inputs), symbols_(symbols) {
    constants_ = emulator::Buffer(program_.constant_bytes);
    emulator::WriteConstants(graph, compiled, constants_.data());
    // Bytes of 0xff are NaN in every floating-point dtype.
    arena_ = emulator::Buffer(program_.arena_bytes);
    scratchpad_ = emulator::Buffer(static_cast<size_t>(program_.machine.scratchpad_bytes));
    if (arena_.size() > 0) std::memset(arena_.data(), 0xff, arena_.size());
    std::memset(scratchpad_.data(), 0xff, scratchpad_.size());
    for (const Desc& desc : program_.outputs) {
      outputs_.emplace_back(BytesOf(emulator::Resolve(desc, symbols.data())), 0xff);
    }
    for (const Command& command : program_.commands) {
      Caller<Execution, Execution> call{*this, *this, command.instructions, command.inputs};
      std::visit(call, command.op);
    }
  }

  const std::vector<Bytes>& outputs() const { return outputs_; }

  TensorView operator()(npu_tensor id) const {
    const Tensor& tensor = program_.tensors[id];
    TensorView view = emulator::Resolve(tensor.desc, symbols_.data());
    size_t bytes = tensor.packed_bytes > 0 ? tensor.packed_bytes : BytesOf(view);
    view.data = Address(tensor, bytes);
    return view;
  }
  const void* Packed(npu_tensor id) const {
    if (id < 0 || program_.tensors[id].packed_bytes == 0) return nullptr;
    return Address(program_.tensors[id], program_.tensors[id].packed_bytes);
  }
  size_t PackedBytes(npu_tensor id) const { return program_.tensors[id].packed_bytes; }
  template <typename Op>
  bool IsHalved(const Op& op) const {
    return HasHalvedWeight(program_, op);
  }

  template <typename Args>
  void operator()(const Args& args) const {
    Execute(args, Context(ScratchBytes(args, 1)));
  }

 private:
  void* Address(const Tensor& tensor, size_t bytes) const {
    uint8_t* memory = nullptr;
    size_t size = 0;
    switch (tensor.place.memory) {
      case Memory::kInput:
        memory = const_cast<uint8_t*>(inputs_[tensor.place.index].data());
        size = inputs_[tensor.place.index].size();
        break;
      case Memory::kOutput:
        memory = outputs_[tensor.place.index].data();
        size = outputs_[tensor.place.index].size();
        break;
      case Memory::kConstants:
        memory = constants_.data();
        size = constants_.size();
        break;
      case Memory::kArena:
        memory = arena_.data();
        size = arena_.size();
        break;
      case Memory::kScratchpad:
        memory = scratchpad_.data();
        size = scratchpad_.size();
        break;
    }
    CHECK(bytes == 0 || tensor.place.offset + bytes <= size);
    return memory + tensor.place.offset;
  }
  emulator::KernelContext Context(size_t bytes) const {
    scratch_ = emulator::Buffer(bytes);
    return {scratch_.data(), nullptr};
  }

  const Program& program_;
  const std::vector<Bytes>& inputs_;
  const Symbols& symbols_;
  emulator::Buffer constants_, arena_, scratchpad_;
  mutable emulator::Buffer scratch_;
  mutable std::vector<Bytes> outputs_;
};

// ---- Comparisons ----

Machine WithScratchpad(int64_t bytes) {
  Machine machine;
  machine.scratchpad_bytes = bytes;
  return machine;
}

/*! \brief A machine in which everything fits. */
Machine Large() { return WithScratchpad(int64_t{1} << 24); }

/*! \brief The scratchpad bytes that a model needs according to the error; 0 if it compiles. */
int64_t BytesMissing(const Graph& graph, const Machine& machine) {
  try {
    emulator::Compile(graph, machine);
  } catch (const Error& error) {
    CHECK_EQ(error.status, NPU_OUT_OF_MEMORY);
    std::string sentence = error.what();
    size_t colon = sentence.rfind(": ");
    return std::stoll(sentence.substr(colon + 2));
  }
  return 0;
}

/*! \brief The smallest scratchpad with which a model compiles. */
int64_t SmallestScratchpad(const Graph& graph, Machine machine) {
  machine.scratchpad_bytes = 1024;
  for (int i = 0; i < 1000; ++i) {
    int64_t missing = BytesMissing(graph, machine);
    if (missing == 0) return machine.scratchpad_bytes;
    machine.scratchpad_bytes += missing;
  }
  CHECK(false);
  return 0;
}

/*! \brief Whether something is summed in parts, which rounds differently. */
bool SumsInParts(const Program& program) {
  for (const Command& command : program.commands) {
    if (std::holds_alternative<npu_elementwise>(command.op)) continue;
    npu_tensor out = OutputOf(command);
    for (npu_tensor input : command.inputs) {
      // Partial sums accumulate in place; the model's operands differ in shape or place.
      if (input == out) return true;
    }
  }
  return false;
}

/*! \brief The counters of a program. */
RunCounters Count(const Compiled& compiled, const Symbols& symbols = {}) {
  emulator::Accesses accesses(compiled.program);
  emulator::Timeline timeline(compiled.program, accesses);
  if (!symbols.empty()) timeline.SetSymbols(symbols.data());
  return timeline.counters();
}

/*! \brief Checks a model on a machine. With `same`, results equal those of untiled operations bit
 * for bit, unless something is summed in parts. Returns the counters. */
RunCounters Check(const Model& model, const Machine& machine, const Symbols& symbols = {},
                  bool same = false, double tolerance = 1e-4) {
  const Graph& graph = model.graph;
  graph.Finish();
  Compiled compiled = emulator::Compile(graph, machine);
  compiled.program.constants = nullptr;
  for (const Tensor& tensor : compiled.program.tensors) {
    int64_t bytes = tensor.packed_bytes > 0 ? static_cast<int64_t>(tensor.packed_bytes)
                                            : emulator::MostBytes(tensor.desc);
    bool inside = tensor.place.memory == Memory::kScratchpad;
    CHECK(!inside || machine.max_tile_bytes == 0 || bytes <= machine.max_tile_bytes);
  }
  emulator::Buffer constants(compiled.program.constant_bytes);
  compiled.program.constants = constants.data();
  emulator::Verify(compiled.program);
  std::vector<Bytes> inputs = Inputs(graph, symbols);
  Execution got(graph, compiled, inputs, symbols);
  Expected want(graph, inputs, symbols);
  std::vector<Bytes> exact;
  same = same && !SumsInParts(compiled.program);
  if (same) exact = Execution(graph, emulator::Compile(graph, Large()), inputs, symbols).outputs();
  int wrong = 0;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    TensorView expected = want(graph.outputs()[i]);
    TensorView result = expected;
    result.data = const_cast<uint8_t*>(got.outputs()[i].data());
    for (int64_t k = 0; k < ElementCount(expected); ++k) {
      float w = emulator::oracle::Load(expected, k);
      float g = emulator::oracle::Load(result, k);
      bool right = check::Near(g, w, tolerance, tolerance * 10);
      if (emulator::IsInteger(expected.dtype)) {
        right =
            emulator::oracle::LoadInteger(result, k) == emulator::oracle::LoadInteger(expected, k);
      }
      if (!right && wrong < 3) {
        std::fprintf(stderr, "output %zu [%ld] is %g, not %g; scratchpad %ld\n", i,
                     static_cast<long>(k), g, w, static_cast<long>(machine.scratchpad_bytes));
      }
      wrong += !right;
    }
    if (same) CHECK(exact[i] == got.outputs()[i]);
  }
  CHECK_EQ(wrong, 0);
  return Count(compiled, symbols);
}

/*! \brief Checks a model on machines from barely large enough to large enough for everything.
 * Without `same`, results may be rounded differently: with few rows or columns, the order in which
 * kernels sum depends on the shape. */
void CheckSizes(const Model& model, const std::vector<Symbols>& values = {Symbols()},
                bool same = false) {
  Machine machine;
  int64_t least = SmallestScratchpad(model.graph, machine);
  for (int64_t percent : {100, 130, 170, 250, 400, 1000, 3000}) {
    for (int32_t cores : {1, 3}) {
      machine.scratchpad_bytes = least * percent / 100;
      machine.cores = cores;
      for (const Symbols& symbols : values) {
        Check(model, machine, symbols, same);
      }
    }
  }
  for (const Symbols& symbols : values) Check(model, Large(), symbols, same);
}

// ---- Operations ----

TEST(MatMulOnMachinesOfManySizes) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      Model model;
      Dims a = ta ? Dims{24, 40} : Dims{40, 24};
      Dims b = tb ? Dims{56, 24} : Dims{24, 56};
      npu_tensor x = model.Input(a);
      npu_tensor y = model.Input(b);
      npu_tensor w = model.Constant(b);
      model.graph.MarkOutput(model.MatMul(x, y, {40, 56}, BiasRelu(model.Constant({56})), ta, tb));
      model.graph.MarkOutput(model.MatMul(x, w, {40, 56}, {}, ta, tb));
      CheckSizes(model);
    }
  }
}

TEST(MatMulBroadcastsBatches) {
  Model model;
  npu_tensor x = model.Input({3, 1, 10, 12});
  npu_tensor y = model.Input({4, 12, 9});
  npu_tensor w = model.Constant({2, 9, 33});
  npu_tensor xy = model.MatMul(x, y, {3, 4, 10, 9}, BiasRelu(model.Constant({4, 1, 1})));
  npu_tensor half = model.View(xy, {6, 2, 10, 9});
  model.graph.MarkOutput(model.MatMul(half, w, {6, 2, 10, 33}));
  CheckSizes(model);
}

/*! \brief Where a mask is not zero, new rows, elsewhere data. */
Vector Selection(npu_tensor mask, npu_tensor rows, npu_tensor data) {
  Vector vector;
  for (int32_t i = 0; i < 3; ++i) vector.instructions.push_back({NPU_VECTOR_LOAD, i, 0, 0, 0});
  vector.instructions.push_back({NPU_VECTOR_SELECT, 0, 1, 2, 0});
  vector.inputs = {mask, rows, data};
  return vector;
}

TEST(OperandsThatOnlyAProductReadsAreMadeWhereItLoadsThem) {
  for (bool transposed : {false, true}) {
    for (bool is_output : {false, true}) {
      // A cache of 3 heads with 40 rows of 16 numbers, of which some are replaced.
      Model model;
      npu_tensor x = model.Input(transposed ? Dims{1, 3, 2, 16} : Dims{1, 3, 2, 40});
      npu_tensor cache = model.Input({1, 3, 40, 16});
      npu_tensor rows = model.Input({3, 1, 1, 16});
      npu_tensor mask = model.Integers({1, 40, 1, 1}, NPU_BOOL, 0, 1);
      // Each of these is computed before it is needed.
      npu_tensor twice = model.Binary(NPU_VECTOR_ADD, rows, rows, {3, 1, 1, 16});
      npu_tensor flat = model.View(cache, {3, 40, 1, 16});
      npu_tensor kept = model.Elementwise(Selection(mask, twice, flat), {3, 40, 1, 16});
      npu_tensor whole = model.View(kept, {1, 3, 40, 16});
      const Dims dims = {1, 3, 2, transposed ? 40 : 16};
      npu_tensor bias = model.Constant({transposed ? 40 : 16});
      npu_tensor product = model.MatMul(x, whole, dims, BiasRelu(bias), false, transposed);
      model.graph.MarkOutput(product);
      if (is_output) model.graph.MarkOutput(whole);
      CheckSizes(model);
      Machine machine = WithScratchpad(8192);
      RunCounters counters = Check(model, machine);
      const uint64_t bytes = 3 * 40 * 16 * 4;
      // The cache is read once, and only written if it is an output.
      CHECK(counters.dram_bytes_read < bytes + bytes / 4);
      CHECK(counters.dram_bytes_written < (is_output ? bytes : 0) + bytes / 4);
      machine.max_tile_bytes = 1000;
      Check(model, machine);
    }
  }
}

TEST(OtherOperandsAreOperationsOfTheirOwn) {
  const Dims dims = {40, 16};
  for (int kind = 0; kind < 4; ++kind) {
    Model model;
    npu_tensor x = model.Input({2, 16});
    npu_tensor cache = model.Input(dims);
    npu_tensor row = model.Input({16});
    npu_tensor mask = model.Integers({40, 1}, NPU_BOOL, 0, 1);
    // Of a result of another operation, or with its data in two places.
    if (kind == 0) cache = model.Unary(NPU_VECTOR_TANH, cache, dims);
    npu_tensor kept = kind == 1 ? model.Binary(NPU_VECTOR_MULTIPLY, cache, cache, dims)
                                : model.Elementwise(Selection(mask, row, cache), dims);
    // Read in another shape, or twice.
    npu_tensor turned = kind == 2 ? model.View(kept, {16, 40}) : kept;
    model.graph.MarkOutput(model.MatMul(x, turned, {2, 40}, {}, false, kind != 2));
    if (kind == 3) model.graph.MarkOutput(model.Reduce(kept, NPU_REDUCE_SUM, 1, {16}));
    CheckSizes(model);
  }
}

TEST(ConvolutionOnMachinesOfManySizes) {
  for (int64_t groups : {1, 2, 8}) {
    for (int64_t stride : {1, 2}) {
      Model model;
      npu_tensor x = model.Input({2, 8, 13, 11});
      npu_tensor first =
          model.Conv(x, 16, 3, stride, 1, groups, BiasRelu(model.Constant({1, 16, 1, 1})));
      npu_tensor second = model.Conv(first, 24, 1, stride, 0, 1);
      model.graph.MarkOutput(model.Conv(second, 24, 5, 1, 2, 24));
      model.graph.MarkOutput(first);
      CheckSizes(model);
    }
  }
}

TEST(ConvolutionWithPadsBeyondTheWindow) {
  Model model;
  npu_tensor x = model.Input({1, 4, 9, 9});
  model.graph.MarkOutput(model.Conv(x, 8, 2, 1, 3));
  CheckSizes(model);
}

TEST(PoolOnMachinesOfManySizes) {
  for (npu_pool_kind kind : {NPU_POOL_MAX, NPU_POOL_AVERAGE, NPU_POOL_AVERAGE_INCLUDE_PAD}) {
    for (bool ceil : {false, true}) {
      Model model;
      npu_tensor x = model.Input({2, 6, 15, 14});
      npu_tensor first = model.Pool(x, kind, 3, 2, 1, ceil);
      model.graph.MarkOutput(model.Pool(first, kind, 2, 2, 0, ceil));
      CheckSizes(model, {Symbols()}, true);
    }
  }
  Model model;
  npu_tensor x = model.Input({2, 6, 15, 14});
  model.graph.MarkOutput(model.Pool(x, NPU_POOL_AVERAGE_ADAPTIVE, 4, 0, 0));
  model.graph.MarkOutput(model.Pool(x, NPU_POOL_AVERAGE_ADAPTIVE, 1, 0, 0));
  CheckSizes(model, {Symbols()}, true);
}

TEST(ElementwiseOnMachinesOfManySizes) {
  Model model;
  Dims dims = {5, 12, 17};
  npu_tensor x = model.Input(dims);
  npu_tensor row = model.Input({17});
  npu_tensor column = model.Constant({12, 1});
  npu_tensor a = model.Binary(NPU_VECTOR_ADD, x, row, dims);
  npu_tensor b = model.Binary(NPU_VECTOR_MULTIPLY, a, column, dims);
  npu_tensor c = model.Binary(NPU_VECTOR_SUBTRACT, b, a, dims);
  npu_tensor d = model.Binary(NPU_VECTOR_MAXIMUM, c, c, dims);
  model.graph.MarkOutput(model.Unary(NPU_VECTOR_TANH, d, dims));
  model.graph.MarkOutput(b);
  CheckSizes(model, {Symbols()}, true);
}

TEST(ReduceOnMachinesOfManySizes) {
  for (npu_reduce_kind kind : {NPU_REDUCE_SUM, NPU_REDUCE_MEAN, NPU_REDUCE_MAX, NPU_REDUCE_MIN}) {
    Model model;
    npu_tensor x = model.Input({6, 20, 35});
    npu_tensor bias = model.Constant({20, 1});
    model.graph.MarkOutput(model.Reduce(x, kind, 4, {6, 20, 1}, BiasRelu(bias)));
    model.graph.MarkOutput(model.Reduce(x, kind, 2, {6, 35}));
    model.graph.MarkOutput(model.Reduce(x, kind, 7, {}));
    CheckSizes(model);
  }
}

TEST(ProductsOnMachinesOfManySizes) {
  Model model;
  // Near 1, so that products are neither 0 nor infinite.
  npu_tensor x = model.Unary(NPU_VECTOR_EXP, model.Input({6, 20, 35}), {6, 20, 35});
  npu_tensor bias = model.Constant({20, 1});
  model.graph.MarkOutput(model.Reduce(x, NPU_REDUCE_PRODUCT, 4, {6, 20, 1}, BiasRelu(bias)));
  model.graph.MarkOutput(model.Reduce(x, NPU_REDUCE_PRODUCT, 2, {6, 35}));
  CheckSizes(model);
}

// Partial sums have more bits than the output, and floats have fewer.
TEST(ReduceOfIntegersOnMachinesOfManySizes) {
  for (npu_dtype dtype : {NPU_INT8, NPU_UINT8, NPU_INT32, NPU_INT64, NPU_BOOL}) {
    Model model;
    npu_tensor given = model.Input({6, 20, 35}, dtype);
    npu_tensor bias = model.Input({20, 1}, NPU_INT32);
    // 2 x + 1, so that no product is 0.
    Vector odd = Combine(NPU_VECTOR_ADD, given, given);
    odd.instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, 1});
    odd.instructions.push_back({NPU_VECTOR_ADD, 2, 3, 0, 0});
    npu_tensor x = model.Elementwise(odd, {6, 20, 35}, NPU_INT64);
    for (npu_reduce_kind kind :
         {NPU_REDUCE_SUM, NPU_REDUCE_MAX, NPU_REDUCE_MIN, NPU_REDUCE_PRODUCT}) {
      Vector epilogue = Combine(NPU_VECTOR_ADD, -1, bias);
      model.graph.MarkOutput(model.Reduce(x, kind, 4, {6, 20, 1}, epilogue, NPU_INT64));
      model.graph.MarkOutput(model.Reduce(x, kind, 2, {6, 35}, {}, NPU_INT32));
      model.graph.MarkOutput(model.Reduce(given, kind, 7, {}, {}, dtype));
    }
    CheckSizes(model, {Symbols()}, true);
  }
}

/*! \brief A bias, a multiplier for each channel, a zero point and a range of int8. */
Vector Requantize(npu_tensor bias, npu_tensor multiplier) {
  Vector vector = Combine(NPU_VECTOR_ADD, -1, bias);
  vector.inputs.push_back(multiplier);
  vector.instructions.push_back({NPU_VECTOR_LOAD, 2, 0, 0, 0});
  vector.instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, 40});
  vector.instructions.push_back({NPU_VECTOR_RESCALE, 2, 3, 4, NPU_ROUND_HALF_UP});
  vector.instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, -5});
  vector.instructions.push_back({NPU_VECTOR_ADD, 5, 6, 0, 0});
  vector.instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, -128});
  vector.instructions.push_back({NPU_VECTOR_MAXIMUM, 7, 8, 0, 0});
  vector.instructions.push_back({NPU_VECTOR_CONSTANT, 0, 0, 0, 127});
  vector.instructions.push_back({NPU_VECTOR_MINIMUM, 9, 10, 0, 0});
  return vector;
}

TEST(ProductsOfIntegersOnMachinesOfManySizes) {
  for (npu_dtype left : {NPU_INT8, NPU_UINT8, NPU_INT16}) {
    npu_dtype right = left == NPU_UINT8 ? NPU_UINT8 : NPU_INT8;
    Model model;
    npu_tensor x = model.Input({40, 301}, left);
    npu_tensor w = model.Integers({301, 56}, right, 0, 100);
    npu_tensor y = model.Input({301, 56}, right);
    Vector requantize = Requantize(model.Integers({56}, NPU_INT32, -9999, 9999),
                                   model.Integers({56}, NPU_INT32, 1 << 28, 1 << 30));
    npu_matmul op = {};
    op.a = x;
    op.b = w;
    op.a_zero_point = 7;
    op.b_zero_point = 100;
    op.out = model.Result({40, 56}, NPU_INT8);
    model.graph.MarkOutput(model.Add(op, requantize));
    op.b = y;
    op.out = model.Result({40, 56}, emulator::AccumulatorOf(left));
    model.graph.MarkOutput(model.Add(op));
    // The sum as a float.
    op.out = model.Result({40, 56});
    model.graph.MarkOutput(model.Add(op, BiasRelu(model.Constant({56}))));
    CheckSizes(model);
  }
}

TEST(ProductsOfTwoInt16OnMachinesOfManySizes) {
  for (bool transposed : {false, true}) {
    const Dims right = transposed ? Dims{56, 301} : Dims{301, 56};
    Model model;
    npu_matmul op = {};
    op.a = model.Input({40, 301}, NPU_INT16);
    op.transpose_b = transposed;
    op.a_zero_point = 7;
    for (npu_tensor b :
         {model.Integers(right, NPU_INT16, -32768, 32767), model.Input(right, NPU_INT16)}) {
      op.b = b;
      op.out = model.Result({40, 56}, NPU_INT16);
      Vector requantize = Requantize(model.Integers({56}, NPU_INT64, -9999, 9999),
                                     model.Integers({56}, NPU_INT32, 1 << 13, 1 << 14));
      model.graph.MarkOutput(model.Add(op, requantize));
      op.out = model.Result({40, 56}, NPU_INT64);
      model.graph.MarkOutput(model.Add(op));
    }
    CheckSizes(model);
  }
}

TEST(WeightsOfIntegersOnMachinesOfManySizes) {
  for (int64_t block : {0, 32, 320}) {
    for (npu_dtype dtype : {NPU_INT8, NPU_UINT8}) {
      Model model;
      npu_tensor x = model.Input({40, 320});
      npu_matmul op = {};
      op.a = x;
      op.transpose_b = dtype == NPU_UINT8;
      op.b_bits = block == 32 ? 4 : 8;
      op.b_block = static_cast<int32_t>(block);
      op.b_zero_point = 3;
      op.b = op.transpose_b != 0 ? model.Integers({56, 320}, dtype, 0, 7)
                                 : model.Integers({320, 56}, dtype, 0, 7);
      if (block != 0) {
        op.b_scales = model.Constant({320 / block, 56});
        op.b_zero_points = block == 32 ? model.Integers({10, 56}, dtype, 0, 7) : -1;
      }
      op.out = model.Result({40, 56});
      model.graph.MarkOutput(model.Add(op, BiasRelu(model.Constant({56}))));
      // An input is not packed.
      op.b = op.transpose_b != 0 ? model.Input({56, 320}, dtype) : model.Input({320, 56}, dtype);
      op.b_bits = 8;
      op.out = model.Result({40, 56});
      model.graph.MarkOutput(model.Add(op));
      CheckSizes(model);
    }
  }
}

TEST(WeightsOfFourBitsAreStoredInHalfAByte) {
  int64_t bytes[3];
  for (int bits : {0, 4, 8}) {
    Model model;
    npu_matmul op = {};
    op.a = model.Input({3, 96});
    op.b = bits == 0 ? model.Constant({96, 320}) : model.Integers({96, 320}, NPU_INT8, -8, 7);
    op.b_bits = bits;
    op.out = model.Result({3, 320});
    model.graph.MarkOutput(model.Add(op));
    model.graph.Finish();
    Compiled compiled = emulator::Compile(model.graph, Large());
    bytes[bits / 4] = static_cast<int64_t>(compiled.program.constant_bytes);
  }
  CHECK_EQ(bytes[0], 4 * bytes[2]);
  CHECK_EQ(bytes[0], 8 * bytes[1]);
}

/*! \brief The constants' bytes of a product of integers by this weight, which has its results. */
uint64_t ConstantBytes(Model* model) {
  CheckSizes(*model);
  return emulator::Compile(model->graph, Large()).program.constant_bytes;
}

TEST(ProductsOfIntegersStoreWeightsOfFourBitsInHalfAByte) {
  for (npu_dtype left : {NPU_INT8, NPU_INT16}) {
    for (npu_dtype right : {NPU_INT8, NPU_UINT8}) {
      const int least = right == NPU_INT8 ? -8 : 0;
      uint64_t of_matmul[2], of_convolution[2];
      for (int wide : {0, 1}) {
        // One more does not fit.
        const int most = least + 15 + wide;
        {
          Model model;
          npu_matmul op = {};
          op.a = model.Input({40, 320}, left);
          op.b = model.Integers({320, 56}, right, least, most);
          op.b_zero_point = 2;
          op.out = model.Result({40, 56}, left == NPU_INT8 ? NPU_INT32 : NPU_INT64);
          model.graph.MarkOutput(model.Add(op));
          of_matmul[wide] = ConstantBytes(&model);
        }
        Model model;
        npu_convolution op = {};
        op.data = model.Input({1, 32, 13, 11}, left);
        op.weight = model.Integers({64, 32, 3, 3}, right, least, most);
        op.out = model.Result({1, 64, 11, 9}, left == NPU_INT8 ? NPU_INT32 : NPU_INT64);
        op.spatial_rank = 2;
        for (int i = 0; i < 2; ++i) op.strides[i] = op.dilations[i] = 1;
        op.groups = 1;
        model.graph.MarkOutput(model.Add(op));
        of_convolution[wide] = ConstantBytes(&model);
      }
      CHECK_EQ(2 * of_matmul[0], of_matmul[1]);
      CHECK_EQ(2 * of_convolution[0], of_convolution[1]);
    }
  }
}

TEST(ConvolutionsOfIntegersOnMachinesOfManySizes) {
  for (int64_t groups : {1, 2, 8}) {
    for (npu_dtype dtype : {NPU_INT8, NPU_UINT8}) {
      Model model;
      npu_convolution op = {};
      op.data = model.Input({2, 8, 13, 11}, dtype);
      op.weight = model.Integers({16, 8 / groups, 3, 3}, NPU_INT8, -128, 127);
      op.out = model.Result({2, 16, 7, 6}, NPU_INT8);
      op.spatial_rank = 2;
      op.groups = groups;
      op.data_zero_point = 100;
      for (int i = 0; i < 2; ++i) {
        op.strides[i] = 2;
        op.dilations[i] = op.pads_begin[i] = op.pads_end[i] = 1;
      }
      Vector requantize = Requantize(model.Integers({16, 1, 1}, NPU_INT32, -9999, 9999),
                                     model.Integers({16, 1, 1}, NPU_INT32, 1 << 28, 1 << 30));
      npu_tensor first = model.Add(op, requantize);
      npu_lookup lookup = {0, first, model.Integers({256}, NPU_UINT8, 0, 255),
                           model.Result({2, 16, 7, 6}, NPU_UINT8)};
      op.data = model.Add(lookup);
      op.weight = model.Integers({24, 16, 1, 1}, NPU_UINT8, 0, 255);
      op.weight_zero_point = 128;
      op.groups = 1;
      for (int i = 0; i < 2; ++i) {
        op.strides[i] = 1;
        op.pads_begin[i] = op.pads_end[i] = 0;
      }
      op.out = model.Result({2, 24, 7, 6}, NPU_INT32);
      model.graph.MarkOutput(model.Add(op));
      model.graph.MarkOutput(first);
      CheckSizes(model);
    }
  }
}

TEST(WeightsOfIntegersAreStoredAsTheyAre) {
  int64_t bytes[2];
  for (bool integers : {false, true}) {
    Model model;
    npu_convolution op = {};
    op.data = model.Input({1, 64, 14, 14}, integers ? NPU_INT8 : NPU_FLOAT32);
    op.weight = integers ? model.Integers({64, 64, 3, 3}, NPU_INT8, -128, 127)
                         : model.Constant({64, 64, 3, 3});
    op.out = model.Result({1, 64, 12, 12}, integers ? NPU_INT32 : NPU_FLOAT32);
    op.spatial_rank = 2;
    op.groups = 1;
    for (int i = 0; i < 2; ++i) op.strides[i] = op.dilations[i] = 1;
    model.graph.MarkOutput(model.Add(op));
    npu_matmul matmul = {};
    matmul.a = model.Input({3, 96}, integers ? NPU_INT8 : NPU_FLOAT32);
    matmul.b =
        integers ? model.Integers({96, 320}, NPU_INT8, -128, 127) : model.Constant({96, 320});
    matmul.out = model.Result({3, 320}, integers ? NPU_INT32 : NPU_FLOAT32);
    model.graph.MarkOutput(model.Add(matmul));
    model.graph.Finish();
    Compiled compiled = emulator::Compile(model.graph, Large());
    bytes[integers] = static_cast<int64_t>(compiled.program.constant_bytes);
    // Four times as many products per cycle, and less traffic.
    static uint64_t cycles;
    if (integers) CHECK(Count(compiled).cycles < cycles / 2);
    cycles = Count(compiled).cycles;
  }
  CHECK_EQ(bytes[0], 4 * bytes[1]);
}

TEST(CopiesMoveBoxes) {
  Model model;
  npu_tensor x = model.Input({4, 10, 6});
  npu_tensor y = model.Unary(NPU_VECTOR_EXP, x, {4, 10, 6});
  npu_tensor joined = model.Result({4, 20, 6});
  model.Copy(x, joined, {0, 0, 0});
  model.Copy(y, joined, {0, 10, 0});
  npu_tensor turned = model.Copy(joined, model.Result({6, 4, 20}), {}, {2, 0, 1});
  npu_tensor padded = model.Copy(y, model.Result({6, 12, 8}), {1, 2, 1}, {}, true);
  model.graph.MarkOutput(model.Unary(NPU_VECTOR_TANH, turned, {6, 4, 20}));
  model.graph.MarkOutput(model.Unary(NPU_VECTOR_TANH, padded, {6, 12, 8}));
  model.graph.MarkOutput(joined);
  model.graph.MarkOutput(padded);
  CheckSizes(model, {Symbols()}, true);
}

TEST(CopiesTakeSteps) {
  Model model;
  npu_tensor x = model.Input({4, 10, 6});
  npu_tensor y = model.Unary(NPU_VECTOR_EXP, x, {4, 10, 6});
  npu_copy op = {};
  for (int32_t d = 0; d < NPU_MAX_RANK; ++d) {
    op.permutation[d] = d;
    op.data_step[d] = op.out_step[d] = 1;
  }
  op.data = y;
  op.data_offset[1] = 9;
  op.data_step[1] = -1;
  op.data_offset[2] = 1;
  op.data_step[2] = 2;
  op.out = model.Result({4, 10, 3});
  npu_tensor flipped = model.Add(op);
  op.data = flipped;
  op.data_offset[2] = 0;
  op.data_step[2] = 1;
  op.out_offset[2] = 1;
  op.out_step[2] = 3;
  op.fill = 1;
  op.out = model.Result({4, 12, 9});
  npu_tensor spread = model.Add(op);
  model.graph.MarkOutput(flipped);
  model.graph.MarkOutput(model.Unary(NPU_VECTOR_TANH, spread, {4, 12, 9}));
  model.graph.MarkOutput(spread);
  CheckSizes(model, {Symbols()}, true);
}

TEST(CopiesOfConstantsAreDoneByTheCompiler) {
  Model model;
  npu_tensor x = model.Input({1, 8, 9, 9});
  // The weight of a transposed convolution, transposed and flipped.
  npu_copy op = {};
  op.data = model.Constant({8, 6, 3, 3});
  for (int32_t d = 0; d < NPU_MAX_RANK; ++d) {
    op.permutation[d] = d < 2 ? 1 - d : d;
    op.data_step[d] = op.out_step[d] = 1;
  }
  op.data_offset[2] = op.data_offset[3] = 2;
  op.data_step[2] = op.data_step[3] = -1;
  op.out = model.Result({6, 8, 3, 3});
  npu_convolution convolution = {};
  convolution.data = x;
  convolution.weight = model.Add(op);
  convolution.spatial_rank = 2;
  convolution.groups = 1;
  std::fill_n(convolution.strides, NPU_MAX_SPATIAL, 1);
  std::fill_n(convolution.dilations, NPU_MAX_SPATIAL, 1);
  convolution.out = model.Result({1, 6, 7, 7});
  model.graph.MarkOutput(model.Add(convolution));
  // In parts, through a view, and as an output.
  npu_tensor joined = model.Result({4, 6});
  model.Copy(model.View(model.Constant({12}), {2, 6}), joined, {2, 0}, {}, true);
  model.Copy(model.Constant({1, 6}), joined);
  npu_tensor turned = model.Copy(joined, model.Result({6, 4}), {}, {1, 0});
  model.graph.MarkOutput(turned);
  // With a computed operand, it is not constant.
  npu_tensor mixed = model.Result({2, 6});
  model.Copy(model.Constant({1, 6}), mixed);
  model.Copy(model.Input({1, 6}), mixed, {1, 0});
  model.graph.MarkOutput(mixed);

  model.graph.Finish();
  const Symbols none = {};
  std::vector<Bytes> inputs = Inputs(model.graph, none);
  Expected before(model.graph, inputs, none);
  auto values = [&](const Expected& expected) {
    std::vector<Bytes> all;
    for (npu_tensor output : model.graph.outputs()) {
      TensorView view = expected(output);
      auto* bytes = static_cast<const uint8_t*>(view.data);
      all.emplace_back(bytes, bytes + BytesOf(view));
    }
    return all;
  };
  std::vector<Bytes> want = values(before);
  size_t operations = model.graph.operations().size();
  model.graph.FoldCopies();
  CHECK_EQ(model.graph.operations().size(), operations - 4);
  CHECK(values(Expected(model.graph, inputs, none)) == want);
  CheckSizes(model);
  Compiled compiled = emulator::Compile(model.graph, Large());
  size_t packed = 0;
  for (const Tensor& tensor : compiled.program.tensors) packed += tensor.packed_bytes > 0;
  CHECK(packed > 0);
  for (const Command& command : compiled.program.commands) {
    auto* move = std::get_if<Transfer>(&command.op);
    if (move == nullptr) continue;
    for (int32_t d = 0; d < NPU_MAX_RANK; ++d) {
      CHECK(move->permutation[d] == d && move->data_step[d] == 1);
    }
  }
}

TEST(GathersReadTheirTableWhereItIs) {
  Model model;
  int32_t n = model.graph.AddSymbol("n", 12);
  npu_tensor table = model.Constant({1000, 24});
  npu_tensor tokens = model.Input({Dim(1, n), 5}, NPU_INT64);
  Dims dims = {Dim(1, n), 5, 24};
  npu_tensor embedded = model.Add(npu_gather{0, table, tokens, model.Result(dims), 0, 0});
  npu_tensor sum = model.Binary(NPU_VECTOR_ADD, embedded, embedded, dims);
  npu_tensor columns = model.Input({3}, NPU_INT32);
  Dims few = {Dim(1, n), 5, 3};
  npu_tensor picked = model.Add(npu_gather{0, sum, columns, model.Result(few), 2, 0});
  npu_tensor places = model.Input(few, NPU_INT32);
  npu_tensor elements = model.Add(npu_gather{0, sum, places, model.Result(few), 2, 1});
  // Along a dimension whose size is known at the call.
  npu_tensor first = model.Add(npu_gather{0, sum, columns, model.Result({3, 5, 24}), 0, 0});
  for (npu_tensor out : {picked, elements, first, embedded}) model.graph.MarkOutput(out);
  CheckSizes(model, {Symbols{1}, {7}, {12}}, true);
  // Gathered elements have the dtype of the data, also if it is stored as float16.
  Machine half = WithScratchpad(16384);
  half.precision = emulator::Precision::kFloat16;
  Check(model, half, {7}, false, 2e-3);
  Compiled compiled = emulator::Compile(model.graph, WithScratchpad(16384));
  for (const Tensor& tensor : compiled.program.tensors) {
    bool inside = tensor.place.memory == Memory::kScratchpad;
    CHECK(!inside || tensor.desc.rank != 2 || tensor.desc.dims[0].size != 1000);
  }
  CHECK(Count(compiled, {1}).dram_bytes_read < 24 * 1000);
}

TEST(UpdatesReplaceSlicesOfACopy) {
  Model model;
  npu_tensor data = model.Input({2, 64, 4});
  npu_tensor rows = model.Input({40}, NPU_INT64);
  npu_tensor given = model.Input({2, 40, 4});
  npu_tensor value = model.Binary(NPU_VECTOR_ADD, given, given, {2, 40, 4});
  npu_tensor out = model.Add(npu_update{0, data, value, rows, model.Result({2, 64, 4}), 1});
  npu_tensor again = model.Add(npu_update{0, out, given, rows, model.Result({2, 64, 4}), 1});
  npu_tensor sum = model.Binary(NPU_VECTOR_ADD, out, again, {2, 64, 4});
  for (npu_tensor result : {sum, again}) model.graph.MarkOutput(result);
  CheckSizes(model, {Symbols()}, true);
}

TEST(RowsAreScannedAndOrdered) {
  Model model;
  int32_t n = model.graph.AddSymbol("n", 9);
  Dims dims = {Dim(1, n), 40, 12};
  npu_tensor x = model.Input(dims);
  npu_tensor y = model.Unary(NPU_VECTOR_TANH, x, dims);
  npu_tensor counts = model.Input({30, 6}, NPU_INT64);
  for (int32_t axis = 0; axis < 3; ++axis) {
    npu_tensor sums = model.Result(dims);
    model.graph.MarkOutput(model.Add(npu_scan{0, y, sums, NPU_SCAN_SUM, axis, axis % 2}));
    npu_tensor order = model.Result(dims, NPU_INT32);
    model.graph.MarkOutput(model.Add(npu_order{0, y, order, axis, axis % 2}));
    Dims one = dims;
    one[axis] = 1;
    order = model.Result(one, NPU_INT64);
    model.graph.MarkOutput(model.Add(npu_order{0, y, order, axis, 1}));
  }
  npu_tensor first = model.Result({3, 6}, NPU_INT32);
  model.graph.MarkOutput(model.Add(npu_order{0, counts, first, 0, 1}));
  npu_tensor product = model.Result({30, 6}, NPU_INT64);
  model.graph.MarkOutput(model.Add(npu_scan{0, counts, product, NPU_SCAN_PRODUCT, 1, 0}));
  CheckSizes(model, {Symbols{1}, {4}, {9}});
}

TEST(OutputsOfEveryKind) {
  Model model;
  npu_tensor x = model.Input({8, 9});
  npu_tensor w = model.Constant({9, 9});
  npu_tensor y = model.MatMul(x, w, {8, 9});
  npu_tensor flat = model.View(y, {72});
  for (npu_tensor output : {x, w, y, flat, y, model.View(x, {9, 8})}) {
    model.graph.MarkOutput(output);
  }
  model.graph.MarkOutput(model.MatMul(y, y, {8, 8}, {}, false, true));
  CheckSizes(model);
}

// ---- Symbols ----

TEST(SymbolsAtOneMiddleAndBound) {
  Model model;
  int32_t n = model.graph.AddSymbol("n", 9);
  int32_t m = model.graph.AddSymbol("m", 13);
  npu_tensor image = model.Input({Dim(1, n), 4, 8, 8});
  npu_tensor tokens = model.Input({Dim(1, n), Dim(2, m), 16});
  npu_tensor conv = model.Conv(image, 8, 3, 2, 1, 1, BiasRelu(model.Constant({8, 1, 1})));
  npu_tensor pool = model.Pool(conv, NPU_POOL_AVERAGE_ADAPTIVE, 1, 0, 0);
  npu_tensor flat = model.View(pool, {Dim(1, n), 1, 8});
  npu_tensor key = model.MatMul(tokens, model.Constant({16, 8}), {Dim(1, n), Dim(2, m), 8});
  Dims square = {Dim(1, n), Dim(2, m), Dim(2, m)};
  npu_tensor scores = model.MatMul(key, key, square, {}, false, true);
  npu_tensor most = model.Reduce(scores, NPU_REDUCE_MAX, 4, {Dim(1, n), Dim(2, m), 1});
  npu_tensor shifted = model.Binary(NPU_VECTOR_SUBTRACT, scores, most, square);
  npu_tensor power = model.Unary(NPU_VECTOR_EXP, shifted, square);
  npu_tensor sum = model.Reduce(power, NPU_REDUCE_SUM, 4, {Dim(1, n), Dim(2, m), 1});
  npu_tensor weights = model.Binary(NPU_VECTOR_DIVIDE, power, sum, square);
  npu_tensor mixed = model.MatMul(weights, key, {Dim(1, n), Dim(2, m), 8});
  npu_tensor both = model.Binary(NPU_VECTOR_ADD, mixed, flat, {Dim(1, n), Dim(2, m), 8});
  npu_tensor lines = model.View(both, {Dim(2, m), Dim(1, n), 8});
  model.graph.MarkOutput(model.Reduce(lines, NPU_REDUCE_MEAN, 2, {Dim(2, m), 8}));
  model.graph.MarkOutput(model.Copy(both, model.Result({8, Dim(1, n), Dim(2, m)}), {}, {2, 0, 1}));
  model.graph.MarkOutput(both);
  CheckSizes(model, {Symbols{1, 1}, {4, 7}, {9, 13}, {9, 1}, {1, 13}});
}

TEST(SymbolicSumsInParts) {
  Model model;
  int32_t n = model.graph.AddSymbol("n", 500);
  npu_tensor x = model.Input({3, Dim(1, n)});
  npu_tensor y = model.Input({Dim(1, n), 3});
  for (npu_reduce_kind kind : {NPU_REDUCE_SUM, NPU_REDUCE_MAX, NPU_REDUCE_MIN}) {
    model.graph.MarkOutput(model.Reduce(x, kind, 2, {3}));
  }
  npu_tensor whole = model.Input({3, Dim(1, n)}, NPU_INT8);
  for (npu_reduce_kind kind :
       {NPU_REDUCE_SUM, NPU_REDUCE_MAX, NPU_REDUCE_MIN, NPU_REDUCE_PRODUCT}) {
    model.graph.MarkOutput(model.Reduce(whole, kind, 2, {3}, {}, NPU_INT8));
  }
  model.graph.MarkOutput(model.MatMul(x, y, {3, 3}));
  CheckSizes(model, {Symbols{1}, {37}, {500}});
}

// ---- Networks ----

/*! \brief ResNet-18 for images of this size, with an option for fewer channels. */
void AddResNet18(Model* model, int64_t size, int64_t width, npu_dim batch = {1, -1}) {
  auto bias = [&](int64_t features) { return BiasRelu(model->Constant({1, features, 1, 1})); };
  npu_tensor x = model->Input({Dim(batch.size, batch.symbol), 3, size, size});
  x = model->Conv(x, width, 7, 2, 3, 1, bias(width));
  x = model->Pool(x, NPU_POOL_MAX, 3, 2, 1);
  for (int64_t features = width, stage = 0; stage < 4; ++stage, features *= 2) {
    for (int block = 0; block < 2; ++block) {
      int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      npu_tensor main = model->Conv(x, features, 3, stride, 1, 1, bias(features));
      if (stride == 2) x = model->Conv(x, features, 1, 2, 0, 1, {});
      x = model->Conv(main, features, 3, 1, 1, 1, BiasRelu(x));
    }
  }
  x = model->Pool(x, NPU_POOL_AVERAGE_ADAPTIVE, 1, 0, 0);
  Dims flat = {Dim(batch.size, batch.symbol), 8 * width};
  x = model->View(x, flat);
  Dims classes = {Dim(batch.size, batch.symbol), 1000};
  npu_tensor bias_of_classes = model->Constant({1000});
  npu_tensor scores = model->MatMul(x, model->Constant({1000, 8 * width}, 8 * width), classes,
                                    Combine(NPU_VECTOR_ADD, -1, bias_of_classes), false, true);
  model->graph.MarkOutput(scores);
}

/*! \brief MobileNetV2. */
void AddMobileNetV2(Model* model, int64_t size) {
  auto bias = [&](int64_t features) { return BiasRelu(model->Constant({1, features, 1, 1})); };
  npu_tensor x = model->Input({1, 3, size, size});
  x = model->Conv(x, 32, 3, 2, 1, 1, bias(32));
  const int64_t stages[][4] = {// Expansion, channels, blocks, stride.
                               {1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                               {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  int64_t channels = 32;
  for (const auto& [expansion, features, blocks, first_stride] : stages) {
    for (int64_t block = 0; block < blocks; ++block) {
      int64_t stride = block == 0 ? first_stride : 1;
      int64_t wide = channels * expansion;
      npu_tensor y = x;
      if (expansion > 1) y = model->Conv(y, wide, 1, 1, 0, 1, bias(wide));
      y = model->Conv(y, wide, 3, stride, 1, wide, bias(wide));
      bool residual = stride == 1 && channels == features;
      x = model->Conv(y, features, 1, 1, 0, 1, residual ? BiasRelu(x) : Vector());
      channels = features;
    }
  }
  x = model->Conv(x, 1280, 1, 1, 0, 1, bias(1280));
  x = model->View(model->Pool(x, NPU_POOL_AVERAGE_ADAPTIVE, 1, 0, 0), {1, 1280});
  model->graph.MarkOutput(model->MatMul(x, model->Constant({1280, 1000}, 1280), {1, 1000}));
}

TEST(NetworksComputeTheSameOnSmallMachines) {
  Model resnet;
  AddResNet18(&resnet, 32, 8);
  for (int64_t kilobytes : {8, 20, 64, 300}) Check(resnet, WithScratchpad(kilobytes << 10));
  Model mobilenet;
  AddMobileNetV2(&mobilenet, 32);
  for (int64_t kilobytes : {8, 40, 300}) Check(mobilenet, WithScratchpad(kilobytes << 10));
}

TEST(ArenasAreNearTheLowerBound) {
  Model resnet;
  AddResNet18(&resnet, 224, 64);
  Model mobilenet;
  AddMobileNetV2(&mobilenet, 224);
  for (const Model* model : {&resnet, &mobilenet}) {
    for (int64_t kilobytes : {16, 64, 256, 1024, 4096}) {
      Compiled compiled = emulator::Compile(model->graph, WithScratchpad(kilobytes << 10));
      const Program& program = compiled.program;
      CHECK(program.arena_bytes >= program.arena_lower_bound);
      CHECK(program.arena_bytes <= program.arena_lower_bound * 11 / 10);
      CHECK_EQ(program.arena_bytes == 0, kilobytes == 4096 && model == &resnet);
    }
  }
}

TEST(TransfersOverlapWithWork) {
  Model resnet;
  AddResNet18(&resnet, 224, 64);
  for (int64_t kilobytes : {64, 256, 1024, 4096, 16384}) {
    RunCounters counters = Count(emulator::Compile(resnet.graph, WithScratchpad(kilobytes << 10)));
    uint64_t sum = 0;
    uint64_t most = 0;
    for (uint64_t cycles : counters.busy_cycles) {
      sum += cycles;
      most = std::max(most, cycles);
    }
    CHECK(counters.cycles >= most);
    CHECK(counters.cycles < sum * 4 / 5);
  }
}

TEST(MoreCoresTakeFewerCycles) {
  Model model;
  npu_tensor x = model.Input({1, 64, 56, 56});
  x = model.Conv(x, 64, 3, 1, 1);
  model.graph.MarkOutput(model.Conv(x, 64, 3, 1, 1));
  Machine machine;
  uint64_t one = Count(emulator::Compile(model.graph, machine)).cycles;
  machine.cores = 4;
  uint64_t four = Count(emulator::Compile(model.graph, machine)).cycles;
  CHECK(four < one * 3 / 4);
}

TEST(ValuesStayWhereTheyFit) {
  // On a machine with room for it, a chain only moves its input and its output.
  Model model;
  npu_tensor x = model.Input({64, 64});
  for (int i = 0; i < 20; ++i) x = model.Unary(NPU_VECTOR_TANH, x, {64, 64});
  model.graph.MarkOutput(x);
  RunCounters counters = Check(model, WithScratchpad(100 << 10));
  CHECK_EQ(counters.dram_bytes_read, uint64_t{4 * 64 * 64});
  CHECK_EQ(counters.dram_bytes_written, uint64_t{4 * 64 * 64});
  CHECK_EQ(counters.arena_bytes, uint64_t{0});
  // Without the room, every value moves, and the arena holds two at a time.
  counters = Check(model, WithScratchpad(4 << 10));
  CHECK_EQ(counters.dram_bytes_read, uint64_t{20 * 4 * 64 * 64});
  CHECK_EQ(counters.arena_bytes, uint64_t{2 * 4 * 64 * 64});
}

TEST(ConstantsAreStoredOnce) {
  Model model;
  npu_tensor x = model.Input({40, 64});
  npu_tensor weight = model.Constant({64, 64});
  npu_tensor unused = model.Constant({100, 100});
  model.Unary(NPU_VECTOR_EXP, unused, {100, 100});
  npu_tensor y = model.MatMul(x, weight, {40, 64});
  model.graph.MarkOutput(model.MatMul(y, weight, {40, 64}));
  for (int64_t bytes : {8 << 10, 4 << 20}) {
    Compiled compiled = emulator::Compile(model.graph, WithScratchpad(bytes));
    CHECK(compiled.program.constant_bytes < 2 * 4 * 64 * 64);
    Check(model, WithScratchpad(bytes));
  }
}

TEST(IntermediatesAsFloat16) {
  Model model;
  npu_tensor x = model.Input({1, 8, 20, 20});
  npu_tensor first = model.Conv(x, 16, 3, 1, 1, 1, BiasRelu(model.Constant({1, 16, 1, 1})));
  npu_tensor pool = model.Pool(first, NPU_POOL_AVERAGE, 2, 2, 0);
  npu_tensor second = model.Conv(pool, 16, 3, 1, 1, 16, BiasRelu(pool));
  npu_tensor both = model.Result({1, 32, 10, 10});
  model.Copy(pool, both);
  model.Copy(second, both, {0, 16, 0, 0});
  npu_tensor mixed = model.Conv(both, 8, 1, 1, 0);
  npu_tensor kept = model.Result({1, 9, 10, 10});
  model.Copy(mixed, kept, {0, 1, 0, 0}, {}, true);
  model.graph.MarkOutput(kept);
  Dims flat = {32, 100};
  npu_tensor matrix = model.View(both, flat);
  model.graph.MarkOutput(model.MatMul(matrix, matrix, {32, 32}, {}, false, true));
  Machine machine;
  machine.precision = emulator::Precision::kFloat16;
  Compiled compiled = emulator::Compile(model.graph, machine);
  int halves = 0;
  for (const Tensor& tensor : compiled.program.tensors) {
    bool half = tensor.desc.dtype == NPU_FLOAT16;
    CHECK(!half || tensor.place.memory >= Memory::kArena);
    halves += half;
  }
  CHECK(halves >= 4);
  int64_t least = SmallestScratchpad(model.graph, machine);
  for (int64_t bytes : {least, 2 * least, 4 * least, 10 * least, int64_t{4} << 20}) {
    machine.scratchpad_bytes = bytes;
    Check(model, machine, {}, false, 1e-2);
  }
}

TEST(LimitOfTiles) {
  Model model;
  npu_tensor x = model.Input({4, 8, 20, 20});
  npu_tensor conv = model.Conv(x, 16, 3, 1, 1, 1, BiasRelu(model.Constant({1, 16, 1, 1})));
  npu_tensor sum = model.Binary(NPU_VECTOR_ADD, conv, conv, {4, 16, 20, 20});
  model.graph.MarkOutput(model.Reduce(sum, NPU_REDUCE_MEAN, 12, {4, 16}));
  Machine machine;
  for (int64_t bytes : {3000, 10000, 30000}) {
    machine.max_tile_bytes = bytes;
    Check(model, machine);
  }
}

/*! \brief The compiler's error for a machine that is too small. */
std::string Refusal(const Model& model, const Machine& machine) {
  try {
    emulator::Compile(model.graph, machine);
  } catch (const Error& error) {
    CHECK_EQ(error.status, NPU_OUT_OF_MEMORY);
    return error.what();
  }
  return "";
}

TEST(SentencesAboutTooLittleMemory) {
  Model model;
  npu_tensor x = model.Input({1, 4, 8, 1000});
  model.graph.SetLabel("conv2d (lv3)");
  model.graph.MarkOutput(model.Conv(x, 8, 3, 1, 1));
  CHECK_EQ(Refusal(model, WithScratchpad(4096)),
           "The convolution conv2d (lv3) needs at least 16384 bytes of the scratchpad for its "
           "smallest tiles, but there are 4096: 12288 bytes are missing. Raise the option "
           "scratchpad_bytes.");
  CHECK_EQ(Refusal(model, WithScratchpad(16383)).empty(), false);
  CHECK_EQ(Refusal(model, WithScratchpad(16384)), "");
  Machine machine;
  machine.max_tile_bytes = 10000;
  CHECK_EQ(Refusal(model, machine),
           "The convolution conv2d (lv3) needs at least 12000 bytes of the scratchpad for a tile, "
           "but there are 10000: 2000 bytes are missing. Raise the option max_tile_bytes.");
  machine = Machine();
  machine.dram_bytes = 385000;
  CHECK_EQ(Refusal(model, machine),
           "The program needs at least 385152 bytes of DRAM (1152 for constants, 128000 for "
           "inputs, 256000 "
           "for outputs, 0 for intermediates), but there are 385000: 152 bytes are missing. "
           "Raise the option dram_bytes.");
  // The error must not take millions of tiles to find.
  Model huge;
  Dims dims = {1 << 20, 1 << 20};
  huge.graph.MarkOutput(huge.Unary(NPU_VECTOR_EXP, huge.Input(dims), dims));
  CHECK(Refusal(huge, Machine()).find("Raise the option dram_bytes") != std::string::npos);
  Model inside;
  npu_tensor small = inside.Input({1 << 20, 1});
  npu_tensor large = inside.MatMul(small, inside.Input({1, 1 << 20}), dims);
  inside.graph.MarkOutput(inside.Reduce(large, NPU_REDUCE_SUM, 3, {}));
  CHECK(Refusal(inside, Machine()).find("for intermediates") != std::string::npos);
  // Small tensors are loaded as a whole, unless everything fits only without that.
  Model sum;
  Vector vector = Combine(NPU_VECTOR_ADD, sum.Input({64}), sum.Input({64}));
  for (int32_t i = 2; i < NPU_MAX_VECTOR_INPUTS; ++i) {
    vector.inputs.push_back(sum.Input({64}));
    auto last = static_cast<int32_t>(vector.instructions.size()) - 1;
    vector.instructions.push_back({NPU_VECTOR_LOAD, i, 0, 0, 0});
    vector.instructions.push_back({NPU_VECTOR_ADD, last, last + 1, 0, 0});
  }
  sum.graph.MarkOutput(sum.Elementwise(vector, {64}));
  CHECK(Refusal(sum, WithScratchpad(1087)).find(" 1088 bytes") != std::string::npos);
  Check(sum, WithScratchpad(1088));
  // The rows of a mean over an unknown size cannot be tiled.
  Model symbolic;
  int32_t n = symbolic.graph.AddSymbol("n", 10000);
  npu_tensor rows = symbolic.Input({2, Dim(1, n)});
  symbolic.graph.MarkOutput(symbolic.Reduce(rows, NPU_REDUCE_MEAN, 2, {2}));
  CHECK(Refusal(symbolic, WithScratchpad(10000)).find("scratchpad_bytes") != std::string::npos);
  Check(symbolic, WithScratchpad(50000), {9999});
}

TEST(RandomGraphsOnRandomMachines) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    auto pick = [&](int64_t from, int64_t to) {
      return from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from + 1));
    };
    Model model;
    int32_t n = -1;
    Symbols symbols;
    if (pick(0, 1) == 1) {
      n = model.graph.AddSymbol("n", pick(1, 5));
      symbols.push_back(pick(1, model.graph.symbols()[0].bound));
    }
    Dim batch(n < 0 ? pick(1, 3) : 1, n);
    std::vector<npu_tensor> tensors = {
        model.Input({batch, 4 * pick(1, 3), pick(3, 9), pick(3, 9)})};
    for (int64_t count = pick(2, 12); count > 0; --count) {
      npu_tensor x = tensors[random() % tensors.size()];
      Dims dims = model.Shape(x);
      Vector epilogue;
      switch (pick(0, 8)) {
        case 0:
        case 1: {
          int64_t groups = pick(0, 1) == 1 ? 1 : pick(0, 1) == 1 ? 2 : dims[1].size;
          int64_t window = pick(1, std::min<int64_t>(3, std::min(dims[2].size, dims[3].size)));
          int64_t features = groups * pick(1, 5);
          if (pick(0, 1) == 1) epilogue = BiasRelu(model.Constant({1, features, 1, 1}));
          if (dims[1].size % groups != 0) groups = 1;
          tensors.push_back(
              model.Conv(x, features, window, pick(1, 2), pick(0, 1), groups, epilogue));
          break;
        }
        case 2: {
          int64_t window = pick(1, std::min<int64_t>(3, std::min(dims[2].size, dims[3].size)));
          auto kind = static_cast<npu_pool_kind>(pick(0, 3));
          tensors.push_back(
              model.Pool(x, kind, window, pick(1, 2), std::min<int64_t>(window / 2, pick(0, 1))));
          break;
        }
        case 3:
          tensors.push_back(model.Unary(NPU_VECTOR_TANH, x, dims));
          break;
        case 4: {
          npu_tensor scale = model.Constant({1, dims[1], 1, dims[3]});
          tensors.push_back(model.Binary(NPU_VECTOR_MULTIPLY, x, scale, dims));
          break;
        }
        case 5: {
          npu_tensor other = model.Binary(NPU_VECTOR_MAXIMUM, x, x, dims);
          tensors.push_back(model.Binary(NPU_VECTOR_SUBTRACT, other, x, dims));
          break;
        }
        case 6: {
          Dims kept = dims;
          kept[3] = 1;
          auto kind = static_cast<npu_reduce_kind>(pick(0, 3));
          npu_tensor most = model.Reduce(x, kind, 8, kept);
          tensors.push_back(model.Binary(NPU_VECTOR_ADD, x, most, dims));
          break;
        }
        case 7: {
          Dims product = {dims[0], dims[1], dims[2], dims[2]};
          tensors.push_back(model.MatMul(x, x, product, {}, false, true));
          break;
        }
        default: {
          Dims joined = dims;
          joined[1] = 2 * dims[1].size;
          npu_tensor out = model.Result(joined);
          model.Copy(x, out);
          model.Copy(model.Unary(NPU_VECTOR_SIGMOID, x, dims), out, {0, dims[1].size, 0, 0});
          tensors.push_back(out);
        }
      }
      // Keeps values near 1.
      npu_tensor last = tensors.back();
      tensors.back() = model.Unary(NPU_VECTOR_TANH, last, model.Shape(last));
    }
    model.graph.MarkOutput(tensors.back());
    model.graph.MarkOutput(tensors[random() % tensors.size()]);
    for (int i = 0; i < 3; ++i) {
      Machine machine;
      machine.cores = static_cast<int32_t>(pick(1, 4));
      bool half = pick(0, 2) == 0;
      if (half) machine.precision = emulator::Precision::kFloat16;
      int64_t least = SmallestScratchpad(model.graph, machine);
      machine.scratchpad_bytes = least + pick(0, 8 * least);
      Check(model, machine, symbols, false, half ? 2e-2 : 1e-4);
    }
  }
}

}  // namespace

int main(int count, char** arguments) { return check::RunTests(count, arguments); }
