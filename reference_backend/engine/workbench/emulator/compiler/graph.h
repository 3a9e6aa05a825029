// SPDX-License-Identifier: Apache-2.0
/*!
 * \file graph.h
 * \brief The operations of a model, collected by a builder.
 */
#ifndef EMULATOR_COMPILER_GRAPH_H_
#define EMULATOR_COMPILER_GRAPH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../program.h"
#include "../rules.h"

namespace npu::emulator {

/*! \brief Where the elements of a value come from. */
enum class Source : uint8_t { kInput, kConstant, kResult, kView };

/*! \brief A tensor of a graph. */
struct Value {
  Desc desc;
  Source source;
  /*! \brief Which input or constant this is. */
  int32_t index;
  /*! \brief The tensor that owns the elements: itself, or the tensor that a view shows. */
  npu_tensor base;
};

/*! \brief An operation. Pointers inside `op` are null: `instructions` and `inputs` are the vector
 *  program of an elementwise operation, or the epilogue of another (empty: there is none). */
struct Operation {
  OperationList<npu_copy>::Variant op;
  std::vector<npu_vector_instruction> instructions;
  std::vector<npu_tensor> inputs;
  /*! \brief Which of the graph's labels it belongs to. */
  int32_t label = 0;
};

/*! \brief For messages, e.g. `matmul`. */
inline const char* NameOf(const Operation& operation) {
  return kOperationNames[operation.op.index()];
}

/*!
 * \brief Operations that obey every rule of the driver's header.
 *
 * The functions that add to it check what they add and throw an Error.
 */
class Graph : private OperationRules {
 public:
  /*! \brief Adds a symbol. */
  int32_t AddSymbol(const std::string& name, int64_t bound);
  /*! \brief Adds the next input. */
  npu_tensor AddInput(const npu_tensor_desc& given);
  /*! \brief Adds a constant, whose data must outlive the graph. */
  npu_tensor AddConstant(const npu_tensor_desc& given, const void* data, size_t bytes);
  /*! \brief Adds a tensor that operations write. */
  npu_tensor AddResult(const npu_tensor_desc& given);
  /*! \brief Adds the elements of `data` with another shape. */
  npu_tensor AddView(npu_tensor data, const npu_tensor_desc& given);
  /*! \brief Names the operations that follow. */
  void SetLabel(const std::string& label);
  /*! \brief Adds an operation; its label is set here. */
  void Add(Operation operation);
  /*! \brief Makes a tensor the next output. */
  void MarkOutput(npu_tensor tensor);
  /*! \brief Whether an update of an input may share its memory; see npu_build_api::add_state. */
  bool AddState(npu_tensor input, npu_tensor output);
  /*! \brief Checks the rules that only the whole graph can break. */
  void Finish() const;
  /*! \brief Computes copies of constants now, so that their results are constants: a weight that is
   *  transposed or flipped can be packed like any other. Only for a graph that has passed
   *  Finish. */
  void FoldCopies();

  const std::vector<Symbol>& symbols() const { return symbols_; }
  const std::vector<Value>& values() const { return values_; }
  /*! \brief The data of constant `index`. */
  const uint8_t* constant(int32_t index) const { return constants_[index]; }
  const std::vector<Operation>& operations() const { return operations_; }
  const std::vector<npu_tensor>& inputs() const { return inputs_; }
  const std::vector<npu_tensor>& outputs() const { return outputs_; }
  const std::vector<std::string>& labels() const { return labels_; }
  const std::vector<StateMemory>& states() const { return states_; }
  /*! \brief Whether a value is that of a state after the call. */
  bool IsState(npu_tensor value) const {
    return std::any_of(states_.begin(), states_.end(),
                       [&](const StateMemory& state) { return outputs_[state.output] == value; });
  }

 private:
  /*! \brief A box that a copy has written. */
  struct Box {
    int64_t begin[NPU_MAX_RANK];
    int64_t end[NPU_MAX_RANK];
  };
  /*! \brief How much of a tensor is written. */
  struct Progress {
    bool complete = false;
    bool filled = false;
    bool read = false;
    /*! \brief The boxes that copies have written, and their number of elements. */
    std::vector<Box> boxes;
    int64_t elements = 0;
  };

  npu_tensor Append(const Value& value);
  Desc ToDesc(const npu_tensor_desc& given) const;
  const Value& Get(npu_tensor tensor, const char* role) const;
  void CheckCopy(const npu_copy& op);
  /*! \brief Checks the offset and the steps of a copy's box in a fixed dimension. */
  void CheckStep(int64_t offset, int64_t step, int64_t least, int64_t size, npu_tensor tensor,
                 int32_t dimension) const;

  const Desc& Read(npu_tensor tensor, const char* role, bool may_be_packed) override;
  const Desc& Write(npu_tensor tensor) override;
  std::string Where() const override;
  std::string Describe(npu_tensor tensor) const override;

  std::vector<Symbol> symbols_;
  std::vector<Value> values_;
  std::vector<Progress> progress_;
  std::vector<const uint8_t*> constants_;
  /*! \brief The memory of constants that are computed here. */
  std::vector<Buffer> folded_;
  std::vector<Operation> operations_;
  std::vector<npu_tensor> inputs_;
  std::vector<npu_tensor> outputs_;
  std::vector<std::string> labels_ = {""};
  std::vector<StateMemory> states_;
  /*! \brief The operation being checked, for messages. */
  const char* operation_ = "";
};

}  // namespace npu::emulator

#endif  // EMULATOR_COMPILER_GRAPH_H_
