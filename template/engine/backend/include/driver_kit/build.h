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
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver_kit/batches.h"
#include "driver_kit/program.h"

namespace npu::kit {

/*! \brief The driver's answers to the kit. It may grow at its end. */
struct Driver {
  const char* name;
  const char* release;
  /*! \brief Why the SDK has no such node, or "" if it has one: a sentence also for kinds and steps
   *  that it does not know, since both only grow. If a node with a bias or limits is declined, the
   *  kit asks again without them; a kConcat, kSoftmax, kResize or kTransposedConvolution, a step
   *  HARD_SWISH: as several other nodes. */
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
  /*! \brief Whether integers are described by scales at tensors, `Program::ScalesOf`. Nodes then
   *  have whole operations: a convolution from int8 to int8, with a bias of int32 and limits that
   *  are real numbers. What `reason` declines as such is asked for again with real numbers, between
   *  kDequantize and kQuantize. */
  bool scales = false;
  /*! \brief Why the SDK does not take these nodes together, or "": asked about each composite while
   *  a model is partitioned, after `reason` took its nodes; `program.constants` has the elements.
   *  NULL: it takes them. */
  std::string (*composite)(const Program& program) = nullptr;
  /*! \brief What decides about programs besides the driver's library, such as the version of an
   *  SDK, for options; NULL: nothing. */
  std::string (*identity)(const Program& program) = nullptr;
  /*! \brief Whether `compile` quantizes by Program::samples, if a user gives data. */
  bool samples = false;
  /*! \brief Whether steps read operands of any types, each converted to float32 where an operand or
   *  the result is a real number, and all but the last result of such steps are float32; whether
   *  results are broadcast, such as that of a cast; and whether a kCopy without fill may write a
   *  part of a tensor: outside of its box are the elements of inputs[1], or anything if there is
   *  none. Otherwise all that is declined. */
  bool mixed = false;
  /*! \brief Whether sizes may be open: one in a program, such as that of the batch. Programs are
   *  made for its bound; in a call with less the kit repeats rows of the inputs, and takes those of
   *  the outputs that were asked for. Nodes that mix rows are declined (driver_kit/batches.h). */
  bool symbols = false;
  /*! \brief Whether `reason` knows kUpdate, and graphs run it in one memory (Program::states). */
  bool updates = false;
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
  /*! \brief Of integers that stand for real numbers; else NULL. */
  std::shared_ptr<const Scales> scales = nullptr;
  /*! \brief These real numbers, once something reads them. */
  int32_t real = -1;
  /*! \brief The tensor whose integers get other scales here, once something reads them, and the
   *  label of the operation; else -1. */
  npu_tensor rescaled = -1;
  std::string label = {};
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
  /*! \brief Real numbers of constants that are stored as integers. */
  std::deque<std::vector<float>> dequantized;
  std::string identity, warnings;

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
    tensor.port = ValueOf(*desc, source);
    tensor.root = static_cast<npu_tensor>(tensors.size());
    tensors.push_back(tensor);
    return tensor.root;
  }

  /*! \brief Adds the open size. */
  void AddSymbol(int64_t bound) {
    if (program.bound > 0) Decline("a program has one open size at most, such as that of a batch");
    if (bound < 1) Refuse("the bound of a size is less than 1");
    program.bound = bound;
  }

  /*! \brief A value of this type and shape; the open size is its bound. */
  Value ValueOf(const npu_tensor_desc& desc, Source source) const {
    Value value = MakeValue(source, desc.dtype, {}, 0);
    if (desc.rank < 0 || desc.rank > NPU_MAX_RANK) Refuse("a tensor has no such rank");
    value.rank = desc.rank;
    for (int32_t i = 0; i < desc.rank; ++i) {
      if (desc.dims[i].size < 1) Decline("a tensor must have elements");
      value.dims[i] = desc.dims[i].size;
      if (desc.dims[i].symbol < 0) continue;
      if (program.bound == 0) Decline("sizes must be fixed");
      if (value.groups != 0) {
        Decline("two sizes of a tensor are open; a program may have one, such as that of a batch");
      }
      value.dims[i] *= program.bound;
      // A bound of 1 leaves nothing open.
      if (program.bound > 1) value.groups = GroupsFrom(CountBefore(value.dims, i));
    }
    return value;
  }

  /*! \brief Declines if the groups of a value are not rows of the dimension that is open. */
  void RequireGroups(const Value& open, const Value* value) const {
    if (GrowingOf(open) == GrowingOf(*value) && HasRows(*value, program.bound)) return;
    Decline(std::string("the rows of a tensor are not in its dimension of an open size") + kApart);
  }

  static int32_t GroupsFrom(int64_t groups) {
    if (groups > std::numeric_limits<int32_t>::max()) Decline("the rows are in too many groups");
    return static_cast<int32_t>(groups);
  }

