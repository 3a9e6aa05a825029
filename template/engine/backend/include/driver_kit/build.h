// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/build.h
 * \brief Everything in the build half of a driver except the SDK's part: tensors, views, constants,
 * the steps of epilogues, options, reasons.
 *
 * \code
 * std::string Reason(const npu::kit::Program& program, const npu::kit::Node& node) { ... }
 *
 * constexpr npu::kit::Driver kDriver = {"acme_npu", "1.0", Reason};
 *
 * const npu_build_api* npu_driver_build(uint32_t) {
 *   static const npu_build_api api = npu::kit::BuildTable<kDriver>();
 *   return &api;
 * }
 * \endcode
 */
#ifndef DRIVER_KIT_BUILD_H_
#define DRIVER_KIT_BUILD_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver_kit/program.h"

namespace npu::kit {

/*! \brief The driver's answers to the kit. It may grow at its end. */
struct Driver {
  const char* name;
  const char* release;
  /*! \brief Why the SDK has no such node, or "" if it has one. If a node with a bias or limits is
   *  declined, the kit asks again without them. */
  std::string (*reason)(const Program& program, const Node& node);
  const npu_option_info* options = nullptr;
  size_t option_count = 0;
  /*! \brief Whether convolutions and pools want [N, spatial..., C], and weights [O, spatial..., I].
   */
  bool channels_last = false;
  /*! \brief Makes the bytes of a program, or declines it; NULL: `Serialize`. */
  std::vector<uint8_t> (*compile)(const Program& program) = nullptr;
  /*! \brief Whether `reason` knows products of integers with their zero points, NPU_STEP_RESCALE
   * and lookups; otherwise they are declined. In programs of integers, all values but the last are
   * then int64, except accumulators. */
  bool integers = false;
  /*! \brief Whether `reason` knows kQuantize and kDequantize, also with scales or zero points by
   * channel; otherwise they are declined. Scales and zero points that are not constant are always
   * declined. */
  bool quantization = false;
};

/*! \brief A tensor of the builder. */
struct Tensor {
  /*! \brief As the caller sees it; for an input, with its number. */
  Value port = {};
  /*! \brief For a constant. */
  const void* data = nullptr;
  /*! \brief The tensor that owns its elements: itself, unless it is a view. */
  npu_tensor root = -1;
  /*! \brief Its value, once something reads or has written it. */
  int32_t value = -1;
};

/*! \brief Elements that a program will have, copied when it is complete. */
struct Piece {
  Value value;
  const void* data;
  double number;
};

/*! \brief Turns the engine's operations into nodes. */
struct Builder {
  const Driver* driver = nullptr;
  Program program;
  std::vector<Tensor> tensors;
  std::vector<Piece> constants;
  std::vector<uint8_t> bytes;
  std::string error;
  /*! \brief The label of the operations that follow. */
  std::string label;

  // ---- Tensors and values ----

  Tensor& At(npu_tensor id) {
    if (id < 0 || static_cast<size_t>(id) >= tensors.size()) {
      Refuse("there is no tensor " + std::to_string(id));
    }
    return tensors[static_cast<size_t>(id)];
  }

  Dims DimsOf(npu_tensor id) { return kit::DimsOf(At(id).port); }

  npu_tensor AddTensor(const npu_tensor_desc* desc, Source source) {
    Tensor tensor;
    tensor.port = MakeValue(source, desc->dtype, {}, 0);
    if (desc->rank < 0 || desc->rank > NPU_MAX_RANK) Refuse("a tensor has no such rank");
    tensor.port.rank = desc->rank;
    for (int32_t i = 0; i < desc->rank; ++i) {
      if (desc->dims[i].symbol >= 0) Decline("sizes must be fixed");
      if (desc->dims[i].size < 1) Decline("a tensor must have elements");
      tensor.port.dims[i] = desc->dims[i].size;
    }
    tensor.root = static_cast<npu_tensor>(tensors.size());
    tensors.push_back(tensor);
    return tensor.root;
  }

