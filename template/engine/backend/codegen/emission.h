// SPDX-License-Identifier: Apache-2.0
/*!
 * \file emission.h
 * \brief What lowerings write: the driver's tensors and operations.
 */
#ifndef CODEGEN_EMISSION_H_
#define CODEGEN_EMISSION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph.h"
#include "lowering.h"
#include "sink.h"
#include "units.h"
#include "weights.h"

namespace npu {

/*! \brief A graph at the driver, as far as it is written. */
class Emission {
 public:
  /*! \brief Throws a Refusal if the driver refuses its options. */
  Emission(const Graph& graph, const LoweringOptions& options);

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
  Tensor NewConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                     const std::string& who);
  Tensor NewView(const Tensor& tensor, const npu_tensor_desc& desc, const std::string& who);
  /*! \brief Adds an operation; declines it if the driver has no function for it. */
  template <typename Op>
  void Add(Op op, const std::string& who) {
    driver_.Require(driver_.api.*Operation<Op>::kFunction != nullptr, Operation<Op>::kName, who);
    auto is_float = [this](npu_tensor tensor) { return IsFloat(DescOf(tensor).dtype); };
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
  const LoweringOptions& options() const { return options_; }
  const DriverBuilder& driver() const { return driver_; }
  Sink& sink() { return *sink_; }

 private:
  /*! \brief Remembers what a tensor of the sink is. */
  Tensor Keep(npu_tensor id, const npu_tensor_desc& desc);
  /*! \brief Adds a constant whose data outlive the builder. */
  Tensor AddConstant(const npu_tensor_desc& desc, std::string_view data, const std::string& who);
  /*! \brief Declines element types that the driver is too old for. */
  void RequireType(const npu_tensor_desc& desc, const std::string& who) const;

  const Graph& graph_;
  const LoweringOptions& options_;
  LoweredProgram result_;
  const DriverBuilder driver_;
  std::unique_ptr<Sink> sink_;
  std::map<std::pair<size_t, size_t>, Tensor> tensors_;
  std::unordered_map<npu_tensor, npu_tensor_desc> descs_;
  /*! \brief By matmul: its weights in integers. */
  std::unordered_map<size_t, IntegerWeights> weights_;
};

}  // namespace npu

#endif  // CODEGEN_EMISSION_H_