  npu_tensor AddView(npu_tensor data, const Dims& dims, int32_t groups = 0) {
    Tensor view = At(data);
    const int64_t count = CountOf(view.port);
    view.value = view.real = view.rescaled = -1;
    if (view.scales != nullptr && view.scales->scales.size() > 1) view.scales = nullptr;
    view.port.rank = static_cast<int32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), view.port.dims);
    if (CountOf(view.port) != count) Refuse("a view has other elements");
    Value open = view.port;
    open.groups = groups;
    RequireGroups(open, &view.port);
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
    DropValue();
  }

  /*! \brief Removes the last value. */
  void DropValue() {
    program.values.pop_back();
    const auto dropped = static_cast<int32_t>(program.values.size());
    program.scales.erase(dropped);
    program.more_inputs.erase(dropped);
    program.names.erase(dropped);
  }

  /*! \brief Gives a value these scales, if there are any. */
  int32_t WithScales(int32_t value, const Scales* scales) {
    if (scales != nullptr) program.scales[value] = *scales;
    return value;
  }

  void SetScales(npu_tensor id, const npu_quantization* quantization) {
    Tensor& tensor = At(id);
    if (tensor.value >= 0) Refuse("a tensor gets scales after it was used");
    const auto count = static_cast<size_t>(std::max(quantization->count, 0));
    auto scales = std::make_shared<Scales>();
    scales->axis = quantization->axis;
    scales->scales.assign(quantization->scales, quantization->scales + count);
    scales->zero_points.assign(quantization->zero_points, quantization->zero_points + count);
    if (!IsSane(*scales, tensor.port)) Refuse("a tensor cannot have such scales");
    tensor.scales = std::move(scales);
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
        program.values.back().groups = At(id).port.groups;
        WithScales(value, At(id).scales.get());
        break;
      case Source::kConstant:
        value = WithScales(AddConstant(dtype, dims, At(id).data), At(id).scales.get());
        break;
      case Source::kNode: {
        if (At(root).rescaled >= 0 && At(root).value < 0) AddRescaling(root);
        if (At(id).value >= 0) return At(id).value;
        const int32_t from = At(root).value;
        if (from < 0) Refuse("a tensor is read before it is written");
        value = from;
        if (kit::DimsOf(program.At(from)) != dims) {
          Node node = MakeNode(Kind::kReshape);
          node.inputs[0] = from;
          value = AddNode(node, dtype, dims, At(id).scales.get());
        }
      }
    }
    return At(id).value = value;
  }

  /*! \brief Sets the value of a tensor from now on. */
  void Write(npu_tensor id, int32_t value) {
    Tensor& tensor = At(id);
    if (tensor.port.source != Source::kNode || tensor.value >= 0 || tensor.rescaled >= 0) {
      Refuse("a tensor is written twice");
    }
    if (tensor.root != id) Decline("an operation writes into a view");
    if (kit::DimsOf(program.At(value)) != DimsOf(id)) {
      Decline("a result is broadcast, for which there is no node");
    }
    Value& made = program.values[static_cast<size_t>(value)];
    const bool is_broadcast = made.groups == 0 && !program.nodes.empty() &&
                              program.nodes.back().out == value &&
                              program.nodes.back().kind == Kind::kStep;
    // All rows of a result that is broadcast are the same.
    if (is_broadcast) made.groups = tensor.port.groups;
    RequireGroups(tensor.port, &made);
    tensor.port.groups = made.groups;
    tensor.value = value;
  }

  // ---- Nodes ----

  /*! \brief Why there is no such node, or "". Its result is the last value. */
  std::string ReasonOf(const Node& node) {
    if (program.bound > 0) {
      const Growth growth = GrowthOf(program, node);
      if (!growth.reason.empty()) return growth.reason;
      program.values.back().groups = GroupsFrom(growth.groups);
    }
    return driver->reason(program, node);
  }

  /*! \brief Whether the driver takes a node with such a result. */
  bool Takes(Node node, npu_dtype dtype, const Dims& dims, const Scales* scales = nullptr) {
    node.out = WithScales(AddValue(Source::kNode, dtype, dims, 0), scales);
    const bool taken = ReasonOf(node).empty();
    DropValue();
    return taken;
  }

  /*! \brief Adds a node whose result has these dimensions. */
  int32_t AddNode(Node node, npu_dtype dtype, const Dims& dims, const Scales* scales = nullptr) {
    node.out = WithScales(AddValue(Source::kNode, dtype, dims, 0), scales);
    const std::string reason = ReasonOf(node);
    if (!reason.empty()) Decline(reason);
    program.nodes.push_back(node);
    program.labels.push_back(label);
    return node.out;
  }

  /*! \brief Adds an operation of the vendor's own, for functions of an extension:
   *  \code
   *  npu_status AddMish(npu_builder* builder, npu_tensor data, npu_tensor out) {
   *    return Try(&builder->error, [&] {
   *      Node node = MakeNode(Kind::kVendor);
   *      node.inputs[0] = builder->Read(data);
   *      builder->AddVendorNode("acme.mish", node, out);
   *    });
   *  }
   *  \endcode
   *  The struct that SetAttributes keeps in a node, for ReadAttributes, and inputs behind the first
   * four, `more`, come to `reason` and to the run half, as the name does.
   */
  void AddVendorNode(const std::string& name, const Node& node, npu_tensor out,
                     const std::vector<int32_t>& more = {}) {
    if (name.find('.') == std::string::npos) {
      Refuse("the name of a vendor's operation has a dot, as in acme.mish");
    }
    const auto next = static_cast<int32_t>(program.values.size());
    program.names[next] = name;
    if (!more.empty()) program.more_inputs[next] = more;
    Write(out, AddNode(node, At(out).port.dtype, DimsOf(out), At(out).scales.get()));
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
    const bool integers = driver->integers && !HasScales(node) && IsInteger(first_type) &&
                          (IsProduct(node) || is_sum);
    const bool is_long = is_sum || first_type == NPU_INT16;
    if (integers && has_steps) dtype = is_long ? NPU_INT64 : NPU_INT32;
    if (has_steps) {
      const bool has_bias = IsProduct(node);
      const npu_step& first = epilogue->steps[0];
      if (has_bias && HasConstantBias(epilogue)) {
        Node whole = node;
        whole.inputs[2] = AddBias(first.operands[1].index, HasScales(node));
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
    if (driver->mixed && !integers && has_steps && done < epilogue->step_count) {
      dtype = NPU_FLOAT32;
    }
    AddSteps(epilogue, AddNode(node, dtype, dims), done, out);
  }

  /*! \brief Whether the data of a node are integers that stand for real numbers. */
  bool HasScales(const Node& node) const { return program.ScalesOf(node.inputs[0]) != nullptr; }

  /*! \brief A constant bias as a value of one dimension: its integers, or its real numbers. */
  int32_t AddBias(npu_tensor id, bool integers) {
    const Tensor bias = At(id);
    const Dims dims = {CountOf(bias.port)};
    if (bias.scales == nullptr) return AddConstant(bias.port.dtype, dims, bias.data);
    if (!integers) return AddConstant(NPU_FLOAT32, dims, RealNumbers(bias));
    Scales scales = *bias.scales;
    scales.axis = 0;
    return WithScales(AddConstant(bias.port.dtype, dims, bias.data), &scales);
  }

  static bool IsProduct(const Node& node) {
    return node.kind == Kind::kMatmul || node.kind == Kind::kConvolution ||
           node.kind == Kind::kTransposedConvolution;
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
    const bool is_float32 = is_quantized || driver->mixed;
    const npu_dtype inner = integers ? NPU_INT64 : is_float32 ? NPU_FLOAT32 : dtype;
    std::vector<int32_t> results(static_cast<size_t>(count), result);
    for (int32_t s = first; s < count; ++s) {
      const npu_step& step = steps->steps[s];
      if (step.kind == NPU_STEP_OTHER) {
        Decline("there is no node for " + std::string(step.op));
      }
      if (const npu_operand* data = integers ? nullptr : HardSwishOf(steps, s, s + 4)) {
        Node whole = MakeNode(Kind::kStep);
        whole.step = NPU_STEP_HARD_SWISH;
        whole.inputs[0] = data->kind == NPU_OPERAND_TENSOR ? ReadReal(data->index)
                          : data->kind == NPU_OPERAND_STEP
                              ? results.at(static_cast<size_t>(data->index))
                              : accumulator;
        const Dims whole_dims = kit::DimsOf(program.At(whole.inputs[0]));
        const npu_dtype whole_type = s + 4 < count ? inner : dtype;
        if (whole_dims == DimsOf(out) && Takes(whole, whole_type, whole_dims)) {
          s += 3;
          result = results[static_cast<size_t>(s)] = AddNode(whole, whole_type, whole_dims);
          continue;
        }
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
        const bool is_parameter = IsParameter(step.kind, i);
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
            node.inputs[i] = ReadReal(operand.index);
            break;
          case NPU_OPERAND_NUMBER:
            node.numbers[i] = operand.number;
            if (!is_parameter) node.inputs[i] = AddNumber(operand.number, inner);
            break;
        }
        if (node.inputs[i] < 0) continue;
        if (!driver->mixed && !integers && count > 1 &&
            program.At(node.inputs[i]).dtype != read_type) {
          Decline("the driver kit has no nodes that mix element types");
        }
        dims = Broadcast(dims, kit::DimsOf(program.At(node.inputs[i])));
      }
      const int32_t x = node.inputs[0];
      if (driver->mixed && s + 1 == count) dims = DimsOf(out);
      const bool is_same = step.kind == NPU_STEP_CAST && x >= 0 && program.At(x).dtype == dtype &&
                           kit::DimsOf(program.At(x)) == dims;
      result = is_same ? x : AddNode(node, s + 1 < count ? inner : dtype, dims);
      results[static_cast<size_t>(s)] = result;
    }
    if (result < 0) Decline("there is no node that only broadcasts");
    Write(out, result);
  }

  /*! \brief The data of a hard_swish that is spelled in steps `first` to `end`, of which only the
   *  last one is read by others; NULL: they are none.
   *
   *  The table's spellings, in all orders of factors: x * clip(x + 3, 0, 6) / 6, and
   *  x * clip(x / 6 + 0.5, 0, 1). */
  const npu_operand* HardSwishOf(const npu_vector_program* steps, int32_t first, int32_t end) {
    if (end > steps->step_count) return nullptr;
    const npu_operand* data = nullptr;
    const auto same = [](const npu_operand& a, const npu_operand& b) {
      return a.kind == b.kind && a.index == b.index && a.kind != NPU_OPERAND_NUMBER;
    };
    // Each step is a line in x, limited or not, or such a line times x: c * clip(a * x + b, ...).
    struct Line {
      double slope = 1, offset = 0, least = -INFINITY, most = INFINITY, factor = 1;
      bool is_limited = false, times_x = false;
    };
    std::vector<Line> lines;
    const auto inner = [&](const npu_operand& operand) -> const Line* {
      const bool is_own = operand.kind == NPU_OPERAND_STEP && operand.index >= first;
      return is_own ? &lines.at(static_cast<size_t>(operand.index - first)) : nullptr;
    };
    for (int32_t s = first; s < end; ++s) {
      const npu_step& step = steps->steps[s];
      if (s + 1 < end && UsesOf(steps, s) != 1) return nullptr;
      std::vector<double> numbers;
      const Line* line = nullptr;
      int32_t reads_data = 0;
      for (int32_t i = 0; i < step.operand_count; ++i) {
        const npu_operand& operand = step.operands[i];
        double number = 0;
        if (const Line* found = inner(operand)) {
          if (line != nullptr || (i > 0 && step.kind == NPU_STEP_DIVIDE)) return nullptr;
          line = found;
        } else if (ReadNumber(operand, &number) &&
                   (operand.kind == NPU_OPERAND_NUMBER || CountOf(At(operand.index).port) == 1)) {
          if (i == 0 && step.kind == NPU_STEP_DIVIDE) return nullptr;
          numbers.push_back(number);
        } else if (data == nullptr || same(*data, operand)) {
          data = &operand;
          ++reads_data;
        } else {
          return nullptr;
        }
      }
      Line next = line == nullptr ? Line() : *line;
      const bool is_product = step.kind == NPU_STEP_MULTIPLY || step.kind == NPU_STEP_SCALE;
      const bool is_sum = step.kind == NPU_STEP_ADD || step.kind == NPU_STEP_BIAS;
      const bool is_square = line != nullptr && reads_data == 1 && numbers.empty() && is_product;
      const bool reads_one = (line == nullptr ? reads_data : 1 - reads_data) == 1;
      const bool has_one = reads_one && numbers.size() == 1;
      if (is_square && !next.times_x) {
        next.times_x = true;
      } else if (reads_one && step.kind == NPU_STEP_CLIP && numbers.size() == 2 &&
                 !next.is_limited && !next.times_x) {
        next.is_limited = true;
        next.least = numbers[0];
        next.most = numbers[1];
      } else if (has_one && is_sum && !next.is_limited && !next.times_x) {
        next.offset += numbers[0];
      } else if (has_one && (is_product || step.kind == NPU_STEP_DIVIDE)) {
        const double factor = is_product ? numbers[0] : 1 / numbers[0];
        if (next.is_limited || next.times_x) {
          next.factor *= factor;
        } else {
          next.slope *= factor;
          next.offset *= factor;
        }
      } else {
        return nullptr;
      }
      lines.push_back(next);
    }
    const Line& whole = lines.back();
    const auto is = [](double number, double expected) {
      return std::fabs(number - expected) <= 1e-6 * std::max(1.0, std::fabs(expected));
    };
    const double slope = whole.slope * whole.factor;
    const bool fits = whole.is_limited && whole.times_x && is(6 * slope, 1) &&
                      is(whole.offset * whole.factor, 0.5) && is(whole.least, 0) &&
                      is(whole.most * whole.factor, 1);
    return fits ? data : nullptr;
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

  // ---- Integers that stand for real numbers ----

  /*! \brief The real numbers of a constant. */
  const float* RealNumbers(const Tensor& tensor) {
    const Scales& scales = *tensor.scales;
    const auto count = static_cast<size_t>(CountOf(tensor.port));
    size_t inner = 1;
    if (scales.scales.size() > 1) {
      for (int32_t i = scales.axis + 1; i < tensor.port.rank; ++i) {
        inner *= static_cast<size_t>(tensor.port.dims[i]);
      }
    }
    std::vector<float>& reals = dequantized.emplace_back(count);
    const auto read = [&](auto number) {
      for (size_t i = 0; i < count; ++i) {
        const size_t k = i / inner % scales.scales.size();
        std::memcpy(&number, static_cast<const uint8_t*>(tensor.data) + i * sizeof(number),
                    sizeof(number));
        const double steps = static_cast<double>(number) - scales.zero_points[k];
        reals[i] = static_cast<float>(steps * static_cast<double>(scales.scales[k]));
      }
    };
    switch (tensor.port.dtype) {
      case NPU_INT8:
        read(int8_t());
        break;
      case NPU_UINT8:
        read(uint8_t());
        break;
      case NPU_INT16:
        read(int16_t());
        break;
      case NPU_INT32:
        read(int32_t());
        break;
      default:
        read(int64_t());
    }
    return reals.data();
  }

  /*! \brief A node between integers and what they stand for. */
  Node Conversion(Kind kind, int32_t from, const Scales& scales) {
    Node node = MakeNode(kind);
    node.inputs[0] = from;
    const size_t count = scales.scales.size();
    node.numbers[1] = count == 1 ? static_cast<double>(scales.scales[0]) : 0;
    node.numbers[2] = count == 1 ? scales.zero_points[0] : 0;
    if (count == 1) return node;
    node.quantization.axis = scales.axis;
    const Dims dims = {static_cast<int64_t>(count)};
    // The tensor's own scales live as long as the builder.
    node.inputs[1] = AddConstant(NPU_FLOAT32, dims, scales.scales.data());
    node.inputs[2] = AddConstant(NPU_INT32, dims, scales.zero_points.data());
    return node;
  }

  /*! \brief Removes the constants of a conversion that is not added. */
  void DropConversion(const Node& node) {
    for (int32_t i : {2, 1}) {
      if (node.inputs[i] >= 0) DropConstant();
    }
  }

  /*! \brief Adds the node of a tensor whose integers get other scales. */
  void AddRescaling(npu_tensor id) {
    const int32_t from = Read(At(id).rescaled);
    std::string current = At(id).label;
    std::swap(current, label);
    const Tensor& to = At(id);
    const Node node = Conversion(Kind::kQuantize, from, *to.scales);
    At(id).value = AddNode(node, to.port.dtype, DimsOf(id), to.scales.get());
    std::swap(current, label);
  }

  /*! \brief The value of a tensor: of integers with scales, the real numbers. */
  int32_t ReadReal(npu_tensor id) {
    if (At(id).scales == nullptr) return Read(id);
    if (At(id).real >= 0) return At(id).real;
    const Dims dims = DimsOf(id);
    if (At(id).port.source == Source::kConstant) {
      return At(id).real = AddConstant(NPU_FLOAT32, dims, RealNumbers(At(id)));
    }
    const int32_t from = Read(id);
    return At(id).real =
               AddNode(Conversion(Kind::kDequantize, from, *At(id).scales), NPU_FLOAT32, dims);
  }

  /*! \brief Writes a tensor of integers with scales: `compute` writes one of real numbers. */
  template <typename Compute>
  void WriteQuantized(npu_tensor out, const Compute& compute) {
    if (At(out).scales == nullptr) return compute(out);
    const Dims dims = DimsOf(out);
    npu_tensor_desc desc = {NPU_FLOAT32, static_cast<int32_t>(dims.size()), {}};
    for (size_t i = 0; i < dims.size(); ++i) desc.dims[i] = {dims[i], -1};
    const npu_tensor real = AddTensor(&desc, Source::kNode);
    At(real).port.groups = At(out).port.groups;
    compute(real);
    const Tensor& to = At(out);
    const Node node = Conversion(Kind::kQuantize, Read(real), *to.scales);
    Write(out, AddNode(node, to.port.dtype, dims, to.scales.get()));
  }

  /*! \brief Adds a node and, if they do not become part of it, the limits after it, which the
   *  scales of the result turn into integers. False: the driver declines them. */
  bool AddLimited(const Node& node, const npu_step* limits, npu_tensor out) {
    const npu_dtype dtype = At(out).port.dtype;
    const Dims dims = DimsOf(out);
    const Scales* scales = At(out).scales.get();
    Node whole = node;
    if (limits == nullptr || SetLimits(*limits, &whole)) {
      if (Takes(whole, dtype, dims, scales)) {
        Write(out, AddNode(whole, dtype, dims, scales));
        return true;
      }
    }
    if (limits == nullptr || scales == nullptr || !Takes(node, dtype, dims, scales)) return false;
    Node after = MakeNode(Kind::kStep);
    after.step = limits->kind;
    for (int32_t i = 1; i < limits->operand_count; ++i) {
      if (limits->operands[i].kind != NPU_OPERAND_NUMBER) return false;
      after.numbers[i] = limits->operands[i].number;
    }
    after.inputs[0] = AddNode(node, dtype, dims, scales);
    if (Takes(after, dtype, dims, scales)) {
      Write(out, AddNode(after, dtype, dims, scales));
      return true;
    }
    program.nodes.pop_back();
    program.labels.pop_back();
    DropValue();
    return false;
  }

  /*! \brief Whether a step only limits the result of the step before it, or of the accumulator. */
  static bool IsLimit(const npu_vector_program* steps, int32_t s) {
    return (IsKind(steps, s, NPU_STEP_RELU) || IsKind(steps, s, NPU_STEP_CLIP)) &&
           IsResult(steps->steps[s].operands[0], s - 1) && UsesOf(steps, s - 1) == 1;
  }

  /*! \brief Adds an operation on integers that stand for real numbers as one node, with its
   *  epilogue. False: the driver declines it. */
  bool AddWhole(Node node, const npu_vector_program* epilogue, npu_tensor out) {
    const int32_t count = epilogue == nullptr ? 0 : epilogue->step_count;
    int32_t done = 0;
    if (IsProduct(node) && HasConstantBias(epilogue)) {
      node.inputs[2] = AddBias(epilogue->steps[0].operands[1].index, /*integers=*/true);
      done = 1;
    }
    const bool is_limited = done < count && IsLimit(epilogue, done);
    const npu_step* limits = is_limited ? &epilogue->steps[done] : nullptr;
    const bool is_whole = done + (is_limited ? 1 : 0) == count;
    if (is_whole && AddLimited(node, limits, out)) return true;
    if (done > 0) DropConstant();
    return false;
  }

  static bool HasBias(const npu_vector_program* epilogue) {
    return epilogue != nullptr && IsKind(epilogue, 0, NPU_STEP_BIAS) &&
           IsResult(epilogue->steps[0].operands[0], -1) && UsesOf(epilogue, -1) == 1;
  }

  bool HasConstantBias(const npu_vector_program* epilogue) {
    return HasBias(epilogue) &&
           At(epilogue->steps[0].operands[1].index).port.source == Source::kConstant;
  }

  /*! \brief Whether a program reads or writes integers that stand for real numbers. */
  bool IsQuantized(const npu_vector_program* steps, npu_tensor out) {
    if (At(out).scales != nullptr) return true;
    for (int32_t s = 0; s < steps->step_count; ++s) {
      for (int32_t i = 0; i < steps->steps[s].operand_count; ++i) {
        const npu_operand& operand = steps->steps[s].operands[i];
        if (operand.kind == NPU_OPERAND_TENSOR && At(operand.index).scales != nullptr) return true;
      }
    }
    return false;
  }

  /*! \brief Adds a program of integers that stand for real numbers: as one node, or in float32. */
  void AddQuantizedSteps(const npu_vector_program* steps, npu_tensor out) {
    const npu_step& first = steps->steps[0];
    const npu_step* limits = IsLimit(steps, 1) ? &steps->steps[1] : nullptr;
    if (first.kind == NPU_STEP_CAST && steps->step_count == 1) {
      const Scales *from = At(first.operands[0].index).scales.get(), *to = At(out).scales.get();
      if (to == nullptr) {
        if (At(out).port.dtype != NPU_FLOAT32) Decline("integers become float32 alone");
        return Write(out, ReadReal(first.operands[0].index));
      }
      if (from != nullptr) {
        const Node node = Conversion(Kind::kQuantize, Read(first.operands[0].index), *to);
        if (Takes(node, At(out).port.dtype, DimsOf(out), to)) {
          // Added when it is read: a concat may read what comes before it.
          DropConversion(node);
          At(out).rescaled = first.operands[0].index;
          At(out).label = label;
          return;
        }
      }
    } else if (const npu_operand* data = HardSwishOf(steps, 0, steps->step_count);
               data != nullptr && data->kind == NPU_OPERAND_TENSOR &&
               DimsOf(data->index) == DimsOf(out)) {
      Node node = MakeNode(Kind::kStep);
      node.step = NPU_STEP_HARD_SWISH;
      node.inputs[0] = Read(data->index);
      if (AddLimited(node, nullptr, out)) return;
    } else if (first.kind != NPU_STEP_OTHER && first.kind != NPU_STEP_CAST &&
               steps->step_count == (limits == nullptr ? 1 : 2)) {
      Node node = MakeNode(Kind::kStep);
      node.step = first.kind;
      bool fits = true;
      for (int32_t i = 0; i < first.operand_count; ++i) {
        const npu_operand& operand = first.operands[i];
        const bool is_number = operand.kind == NPU_OPERAND_NUMBER;
        fits = fits && (is_number ? i > 0 : operand.kind == NPU_OPERAND_TENSOR);
        if (is_number) node.numbers[i] = operand.number;
        if (is_number && !IsParameter(first.kind, i)) {
          node.inputs[i] = AddNumber(operand.number, NPU_FLOAT32);
        } else if (!is_number && fits) {
          node.inputs[i] = Read(operand.index);
        }
      }
      if (fits && AddLimited(node, limits, out)) return;
    }
    WriteQuantized(out, [&](npu_tensor real) { AddSteps(steps, -1, 0, real); });
  }

  /*! \brief Whether an operand of a step is a number of the node. */
  static bool IsParameter(npu_step_kind kind, int32_t i) {
    return i > 0 && (kind == NPU_STEP_CLIP || kind == NPU_STEP_LEAKY_RELU ||
                     kind == NPU_STEP_SOFTPLUS || (kind == NPU_STEP_RESCALE && i == 3));
  }

  // ---- Operations ----

  /*! \brief The node of an operation without its epilogue; `reads` are its tensors. */
  template <typename Op, typename... Reads>
  Node NodeOf(Kind kind, Op Node::* place, Op op, Reads... reads) {
    return NodeOn(&Builder::Read, kind, place, op, reads...);
  }

  /*! \brief The same, with a function that reads them. */
  template <typename Op, typename... Reads>
  Node NodeOn(int32_t (Builder::*read)(npu_tensor), Kind kind, Op Node::* place, Op op,
              Reads... reads) {
    Node node = MakeNode(kind);
    int32_t* input = node.inputs;
    ((*input++ = (this->*read)(op.*reads)), ...);
    ((op.*reads = -1), ...);
    op.out = -1;
    node.*place = op;
    return node;
  }

  /*! \brief Adds an operation that is a node of its own. */
  template <typename Op, typename... Reads>
  void AddAlone(Kind kind, Op Node::* place, const Op& op, Reads... reads) {
    const Node node = NodeOf(kind, place, op, reads...);
    Write(op.out, AddNode(node, At(op.out).port.dtype, DimsOf(op.out), At(op.out).scales.get()));
  }

  /*! \brief Adds an operation that computes. On integers that stand for real numbers it is one
   *  node; or one with a real result, and steps in float32; or all of it is in float32. */
  template <typename Op, typename... Reads>
  void AddComputing(Kind kind, Op Node::* place, const Op& op, const npu_vector_program* epilogue,
                    Reads... reads) {
    if (At(op.out).scales == nullptr && ((At(op.*reads).scales == nullptr) && ...)) {
      return AddWithEpilogue(NodeOf(kind, place, op, reads...), epilogue, op.out);
    }
    const Node node = NodeOf(kind, place, op, reads...);
    if (AddWhole(node, epilogue, op.out)) return;
    const bool has_real_result = Takes(node, NPU_FLOAT32, DimsOf(op.out));
    WriteQuantized(op.out, [&](npu_tensor real) {
      AddWithEpilogue(
          has_real_result ? node : NodeOn(&Builder::ReadReal, kind, place, op, reads...), epilogue,
          real);
    });
  }

  void Add(const npu_matmul* op) {
    npu_matmul alone = *op;
    alone.epilogue = nullptr;
    AddComputing(Kind::kMatmul, &Node::matmul, alone, op->epilogue, &npu_matmul::a, &npu_matmul::b);
  }

  void Add(const npu_convolution* op) {
    npu_convolution alone = *op;
    alone.epilogue = nullptr;
    AddComputing(Kind::kConvolution, &Node::convolution, alone, op->epilogue,
                 &npu_convolution::data, &npu_convolution::weight);
  }

  void Add(const npu_transposed_convolution* op) {
    npu_transposed_convolution alone = *op;
    alone.epilogue = nullptr;
    AddComputing(Kind::kTransposedConvolution, &Node::transposed_convolution, alone, op->epilogue,
                 &npu_transposed_convolution::data, &npu_transposed_convolution::weight);
  }

  void Add(const npu_softmax* op) {
    AddComputing(Kind::kSoftmax, &Node::softmax, *op, nullptr, &npu_softmax::data);
  }

  void Add(const npu_resize* op) {
    if (op->kind == NPU_RESIZE_NEAREST) {
      return AddAlone(Kind::kResize, &Node::resize, *op, &npu_resize::data);
    }
    AddComputing(Kind::kResize, &Node::resize, *op, nullptr, &npu_resize::data);
  }

  /*! \brief A concat of these values, the next node to be added or asked about. */
  Node ConcatOf(const std::vector<int32_t>& values, const npu_concat& op) {
    Node node = MakeNode(Kind::kConcat);
    node.concat.size = op.size;
    node.concat.out = -1;
    node.concat.axis = op.axis;
    const size_t first = std::min<size_t>(values.size(), NPU_MAX_OPERANDS);
    std::copy_n(values.begin(), first, node.inputs);
    if (first < values.size()) {
      program.more_inputs[static_cast<int32_t>(program.values.size())].assign(
          values.begin() + static_cast<std::ptrdiff_t>(first), values.end());
    }
    return node;
  }

  void Add(const npu_concat* op) {
    const npu_dtype dtype = At(op->out).port.dtype;
    const Dims dims = DimsOf(op->out);
    const Scales* scales = At(op->out).scales.get();
    const auto read = [&](const auto& value_of) {
      std::vector<int32_t> values;
      for (int32_t i = 0; i < op->input_count; ++i) values.push_back(value_of(op->inputs[i]));
      return values;
    };
    // What only rescales an operand may be left to the concat.
    std::vector<int32_t> given = read([&](npu_tensor id) {
      const bool is_left =
          At(id).value < 0 && At(id).rescaled >= 0 && At(At(id).rescaled).port.dtype == dtype;
      return Read(is_left ? At(id).rescaled : id);
    });
    if (!Takes(ConcatOf(given, *op), dtype, dims, scales)) {
      given = read([&](npu_tensor id) { return Read(id); });
      if (scales != nullptr && !Takes(ConcatOf(given, *op), dtype, dims, scales)) {
        return WriteQuantized(op->out, [&](npu_tensor real) {
          given = read([&](npu_tensor id) { return ReadReal(id); });
          const Node node = ConcatOf(given, *op);
          Write(real, AddNode(node, NPU_FLOAT32, dims));
        });
      }
    }
    const Node node = ConcatOf(given, *op);
    Write(op->out, AddNode(node, dtype, dims, scales));
  }

  void Add(const npu_pool* op) {
    if (op->kind == NPU_POOL_MAX) return AddAlone(Kind::kPool, &Node::pool, *op, &npu_pool::data);
    AddComputing(Kind::kPool, &Node::pool, *op, nullptr, &npu_pool::data);
  }

  void Add(const npu_elementwise* op) {
    if (IsQuantized(op->program, op->out)) return AddQuantizedSteps(op->program, op->out);
    AddSteps(op->program, -1, 0, op->out);
  }

  void Add(const npu_reduce* op) {
    npu_reduce alone = *op;
    alone.epilogue = nullptr;
    AddComputing(Kind::kReduce, &Node::reduce, alone, op->epilogue, &npu_reduce::data);
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
      if (!driver->mixed || At(op->out).root != op->out) {
        Decline("there is no node that writes a part of a tensor");
      }
    }
    if (driver->mixed && At(op->out).value >= 0) {
      // Another part of it is written already.
      Node next = node;
      next.inputs[1] = At(op->out).value;
      At(op->out).value = AddNode(next, At(op->out).port.dtype, out, At(op->out).scales.get());
      return;
    }
    Write(op->out, AddNode(node, At(op->out).port.dtype, out, At(op->out).scales.get()));
  }

  void Add(const npu_gather* op) {
    AddAlone(Kind::kGather, &Node::gather, *op, &npu_gather::data, &npu_gather::indices);
  }

  void Add(const npu_scan* op) { AddAlone(Kind::kScan, &Node::scan, *op, &npu_scan::data); }

  /*! \brief Indices of int64 may also come from ones of int32. */
  void Add(const npu_order* op) {
    const Node node = NodeOf(Kind::kOrder, &Node::order, *op, &npu_order::data);
    const npu_dtype dtype = At(op->out).port.dtype;
    const Dims dims = DimsOf(op->out);
    if (dtype == NPU_INT64 && !Takes(node, dtype, dims) && Takes(node, NPU_INT32, dims)) {
      Node cast = MakeNode(Kind::kStep);
      cast.step = NPU_STEP_CAST;
      cast.inputs[0] = AddNode(node, NPU_INT32, dims);
      return Write(op->out, AddNode(cast, dtype, dims));
    }
    Write(op->out, AddNode(node, dtype, dims));
  }

  void Add(const npu_lookup* op) {
    AddAlone(Kind::kLookup, &Node::lookup, *op, &npu_lookup::data, &npu_lookup::table);
  }

  void Add(const npu_update* op) {
    AddAlone(Kind::kUpdate, &Node::update, *op, &npu_update::data, &npu_update::value,
             &npu_update::positions);
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
    port.groups = program.At(static_cast<int32_t>(port.place)).groups;
    RequireGroups(At(id).port, &port);
    program.outputs.push_back(port);
  }

  /*! \brief Gives a state and its next value one memory; returns whether it can. */
  bool AddState(npu_tensor input, npu_tensor output) {
    const State state = {At(input).value, At(output).value};
    if (state.before < 0 || state.after < 0 || !CanShare(state, program)) return false;
    program.states.push_back(state);
    return true;
  }

  /*! \brief Which values nodes read. */
  std::vector<bool> ReadByNodes() const {
    std::vector<bool> is_read(program.values.size(), false);
    for (const Node& node : program.nodes) {
      for (int32_t id : program.InputsOf(node)) is_read[static_cast<size_t>(id)] = true;
    }
    return is_read;
  }

  /*! \brief Values that go to outputs unchanged get one dimension: no node reads them, so the
   *  driver was not asked about their rank. */
  void FlattenUnread() {
    const std::vector<bool> is_read = ReadByNodes();
    for (size_t i = 0; i < program.values.size(); ++i) {
      Value& value = program.values[i];
      if (is_read[i] || value.source == Source::kNode) continue;
      value.dims[0] = CountOf(value);
      value.rank = 1;
      value.groups = 0;
      const Scales* scales = program.ScalesOf(static_cast<int32_t>(i));
      if (scales != nullptr && scales->scales.size() > 1) {
        program.scales.erase(static_cast<int32_t>(i));
      }
    }
  }

  /*! \brief Drops the elements of constants that are read only as real numbers, or not at all. */
  void DropUnread() {
    std::vector<bool> is_read = ReadByNodes();
    for (const Value& output : program.outputs) is_read[static_cast<size_t>(output.place)] = true;
    program.constant_bytes = 0;
    size_t next = 0;
    for (size_t i = 0; i < program.values.size(); ++i) {
      Value& value = program.values[i];
      if (value.source != Source::kConstant) continue;
      Piece& piece = constants[next++];
      if (!is_read[i]) {
        value = MakeValue(Source::kConstant, value.dtype, {1}, 0);
        program.scales.erase(static_cast<int32_t>(i));
      }
      value.place = static_cast<int64_t>(program.constant_bytes);
      piece.value = value;
      program.constant_bytes =
          Aligned(program.constant_bytes + BytesOf(value) + (is_read[i] ? kAlignment : 0));
    }
  }

  void Finish() {
    WithConstants([&] {
      bytes = driver->compile == nullptr ? Serialize(program) : driver->compile(program);
    });
  }

  void CheckComposite() {
    std::string reason;
    WithConstants([&] { reason = driver->composite(program); });
    if (!reason.empty()) Decline(reason);
  }

  /*! \brief Calls a function while the program has the elements of its constants. */
  template <typename Function>
  void WithConstants(Function function) {
    if (driver->scales) DropUnread();
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
    std::vector<std::string> sentences;
    program.warnings = &sentences;
    function();
    program.constants = nullptr;
    program.warnings = nullptr;
    for (std::string& sentence : sentences) {
      std::replace(sentence.begin(), sentence.end(), '\n', ' ');
      warnings += warnings.empty() ? sentence : '\n' + sentence;
    }
  }

  void SetSamples(npu_tensor id, const void* data, int64_t count) {
    const Value& input = At(id).port;
    if (input.source != Source::kInput || count < 1) Refuse("these are no samples of an input");
    program.samples.resize(program.inputs.size());
    program.samples[static_cast<size_t>(input.place)] = {data, count};
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
      const Value view = builder->ValueOf(*desc, Source::kNode);
      *id = builder->AddView(data, DimsOf(view), view.groups);
    });
  };
  if (kDriver.symbols) {
    api.add_symbol = [](npu_builder* builder, const char*, int64_t bound, int32_t* symbol) {
      return Try(&builder->error, [&] {
        builder->AddSymbol(bound);
        *symbol = 0;
      });
    };
  }
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
  api.add_concat = AddOp<npu_concat>;
  api.add_softmax = AddOp<npu_softmax>;
  api.add_resize = AddOp<npu_resize>;
  api.add_transposed_convolution = AddOp<npu_transposed_convolution>;
  if (kDriver.updates) {
    api.add_update = AddOp<npu_update>;
    api.add_state = [](npu_builder* builder, npu_tensor input, npu_tensor output, int32_t* shared) {
      return Try(&builder->error, [&] { *shared = builder->AddState(input, output) ? 1 : 0; });
    };
  }
  if (kDriver.integers) {
    api.add_lookup = AddOp<npu_lookup>;
    api.integers = 1;
  }
  if (kDriver.scales) {
    api.set_quantization = [](npu_builder* builder, npu_tensor id, const npu_quantization* what) {
      return Try(&builder->error, [&] { builder->SetScales(id, what); });
    };
  }
  if (kDriver.composite != nullptr) {
    api.check_composite = [](npu_builder* builder) {
      return Try(&builder->error, [&] { builder->CheckComposite(); });
    };
  }
  if (kDriver.identity != nullptr) {
    api.identity = [](npu_builder* builder, const char** text) {
      return Try(&builder->error, [&] {
        builder->identity = kDriver.identity(builder->program);
        *text = builder->identity.c_str();
      });
    };
  }
  if (kDriver.compile != nullptr) {
    api.warnings = [](const npu_builder* builder) { return builder->warnings.c_str(); };
  }
  if (kDriver.samples) {
    api.set_samples = [](npu_builder* builder, npu_tensor id, const void* data, int64_t count) {
      return Try(&builder->error, [&] { builder->SetSamples(id, data, count); });
    };
  }
  if (kDriver.channels_last) {
    api.layout = [](npu_builder*, npu_layout* layout) {
      const int32_t last = layout->data.rank - 1;
      const bool is_transposed = layout->operation == NPU_OPERATION_TRANSPOSED_CONVOLUTION;
      layout->weight_order[0] = is_transposed ? 1 : 0;
      for (int32_t i = 1; i <= last; ++i) {
        layout->order[i] = layout->weight_order[i] = i == last ? 1 : i + 1;
      }
      if (is_transposed) layout->weight_order[last] = 0;
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