  npu_tensor AddView(npu_tensor data, const Dims& dims) {
    Tensor view = At(data);
    const int64_t count = CountOf(view.port);
    view.value = -1;
    view.port.rank = static_cast<int32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), view.port.dims);
    if (CountOf(view.port) != count) Refuse("a view has other elements");
    tensors.push_back(view);
    return static_cast<npu_tensor>(tensors.size() - 1);
  }

  static Value MakeValue(Source source, npu_dtype dtype, const Dims& dims, int64_t place) {
    Value value = {};
    value.source = source;
    value.dtype = dtype;
    value.rank = static_cast<int32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), value.dims);
    value.place = place;
    return value;
  }

  int32_t AddValue(Source source, npu_dtype dtype, const Dims& dims, int64_t place) {
    program.values.push_back(MakeValue(source, dtype, dims, place));
    return static_cast<int32_t>(program.values.size() - 1);
  }

  int32_t AddConstant(npu_dtype dtype, const Dims& dims, const void* data, double number = 0) {
    const size_t place = program.constant_bytes;
    const int32_t id = AddValue(Source::kConstant, dtype, dims, static_cast<int64_t>(place));
    constants.push_back({program.At(id), data, number});
    program.constant_bytes = Aligned(place + BytesOf(program.At(id)) + kAlignment);
    return id;
  }

  /*! \brief Removes the last constant. */
  void DropConstant() {
    program.constant_bytes = static_cast<size_t>(constants.back().value.place);
    constants.pop_back();
    program.values.pop_back();
  }

  /*! \brief The value of a tensor that an operation reads. */
  int32_t Read(npu_tensor id) {
    if (At(id).value >= 0) return At(id).value;
    const Dims dims = DimsOf(id);
    const npu_tensor root = At(id).root;
    const npu_dtype dtype = At(id).port.dtype;
    int32_t value = -1;
    switch (At(id).port.source) {
      case Source::kInput:
        // A view of an input is the same input.
        value = AddValue(Source::kInput, dtype, dims, At(root).port.place);
        break;
      case Source::kConstant:
        value = AddConstant(dtype, dims, At(id).data);
        break;
      case Source::kNode: {
        const int32_t from = At(root).value;
        if (from < 0) Refuse("a tensor is read before it is written");
        value = from;
        if (kit::DimsOf(program.At(from)) != dims) {
          Node node = MakeNode(Kind::kReshape);
          node.inputs[0] = from;
          value = AddNode(node, dtype, dims);
        }
      }
    }
    return At(id).value = value;
  }

  /*! \brief Sets the value of a tensor from now on. */
  void Write(npu_tensor id, int32_t value) {
    Tensor& tensor = At(id);
    if (tensor.port.source != Source::kNode || tensor.value >= 0) {
      Refuse("a tensor is written twice");
    }
    if (tensor.root != id) Decline("an operation writes into a view");
    if (kit::DimsOf(program.At(value)) != DimsOf(id)) {
      Decline("a result is broadcast, for which there is no node");
    }
    tensor.value = value;
  }

  // ---- Nodes ----

  /*! \brief Whether the driver takes a node with such a result. */
  bool Takes(Node node, npu_dtype dtype, const Dims& dims) {
    node.out = AddValue(Source::kNode, dtype, dims, 0);
    const bool taken = driver->reason(program, node).empty();
    program.values.pop_back();
    return taken;
  }

  /*! \brief Adds a node whose result has these dimensions. */
  int32_t AddNode(Node node, npu_dtype dtype, const Dims& dims) {
    node.out = AddValue(Source::kNode, dtype, dims, 0);
    const std::string reason = driver->reason(program, node);
    if (!reason.empty()) Decline(reason);
    program.nodes.push_back(node);
    program.labels.push_back(label);
    return node.out;
  }

  /*! \brief How many operands of a program read a step, or the accumulator (-1). */
  static int32_t UsesOf(const npu_vector_program* steps, int32_t step) {
    int32_t uses = 0;
    for (int32_t s = 0; s < steps->step_count; ++s) {
      for (int32_t i = 0; i < steps->steps[s].operand_count; ++i) {
        uses += IsResult(steps->steps[s].operands[i], step) ? 1 : 0;
      }
    }
    return uses;
  }

  static bool IsResult(const npu_operand& operand, int32_t step) {
    return step < 0 ? operand.kind == NPU_OPERAND_ACCUMULATOR
                    : operand.kind == NPU_OPERAND_STEP && operand.index == step;
  }

  /*! \brief Adds the node of an operation, and those of its epilogue that are not part of it. */
  void AddWithEpilogue(Node node, const npu_vector_program* epilogue, npu_tensor out) {
    npu_dtype dtype = At(out).port.dtype;
    const Dims dims = DimsOf(out);
    int32_t done = 0;
    const npu_dtype first_type = program.At(node.inputs[0]).dtype;
    if (first_type == NPU_FLOAT32 && EndsWithQuantize(epilogue, out)) dtype = NPU_FLOAT32;
    const bool has_steps = epilogue != nullptr && epilogue->step_count > 0;
    const bool is_sum = node.kind == Kind::kReduce && IsInteger(dtype);
    const bool integers = driver->integers && IsInteger(first_type) && (IsProduct(node) || is_sum);
    const bool is_long = is_sum || first_type == NPU_INT16;
    if (integers && has_steps) dtype = is_long ? NPU_INT64 : NPU_INT32;
    if (has_steps) {
      const bool has_bias = IsProduct(node);
      const npu_step& first = epilogue->steps[0];
      if (has_bias && first.kind == NPU_STEP_BIAS && IsResult(first.operands[0], -1) &&
          UsesOf(epilogue, -1) == 1 &&
          At(first.operands[1].index).port.source == Source::kConstant) {
        const Tensor bias = At(first.operands[1].index);
        Node whole = node;
        whole.inputs[2] = AddConstant(bias.port.dtype, {CountOf(bias.port)}, bias.data);
        if (Takes(whole, dtype, dims)) {
          node = whole;
          done = 1;
        } else {
          DropConstant();
        }
      }
      if (!integers && done < epilogue->step_count && UsesOf(epilogue, done - 1) == 1) {
        const npu_step& next = epilogue->steps[done];
        Node whole = node;
        if (IsResult(next.operands[0], done - 1) && SetLimits(next, &whole) &&
            Takes(whole, dtype, dims)) {
          node = whole;
          ++done;
        }
      }
    }
    AddSteps(epilogue, AddNode(node, dtype, dims), done, out);
  }

  static bool IsProduct(const Node& node) {
    return node.kind == Kind::kMatmul || node.kind == Kind::kConvolution;
  }

  static bool IsInteger(npu_dtype dtype) { return dtype != NPU_FLOAT32 && dtype != NPU_FLOAT16; }

  /*! \brief Turns an activation into the limits of a node. */
  static bool SetLimits(const npu_step& step, Node* node) {
    if (step.kind == NPU_STEP_RELU) {
      node->least = 0;
      return true;
    }
    if (step.kind != NPU_STEP_CLIP) return false;
    for (int i = 1; i < 3; ++i) {
      if (step.operands[i].kind != NPU_OPERAND_NUMBER) return false;
    }
    if (!(step.operands[1].number < step.operands[2].number)) return false;
    node->least = static_cast<float>(step.operands[1].number);
    node->most = static_cast<float>(step.operands[2].number);
    return true;
  }

  // ---- Quantize and dequantize: steps that make up one node of two element types ----

  static bool IsKind(const npu_vector_program* steps, int32_t s, npu_step_kind kind) {
    return s >= 0 && s < steps->step_count && steps->steps[s].kind == kind;
  }

  /*! \brief Whether step `s` only serves the next one, as its first operand. */
  static bool LeadsOn(const npu_vector_program* steps, int32_t s) {
    return IsResult(steps->steps[s + 1].operands[0], s) && UsesOf(steps, s) == 1;
  }

  /*! \brief Reads an operand, if it is one constant number, or several equal ones. */
  bool ReadNumber(const npu_operand& operand, double* number) {
    if (operand.kind == NPU_OPERAND_NUMBER) {
      *number = operand.number;
      return true;
    }
    if (operand.kind != NPU_OPERAND_TENSOR) return false;
    const Tensor& tensor = At(operand.index);
    if (tensor.data == nullptr) return false;
    const auto read = [&](auto first) {
      const auto* bytes = static_cast<const uint8_t*>(tensor.data);
      std::memcpy(&first, bytes, sizeof(first));
      *number = static_cast<double>(first);
      for (size_t at = sizeof(first); at < BytesOf(tensor.port); at += sizeof(first)) {
        auto other = first;
        std::memcpy(&other, bytes + at, sizeof(other));
        if (other != first) return false;
      }
      return true;
    };
    switch (tensor.port.dtype) {
      case NPU_FLOAT32:
        return read(float());
      case NPU_INT8:
        return read(int8_t());
      case NPU_UINT8:
        return read(uint8_t());
      case NPU_INT16:
        return read(int16_t());
      case NPU_INT32:
        return read(int32_t());
      default:
        return false;
    }
  }

  /*! \brief Reads the second operand of a step: a scale (1) or a zero point (2) of data with these
   *  dimensions. Until the node is added, inputs[which] is the tensor of those that differ by
   *  channel. */
  bool ReadParameter(const npu_step& step, const Dims& data, int32_t which, Node* node) {
    const npu_operand& operand = step.operands[1];
    if (ReadNumber(operand, &node->numbers[which])) return true;
    node->numbers[which] = 0;
    if (operand.kind != NPU_OPERAND_TENSOR || At(operand.index).data == nullptr) return false;
    const Value& each = At(operand.index).port;
    if (which == 1 ? each.dtype != NPU_FLOAT32 : !IsZeroPoint(each.dtype)) return false;
    // They broadcast: all but one of their dimensions are 1.
    const int32_t skipped = static_cast<int32_t>(data.size()) - each.rank;
    int32_t axis = skipped;
    while (axis < skipped + each.rank - 1 && each.dims[axis - skipped] == 1) ++axis;
    if (axis < 0 || each.dims[axis - skipped] != CountOf(each) ||
        data[static_cast<size_t>(axis)] != CountOf(each) ||
        (node->inputs[3 - which] >= 0 && node->quantization.axis != axis)) {
      return false;
    }
    node->quantization.axis = axis;
    node->inputs[which] = operand.index;
    return true;
  }

  /*! \brief Whether steps s, s + 1 and s + 2 are the last ones, and quantize; their parameters. */
  bool IsQuantize(const npu_vector_program* steps, int32_t s, npu_tensor out, Node* node) {
    return driver->quantization && IsNarrow(At(out).port.dtype) && s + 3 == steps->step_count &&
           IsKind(steps, s, NPU_STEP_DIVIDE) && IsKind(steps, s + 1, NPU_STEP_ROUND_EVEN) &&
           IsKind(steps, s + 2, NPU_STEP_ADD) && LeadsOn(steps, s) && LeadsOn(steps, s + 1) &&
           ReadParameter(steps->steps[s], DimsOf(out), 1, node) &&
           ReadParameter(steps->steps[s + 2], DimsOf(out), 2, node);
  }

  bool EndsWithQuantize(const npu_vector_program* steps, npu_tensor out) {
    Node node = MakeNode(Kind::kQuantize);
    return steps != nullptr && IsQuantize(steps, steps->step_count - 3, out, &node);
  }

  /*! \brief Whether steps s and s + 1 dequantize; their parameters. */
  bool IsDequantize(const npu_vector_program* steps, int32_t s, Node* node) {
    const npu_operand& data = steps->steps[s].operands[0];
    return driver->quantization && IsKind(steps, s, NPU_STEP_SUBTRACT) &&
           IsKind(steps, s + 1, NPU_STEP_MULTIPLY) && LeadsOn(steps, s) &&
           data.kind == NPU_OPERAND_TENSOR && IsNarrow(At(data.index).port.dtype) &&
           ReadParameter(steps->steps[s], DimsOf(data.index), 2, node) &&
           ReadParameter(steps->steps[s + 1], DimsOf(data.index), 1, node);
  }

  /*! \brief Adds the steps of a program from `first` on; `result` is the value before them. */
  void AddSteps(const npu_vector_program* steps, int32_t result, int32_t first, npu_tensor out) {
    const int32_t count = steps == nullptr ? 0 : steps->step_count;
    const npu_dtype dtype = At(out).port.dtype;
    const int32_t accumulator = result;
    bool integers =
        driver->integers && IsInteger(dtype) && (result < 0 || IsInteger(program.At(result).dtype));
    for (int32_t s = first; s < count; ++s) {
      const npu_step& step = steps->steps[s];
      for (int32_t i = 0; i < step.operand_count; ++i) {
        const npu_operand& operand = step.operands[i];
        if (operand.kind != NPU_OPERAND_TENSOR) continue;
        integers = integers && IsInteger(At(operand.index).port.dtype);
      }
    }
    const bool is_quantized = EndsWithQuantize(steps, out);
    const npu_dtype inner = integers ? NPU_INT64 : is_quantized ? NPU_FLOAT32 : dtype;
    std::vector<int32_t> results(static_cast<size_t>(count), result);
    for (int32_t s = first; s < count; ++s) {
      const npu_step& step = steps->steps[s];
      if (step.kind == NPU_STEP_OTHER) {
        Decline("there is no node for " + std::string(step.op));
      }
      Node node = MakeNode(Kind::kStep);
      node.step = step.kind;
      // The first operand of these steps is the data, the others are numbers of the node.
      int32_t operand_count = step.operand_count;
      npu_dtype read_type = inner;
      Node quantize = MakeNode(Kind::kQuantize), dequantize = MakeNode(Kind::kDequantize);
      if (is_quantized && IsQuantize(steps, s, out, &quantize)) {
        node = quantize;
        operand_count = 1;
        s += 2;
      } else if (inner == NPU_FLOAT32 && IsDequantize(steps, s, &dequantize)) {
        node = dequantize;
        operand_count = 1;
        read_type = At(step.operands[0].index).port.dtype;
        s += 1;
      }
      if (node.kind != Kind::kStep) {
        for (int32_t i : {1, 2}) {
          if (node.inputs[i] < 0) continue;
          const Tensor each = At(node.inputs[i]);
          node.inputs[i] = AddConstant(each.port.dtype, {CountOf(each.port)}, each.data);
        }
      }
      Dims dims;
      for (int32_t i = 0; i < operand_count; ++i) {
        const npu_operand& operand = step.operands[i];
        const bool is_parameter =
            i > 0 && (step.kind == NPU_STEP_CLIP || step.kind == NPU_STEP_LEAKY_RELU ||
                      step.kind == NPU_STEP_SOFTPLUS || (step.kind == NPU_STEP_RESCALE && i == 3));
        if (is_parameter && operand.kind != NPU_OPERAND_NUMBER) {
          Decline("there is no node for a limit or a slope that is a tensor");
        }
        switch (operand.kind) {
          case NPU_OPERAND_ACCUMULATOR:
            node.inputs[i] = accumulator;
            break;
          case NPU_OPERAND_STEP:
            node.inputs[i] = results.at(static_cast<size_t>(operand.index));
            break;
          case NPU_OPERAND_TENSOR:
            node.inputs[i] = Read(operand.index);
            break;
          case NPU_OPERAND_NUMBER:
            node.numbers[i] = operand.number;
            if (!is_parameter) node.inputs[i] = AddNumber(operand.number, inner);
            break;
        }
        if (node.inputs[i] < 0) continue;
        if (!integers && count > 1 && program.At(node.inputs[i]).dtype != read_type) {
          Decline("the driver kit has no nodes that mix element types");
        }
        dims = Broadcast(dims, kit::DimsOf(program.At(node.inputs[i])));
      }
      const int32_t x = node.inputs[0];
      const bool is_same = step.kind == NPU_STEP_CAST && x >= 0 && program.At(x).dtype == dtype;
      result = is_same ? x : AddNode(node, s + 1 < count ? inner : dtype, dims);
      results[static_cast<size_t>(s)] = result;
    }
    if (result < 0) Decline("there is no node that only broadcasts");
    Write(out, result);
  }

  int32_t AddNumber(double number, npu_dtype dtype) {
    return AddConstant(dtype, {1}, nullptr, number);
  }

  static Dims Broadcast(const Dims& a, const Dims& b) {
    Dims dims(std::max(a.size(), b.size()), 1);
    for (const Dims& from : {a, b}) {
      const size_t skipped = dims.size() - from.size();
      for (size_t i = 0; i < from.size(); ++i) {
        dims[skipped + i] = std::max(dims[skipped + i], from[i]);
      }
    }
    return dims;
  }

  // ---- Operations ----

  /*! \brief The node of an operation without its epilogue; `reads` are its tensors. */
  template <typename Op, typename... Reads>
  Node NodeOf(Kind kind, Op Node::* place, Op op, Reads... reads) {
    Node node = MakeNode(kind);
    int32_t* input = node.inputs;
    ((*input++ = Read(op.*reads)), ...);
    ((op.*reads = -1), ...);
    op.out = -1;
    node.*place = op;
    return node;
  }

  /*! \brief Adds an operation that is a node of its own. */
  template <typename Op, typename... Reads>
  void AddAlone(Kind kind, Op Node::* place, const Op& op, Reads... reads) {
    const Node node = NodeOf(kind, place, op, reads...);
    Write(op.out, AddNode(node, At(op.out).port.dtype, DimsOf(op.out)));
  }

  void Add(const npu_matmul* op) {
    Node node = NodeOf(Kind::kMatmul, &Node::matmul, *op, &npu_matmul::a, &npu_matmul::b);
    node.matmul.epilogue = nullptr;
    AddWithEpilogue(node, op->epilogue, op->out);
  }

  void Add(const npu_convolution* op) {
    Node node = NodeOf(Kind::kConvolution, &Node::convolution, *op, &npu_convolution::data,
                       &npu_convolution::weight);
    node.convolution.epilogue = nullptr;
    AddWithEpilogue(node, op->epilogue, op->out);
  }

  void Add(const npu_pool* op) { AddAlone(Kind::kPool, &Node::pool, *op, &npu_pool::data); }

  void Add(const npu_elementwise* op) { AddSteps(op->program, -1, 0, op->out); }

  void Add(const npu_reduce* op) {
    Node node = NodeOf(Kind::kReduce, &Node::reduce, *op, &npu_reduce::data);
    node.reduce.epilogue = nullptr;
    AddWithEpilogue(node, op->epilogue, op->out);
  }

  void Add(const npu_copy* op) {
    const Dims data = DimsOf(op->data), out = DimsOf(op->out);
    const Node node = NodeOf(Kind::kCopy, &Node::copy, *op, &npu_copy::data);
    bool is_whole = true, is_identity = true;
    for (size_t i = 0; i < data.size(); ++i) {
      const size_t from = static_cast<size_t>(op->permutation[i]);
      const int64_t left = (data[from] - op->data_offset[from] + op->data_step[from] - 1);
      const int64_t box = op->data_step[from] > 0
                              ? left / op->data_step[from]
                              : op->data_offset[from] / -op->data_step[from] + 1;
      is_whole = is_whole && op->out_offset[i] == 0 && op->out_step[i] == 1 && box >= out[i];
      is_identity = is_identity && from == i && op->data_offset[i] == 0 && op->data_step[i] == 1 &&
                    data[i] == out[i];
    }
    if (is_identity) return Write(op->out, node.inputs[0]);
    if (!is_whole && op->fill == 0) {
      Decline("there is no node that writes a part of a tensor");
    }
    Write(op->out, AddNode(node, At(op->out).port.dtype, out));
  }

  void Add(const npu_gather* op) {
    AddAlone(Kind::kGather, &Node::gather, *op, &npu_gather::data, &npu_gather::indices);
  }

  void Add(const npu_scan* op) { AddAlone(Kind::kScan, &Node::scan, *op, &npu_scan::data); }

  void Add(const npu_order* op) { AddAlone(Kind::kOrder, &Node::order, *op, &npu_order::data); }

  void Add(const npu_lookup* op) {
    AddAlone(Kind::kLookup, &Node::lookup, *op, &npu_lookup::data, &npu_lookup::table);
  }

  // ---- Inputs, outputs, bytes ----

  npu_tensor AddInput(const npu_tensor_desc* desc) {
    const npu_tensor id = AddTensor(desc, Source::kInput);
    At(id).port.place = static_cast<int64_t>(program.inputs.size());
    program.inputs.push_back(At(id).port);
    return id;
  }

  npu_tensor AddConstantTensor(const npu_tensor_desc* desc, const void* data, size_t size) {
    const npu_tensor id = AddTensor(desc, Source::kConstant);
    if (size != BytesOf(At(id).port)) {
      Refuse("a constant has another size than its shape says");
    }
    At(id).data = data;
    return id;
  }

  void MarkOutput(npu_tensor id) {
    // An output that is a view has the elements of what it views.
    Value port = At(id).port;
    port.place = Read(At(id).root);
    program.outputs.push_back(port);
  }

  /*! \brief Values that go to outputs unchanged get one dimension: no node reads them, so the
   *  driver was not asked about their rank. */
  void FlattenUnread() {
    std::vector<bool> is_read(program.values.size(), false);
    for (const Node& node : program.nodes) {
      for (int32_t id : node.inputs) {
        if (id >= 0) is_read[static_cast<size_t>(id)] = true;
      }
    }
    for (size_t i = 0; i < program.values.size(); ++i) {
      Value& value = program.values[i];
      if (is_read[i] || value.source == Source::kNode) continue;
      value.dims[0] = CountOf(value);
      value.rank = 1;
    }
  }

  void Finish() {
    FlattenUnread();
    std::vector<uint8_t> elements(program.constant_bytes);
    for (const Piece& piece : constants) {
      uint8_t* to = elements.data() + piece.value.place;
      if (piece.data != nullptr) {
        std::memcpy(to, piece.data, BytesOf(piece.value));
      } else {
        WriteNumber(piece.number, piece.value.dtype, to);
      }
    }
    program.constants = elements.data();
    bytes = driver->compile == nullptr ? Serialize(program) : driver->compile(program);
    program.constants = nullptr;
  }

  static void WriteNumber(double number, npu_dtype dtype, void* to) {
    const auto write = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (dtype) {
      case NPU_FLOAT32:
        return write(static_cast<float>(number));
      case NPU_INT8:
        return write(static_cast<int8_t>(number));
      case NPU_UINT8:
        return write(static_cast<uint8_t>(number));
      case NPU_INT16:
        return write(static_cast<int16_t>(number));
      case NPU_INT32:
        return write(static_cast<int32_t>(number));
      case NPU_INT64:
        return write(static_cast<int64_t>(number));
      case NPU_BOOL:
        return write(static_cast<uint8_t>(number != 0));
      case NPU_FLOAT16:
        break;
    }
    Decline("there is no node that reads a number in float16");
  }

  // ---- Options ----

  void SetOptions(const npu_option* options, size_t count) {
    for (size_t i = 0; i < driver->option_count; ++i) {
      program.options[driver->options[i].key] = driver->options[i].default_value;
    }
    for (size_t i = 0; i < count; ++i) {
      const std::string key = options[i].key, value = options[i].value;
      const npu_option_info* info = nullptr;
      for (size_t k = 0; k < driver->option_count; ++k) {
        if (key == driver->options[k].key) info = &driver->options[k];
      }
      if (info == nullptr) Refuse("there is no option " + key);
      bool fits = true;
      if (info->type == NPU_OPTION_BOOL) fits = value == "0" || value == "1";
      if (info->type == NPU_OPTION_INT) {
        char* end = nullptr;
        const long long number = std::strtoll(value.c_str(), &end, 10);
        fits = !value.empty() && *end == '\0' && number >= info->least && number <= info->most;
      }
      if (info->type == NPU_OPTION_CHOICE) {
        fits = std::any_of(info->choices, info->choices + info->choice_count,
                           [&](const char* choice) { return value == choice; });
      }
      if (!fits) Refuse(std::string("the option ").append(key).append(" cannot be ").append(value));
      program.options[key] = value;
    }
  }
};

}  // namespace npu::kit

