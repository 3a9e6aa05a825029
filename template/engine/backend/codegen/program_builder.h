// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program_builder.h
 * \brief Walks a graph, decides what is lowered together, and calls the driver's build half.
 */
#ifndef CODEGEN_PROGRAM_BUILDER_H_
#define CODEGEN_PROGRAM_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph.h"
#include "lowering.h"
#include "npu_driver.h"
#include "sink.h"
#include "weights.h"

namespace npu {

std::string Join(const std::vector<std::string>& items);

std::string DescribeNode(const Node& node);

std::vector<npu_dim> ReadDims(const TensorInfo& info);

npu_tensor_desc MakeDesc(npu_dtype dtype, const std::vector<npu_dim>& dims);

/*! \brief The shape and type of a value. If the driver interface has no such type, the error names
 *  `who`.
 */
npu_tensor_desc MakeDesc(const TensorInfo& info, const std::string& who);

bool IsFloat(const std::string& dtype);

/*! \brief Whether an operand is the result of an earlier step. */
bool IsComputed(const npu_operand& operand);

/*! \brief One op and the ops that join it: absorbed transposes before it, fused ops after it. */
struct Unit {
  size_t anchor = 0;
  const OpLowering* lowering = nullptr;
  /*! \brief The arguments of the anchor, absorbed transposes skipped. */
  std::vector<EntryRef> inputs;
  std::vector<bool> transposed;
  /*! \brief The dequantizations of the arguments, if the op computes in integers. */
  std::vector<size_t> dequantized;
  /*! \brief The dequantization of a constant second argument, if the op reads its integers. */
  std::optional<size_t> weights;
  /*! \brief The element-wise calls after the anchor, in order. */
  std::vector<std::pair<size_t, const OpLowering*>> epilogue;

  size_t Last() const { return epilogue.empty() ? anchor : epilogue.back().first; }
};

/*! \brief Walks a graph and calls the driver's build half. */
class ProgramBuilder {
 public:
  ProgramBuilder(const Graph& graph, const LoweringOptions& options);

  LoweredProgram Run(LoweringGoal goal);

  // ---- For Lowering ----

  const Graph& graph() const { return graph_; }

  /*! \brief The driver's tensor of a value; constants are added when first used. */
  Tensor Get(const EntryRef& entry);

  /*! \brief A call on its own, with nothing fused or absorbed. */
  Unit MakeUnit(size_t node, const OpLowering* lowering) const;

  /*! \brief Whether a dequantization is never computed: its readers read the integers. */
  bool IsInlined(size_t node) const { return inlined_.count(node) != 0; }
  /*! \brief The element-wise entry of a call that a vector program computes. */
  const OpLowering* FindElementwise(size_t node) const { return Find(node, true); }
  /*! \brief The numbers of a constant; empty for any other value. */
  std::vector<double> Numbers(const EntryRef& entry) const;

  void Set(const EntryRef& entry, const Tensor& tensor) { tensors_[Key(entry)] = tensor; }
  bool Has(const EntryRef& entry) const { return tensors_.count(Key(entry)) != 0; }

  /*! \brief How often a value is read. */
  int Uses(const EntryRef& entry) const;

  Tensor NewTensor(const npu_tensor_desc& desc, const std::string& who);

  Tensor NewConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                     const std::string& who);

  Tensor NewView(const Tensor& tensor, const npu_tensor_desc& desc, const std::string& who);

  /*! \brief Adds an operation; declines it if the driver has no function for it. */
  template <typename Op>
  void Add(Op op, npu_status (*npu_build_api::*function)(npu_builder*, const Op*), const char* name,
           const std::string& who) {
    Require(api_.*function != nullptr, name, who);
    auto is_float = [this](npu_tensor tensor) { return IsFloat(DescOf(tensor).dtype); };
    if (api_.integers == 0 && NeedsIntegers(op, is_float)) {
      throw Refusal(who + ": the driver " + api_.name +
                    " does not say that it has products of integers and RESCALE (integers)");
    }
    if (api_.integer_weights == 0 && NeedsIntegerWeights(op, is_float)) {
      throw Refusal(who + ": the driver " + api_.name + " does not say that it multiplies real " +
                    "numbers by integers (integer_weights)");
    }
    op.size = sizeof(op);
    sink_->Add(op);
  }

