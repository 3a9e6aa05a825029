// SPDX-License-Identifier: Apache-2.0
/*!
 * \file emission.h
 * \brief What lowerings write: the driver's tensors and operations.
 */
#ifndef CODEGEN_EMISSION_H_
#define CODEGEN_EMISSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "graph.h"
#include "lowering.h"
#include "scales.h"
#include "sink.h"
#include "units.h"
#include "weights.h"

namespace npu {

/*! \brief By the names of calls: why the driver declines them as whole operations. */
using DeclinedCalls = std::map<std::string, std::string>;

/*! \brief A graph at the driver, as far as it is written. */
class Emission {
 public:
  /*! \brief Throws a Refusal if the driver refuses its options. The calls `composed` are not asked
   *  for as whole operations. */
  Emission(const Graph& graph, const LoweringOptions& options, const DeclinedCalls& composed = {});

  void AddSymbolsAndInputs();
  /*! \brief Adds the weights of a unit, as integers if its lowering and the driver take them. */
  void AddWeights(const Unit& unit, const std::string& who);
  /*! \brief Marks the outputs, and asks the driver about the whole graph. */
  LoweredProgram Finish(LoweringGoal goal);

  /*! \brief The tensor of a value; constants are added when first used. */
  Tensor Get(const EntryRef& entry);
  void Set(const EntryRef& entry, const Tensor& tensor) {
    tensors_[{entry.node, entry.index}] = tensor;
  }
  bool Has(const EntryRef& entry) const { return tensors_.count({entry.node, entry.index}) != 0; }

  Tensor NewTensor(const npu_tensor_desc& desc, const std::string& who);
  /*! \brief The tensor of a result. */
  Tensor NewResult(const TensorInfo& info, const std::string& who);
  Tensor NewConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                     const std::string& who);
  Tensor NewView(const Tensor& tensor, const npu_tensor_desc& desc, const std::string& who);
  /*! \brief Adds an operation; declines it if the driver has no function for it. */
  template <typename Op>
  void Add(Op op, const std::string& who) {
    driver_.Require(driver_.api.*Operation<Op>::kFunction != nullptr, Operation<Op>::kName, who);
    // Tensors with scales stand for real numbers.
    auto is_float = [this](npu_tensor tensor) {
      return IsFloat(DescOf(tensor).dtype) || HasScales(tensor);
    };
    if constexpr (std::is_same_v<Op, npu_copy> || std::is_same_v<Op, npu_gather>) {
      KeepScales(op);
    } else if (IsNarrow(DescOf(op.out).dtype) && !HasScales(op.out) && ComputesWithScales(op)) {
      throw Refusal(who +
                    ": an intermediate result of it would be cut off to an integer, since it "
                    "has no scale");
    }
    if (driver_.api.integers == 0 && NeedsIntegers(op, is_float)) {
      throw Refusal(who + ": the driver " + driver_.api.name +
                    " does not say that it has products of integers and RESCALE (integers)");
    }
    if (driver_.api.integer_weights == 0 && NeedsIntegerWeights(op, is_float)) {
      throw Refusal(who + ": the driver " + driver_.api.name + " does not say that it multiplies " +
                    "real numbers by integers (integer_weights)");
    }
    op.size = sizeof(op);
    sink_->Add(op);
  }

  /*! \brief The weights of a matmul that stay integers; NULL if they are real numbers. */
  const IntegerWeights* WeightsOf(size_t matmul) const;
  /*! \brief The shape and type of a tensor; a scalar for an unknown one. */
  npu_tensor_desc DescOf(npu_tensor tensor) const;
  /*! \brief Whether the driver describes integers by scales at tensors. */
  bool HasScales() const { return driver_.api.set_quantization != nullptr; }
  /*! \brief Whether a call is to be composed of several operations: the driver has declined it. */
  bool IsComposed(const std::string& call) const { return composed_.count(call) != 0; }
  const LoweringOptions& options() const { return options_; }
  const DriverBuilder& driver() const { return driver_; }
  Sink& sink() { return *sink_; }

 private:
  /*! \brief Tells the driver of inputs of the region that only an update reads, of which the output
   *  is one of the region. */
  void AddStates();
  /*! \brief Remembers what a tensor of the sink is. */
  Tensor Keep(npu_tensor id, const npu_tensor_desc& desc);
  /*! \brief Adds a constant whose data outlive the builder. */
  Tensor AddConstant(const npu_tensor_desc& desc, std::string_view data, const std::string& who);
  void SetScales(npu_tensor id, const std::optional<Scales>& scales);
  bool HasScales(npu_tensor tensor) const { return scales_.count(tensor) != 0; }
  static bool IsNarrow(npu_dtype dtype) {
    return dtype == NPU_INT8 || dtype == NPU_UINT8 || dtype == NPU_INT16;
  }
  /*! \brief Whether an operation computes with integers that stand for real numbers. */
  template <typename Op>
  bool ComputesWithScales(const Op& op) const {
    const auto reads = [this](const npu_vector_program* program) {
      return program != nullptr &&
             std::any_of(program->inputs, program->inputs + program->input_count,
                         [this](npu_tensor tensor) { return HasScales(tensor); });
    };
    if constexpr (std::is_same_v<Op, npu_matmul>) {
      return HasScales(op.a) || HasScales(op.b) || reads(op.epilogue);
    } else if constexpr (std::is_same_v<Op, npu_convolution> ||
                         std::is_same_v<Op, npu_transposed_convolution>) {
      return HasScales(op.data) || HasScales(op.weight) || reads(op.epilogue);
    } else if constexpr (std::is_same_v<Op, npu_elementwise>) {
      return reads(op.program);
    } else if constexpr (std::is_same_v<Op, npu_reduce>) {
      return HasScales(op.data) || reads(op.epilogue);
    } else if constexpr (std::is_same_v<Op, npu_pool> || std::is_same_v<Op, npu_scan> ||
                         std::is_same_v<Op, npu_softmax> || std::is_same_v<Op, npu_resize>) {
      return HasScales(op.data);
    } else {
      return false;
    }
  }
  /*! \brief Gives a temporary tensor the scales of the integers that are moved into it. */
  void KeepScales(const npu_copy& op);
  void KeepScales(const npu_gather& op);
  /*! \brief The scales of data that are moved into a tensor that has none yet; else NULL. */
  const Scales* Moved(npu_tensor data, npu_tensor out) const;
  /*! \brief Declines element types that the driver is too old for. */
  void RequireType(const npu_tensor_desc& desc, const std::string& who) const;

  const Graph& graph_;
  const LoweringOptions& options_;
  const DeclinedCalls composed_;
  LoweredProgram result_;
  const DriverBuilder driver_;
  std::unique_ptr<Sink> sink_;
  std::map<std::pair<size_t, size_t>, Tensor> tensors_;
  std::unordered_map<npu_tensor, npu_tensor_desc> descs_;
  /*! \brief Of quantized tensors; only if the driver has scales. */
  std::unordered_map<npu_tensor, Scales> scales_;
  /*! \brief By matmul: its weights in integers. */
  std::unordered_map<size_t, IntegerWeights> weights_;
};

}  // namespace npu

#endif  // CODEGEN_EMISSION_H_