struct npu_builder : npu::kit::Builder {};

namespace npu::kit {

inline std::string& CreateError() {
  thread_local std::string error;
  return error;
}

template <typename Op>
npu_status AddOp(npu_builder* builder, const Op* op) {
  return Try(&builder->error, [&] { builder->Add(op); });
}

/*! \brief The table of the build half; nodes for which `kDriver.reason` gives a reason are
 *  declined. */
template <const Driver& kDriver>
npu_build_api BuildTable() {
  npu_build_api api = {};
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = kDriver.name;
  api.release = kDriver.release;
  api.options = kDriver.options;
  api.option_count = kDriver.option_count;
  api.create = [](const npu_option* options, size_t count, npu_builder** builder) {
    return Try(&CreateError(), [&] {
      auto made = std::make_unique<npu_builder>();
      made->driver = &kDriver;
      made->SetOptions(options, count);
      *builder = made.release();
    });
  };
  api.destroy = [](npu_builder* builder) { delete builder; };
  api.error = [](const npu_builder* builder) {
    return builder == nullptr ? CreateError().c_str() : builder->error.c_str();
  };
  api.add_input = [](npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* id) {
    return Try(&builder->error, [&] { *id = builder->AddInput(desc); });
  };
  api.add_constant = [](npu_builder* builder, const npu_tensor_desc* desc, const void* data,
                        size_t size, npu_tensor* id) {
    return Try(&builder->error, [&] { *id = builder->AddConstantTensor(desc, data, size); });
  };
  api.add_tensor = [](npu_builder* builder, const npu_tensor_desc* desc, npu_tensor* id) {
    return Try(&builder->error, [&] { *id = builder->AddTensor(desc, Source::kNode); });
  };
  api.add_view = [](npu_builder* builder, npu_tensor data, const npu_tensor_desc* desc,
                    npu_tensor* id) {
    return Try(&builder->error, [&] {
      Dims dims;
      for (int32_t i = 0; i < desc->rank; ++i) {
        if (desc->dims[i].symbol >= 0) Decline("sizes must be fixed");
        dims.push_back(desc->dims[i].size);
      }
      *id = builder->AddView(data, dims);
    });
  };
  api.set_label = [](npu_builder* builder, const char* label) {
    return Try(&builder->error, [&] { builder->label = label; });
  };
  api.add_matmul = AddOp<npu_matmul>;
  api.add_convolution = AddOp<npu_convolution>;
  api.add_pool = AddOp<npu_pool>;
  api.add_elementwise = AddOp<npu_elementwise>;
  api.add_reduce = AddOp<npu_reduce>;
  api.add_copy = AddOp<npu_copy>;
  api.add_gather = AddOp<npu_gather>;
  api.add_scan = AddOp<npu_scan>;
  api.add_order = AddOp<npu_order>;
  if (kDriver.integers) {
    api.add_lookup = AddOp<npu_lookup>;
    api.integers = 1;
  }
  if (kDriver.channels_last) {
    api.layout = [](npu_builder*, npu_layout* layout) {
      const int32_t last = layout->data.rank - 1;
      for (int32_t i = 1; i <= last; ++i) {
        layout->order[i] = layout->weight_order[i] = i == last ? 1 : i + 1;
      }
      return NPU_OK;
    };
  }
  api.mark_output = [](npu_builder* builder, npu_tensor id) {
    return Try(&builder->error, [&] { builder->MarkOutput(id); });
  };
  api.finish = [](npu_builder* builder, const uint8_t** bytes, size_t* size) {
    return Try(&builder->error, [&] {
      // A driver with `compile` may decline the whole program; asking costs as much as compiling.
      if (bytes == nullptr && kDriver.compile == nullptr) return;
      builder->Finish();
      if (bytes == nullptr) return;
      *bytes = builder->bytes.data();
      *size = builder->bytes.size();
    });
  };
  return api;
}

}  // namespace npu::kit

#endif  // DRIVER_KIT_BUILD_H_
