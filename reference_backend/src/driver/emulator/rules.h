// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file rules.h
 * \brief The rules of each operation: which shapes and types it takes.
 *
 * One set of rules for the operations of a model (compiler/graph.h) and for the commands of a
 * program (program.h), so that neither a builder nor damaged or forged bytes get past them.
 */
#ifndef EMULATOR_RULES_H_
#define EMULATOR_RULES_H_

#include <string>
#include <vector>

#include "tensor.h"

namespace tvm_example_npu::emulator {

/*! \brief Checks operations; a subclass knows the tensors. Everything throws an Error. */
class OperationRules {
 public:
  virtual ~OperationRules() = default;

 protected:
  /*! \brief The shape of a tensor that the operation reads in this role. */
  virtual const Desc& Read(npu_tensor tensor, const char* role, bool may_be_packed) = 0;
  /*! \brief The shape of the tensor that the operation writes. */
  virtual const Desc& Write(npu_tensor tensor) = 0;
  /*! \brief The operation at hand, for messages. */
  virtual std::string Where() const = 0;
  /*! \brief A tensor, for messages. */
  virtual std::string Describe(npu_tensor tensor) const = 0;

  void Check(const npu_matmul& op);
  void Check(const npu_convolution& op);
  void Check(const npu_pool& op);
  void Check(const npu_elementwise& op);
  void Check(const npu_reduce& op);
  /*! \brief Checks an elementwise operation's program, or an epilogue. */
  void CheckVector(const std::vector<npu_vector_instruction>& instructions,
                   const std::vector<npu_tensor>& inputs, const Desc& out, bool epilogue);
};

/*! \brief Throws unless type, rank and sizes are possible. */
void CheckDesc(const Desc& desc, const std::vector<Symbol>& symbols);

}  // namespace tvm_example_npu::emulator

#endif  // EMULATOR_RULES_H_