  /*! \brief The driver's own number of a tensor; see Lowering::AtDriver. */
  npu_tensor AtDriver(npu_tensor tensor, std::optional<npu_tensor> like);

  /*! \brief The weights of a matmul that stay integers; NULL if they are real numbers. */
  const IntegerWeights* WeightsOf(size_t matmul) const;

  /*! \brief The shape and type of a tensor of the builder; a scalar for an unknown tensor. */
  npu_tensor_desc DescOf(npu_tensor tensor) const;

  /*! \brief The largest value of a symbol. */
  int64_t Bound(int32_t symbol) const;

  const npu_build_api& api() const { return api_; }
  npu_builder* builder() const { return result_.builder.get(); }

  void Check(npu_status status, const std::string& who) const;

  void Require(bool has, const char* function, const std::string& who) const;

 private:
  void Keep(const Tensor& tensor) { descs_[tensor.id] = tensor.desc; }

  void AddConstant(Tensor* tensor, const void* data, size_t bytes, const std::string& who);

  static uint64_t Key(const EntryRef& entry);

  static std::string_view BytesOf(const Node& constant);

  /*! \brief Declines element types that the driver is too old for. */
  void RequireType(const npu_tensor_desc& desc, const std::string& who) const;

  void AddSymbolsAndInputs();

  void CountUses();

  /*! \brief The table's entry for a call, or NULL; only element-wise ones if `elementwise`. */
  const OpLowering* Find(size_t node, bool elementwise = false) const;

  /*! \brief Decides which calls are lowered together. Fused calls are lowered at the place of the
   *  last one, where all operands are known. */
  void FormUnits();

  /*! \brief Whether an argument is dequantized only for this call, in its composite. */
  bool IsDequantized(const EntryRef& input, const Node& reader) const;

  /*! \brief Whether an op can compute in integers; others, such as a softmax, read real numbers
   *  even if a composite dequantizes their arguments. */
  bool ComputesIntegers(size_t index) const;

  bool ReadsDequantized(size_t index) const;

  /*! \brief Claims the dequantizations in composites whose op computes in integers: those of its
   *  arguments, and those that its epilogue reads. */
  void InlineDequantizations(std::vector<char>* claimed);

  /*! \brief Claims the ops that dequantize the constant weights of a matmul, in its composite.
   */
  void InlineWeights(std::vector<char>* claimed);

  /*! \brief Adds the weights of a unit, as integers if its lowering and the driver take them. */
  void AddWeights(const Unit& unit, const std::string& who);

  bool SwapsLastDims(size_t index) const;

  /*! \brief The element-wise entry for a call that is fused into another one, or NULL. A scale, a
   *  bias or a residual belongs to the op before it: it needs no entry of its own. */
  const OpLowering* FindFused(size_t node) const;

  /*! \brief Adds the element-wise calls of the composite that can share a vector program with the
   *  unit: those of the same shape, as long as nothing else reads the intermediate values. */
  void FuseInto(Unit* unit, const std::vector<std::vector<size_t>>& users,
                const std::vector<char>& claimed) const;

  /*! \brief Whether a result may stay inside a vector program. Numbers there are float32; a
   * comparison of them is 0 or 1. */
  bool MayBeInside(size_t index) const;

  static void AddOperands(const std::vector<EntryRef>& inputs,
                          const std::unordered_set<size_t>& members,
                          std::unordered_set<uint64_t>* operands);

  void LowerUnit(const Unit& unit);

  const Graph& graph_;
  const LoweringOptions& options_;
  const npu_build_api& api_;
  LoweredProgram result_;
  std::unique_ptr<Sink> sink_;
  std::unordered_map<std::string, std::vector<const OpLowering*>> index_;
  std::unordered_map<uint64_t, Tensor> tensors_;
  std::unordered_map<npu_tensor, npu_tensor_desc> descs_;
  std::unordered_map<uint64_t, int> uses_;
  std::unordered_set<size_t> inlined_;
  /*! \brief By matmul: the dequantizations of its weights, and the weights in integers. */
  std::unordered_map<size_t, size_t> dequantized_weights_;
  std::unordered_map<size_t, IntegerWeights> weights_;
  std::vector<Unit> units_;
  std::unordered_map<size_t, size_t> unit_ending_at_;
};

}  // namespace npu

#endif  // CODEGEN_PROGRAM_BUILDER_H_
