// SPDX-License-Identifier: Apache-2.0
/*!
 * \file operations.h
 * \brief The list of operations, and what the emulator asks of a plain one.
 *
 * To add a plain operation, declare it in npu_driver.h and its list, and write
 * operations/<name>.cc, which defines OperationRules::Check (rules.h) and the functions below for
 * it; ScratchBytes and Execute may be in kernels/. These files are compiled as one, so names
 * in their anonymous namespaces differ.
 */
#ifndef EMULATOR_OPERATIONS_H_
#define EMULATOR_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/kernels.h"
#include "machine.h"

namespace npu::emulator {

/*! \brief What the machine has. In a graph, an update reads all of its data; in a program the data
 * is its output, in the same place, of which it replaces slices. */
#define EMULATOR_OPERATIONS(X, R) \
  NPU_OPERATIONS(X, R)            \
  X(update, R(update, value) R(update, positions))

/*! \brief One of all operations; programs store their indices. `Copy` stands for npu_copy. */
template <typename Copy>
struct OperationList {
  template <typename Op>
  using Of = std::conditional_t<std::is_same_v<Op, npu_copy>, Copy, Op>;
  template <typename None, typename... Ops>
  struct Make {
    using Variant = std::variant<Of<Ops>...>;
  };
#define NPU_TYPE(name, reads) , npu_##name
  using Variant = typename Make<void EMULATOR_OPERATIONS(NPU_TYPE, )>::Variant;
#undef NPU_TYPE
};

#define NPU_NAME(name, reads) #name,
constexpr const char* kOperationNames[] = {EMULATOR_OPERATIONS(NPU_NAME, )};
#undef NPU_NAME

/*! \brief Whether an operation is a plain one: the vector engine computes it without a program. */
template <typename Op>
constexpr bool kIsPlain = false;
#define NPU_PLAIN(name, reads) \
  template <>                  \
  inline constexpr bool kIsPlain<npu_##name> = true;
NPU_PLAIN_OPERATIONS(NPU_PLAIN, )
#undef NPU_PLAIN

template <typename Op, typename = void>
constexpr bool kHasAxis = false;
template <typename Op>
constexpr bool kHasAxis<Op, std::void_t<decltype(Op::axis)>> = true;

/*! \brief The axis that a plain operation goes along, which tiles do not cut; -1: there is none. */
template <typename Op>
int32_t AxisOf(const Op& op) {
  if constexpr (kHasAxis<Op>) return op.axis;
  return -1;
}

/*! \brief Calls `visit` with each tensor that an operation reads, but for those of its vector
 *  program. */
template <typename Op, typename Visitor>
void ForEachOperand(Op& op, const Visitor& visit) {
#define NPU_READ(name, role) visit(op.role);
#define NPU_READS(name, reads)                                         \
  if constexpr (std::is_same_v<std::remove_const_t<Op>, npu_##name>) { \
    reads                                                              \
  }
  EMULATOR_OPERATIONS(NPU_READS, NPU_READ)
#undef NPU_READS
#undef NPU_READ
  if constexpr (std::is_same_v<std::remove_const_t<Op>, npu_matmul>) {
    if (op.b_block != 0) visit(op.b_scales);
    if (op.b_block != 0 && op.b_zero_points >= 0) visit(op.b_zero_points);
  }
  if constexpr (std::is_same_v<std::remove_const_t<Op>, npu_update>) {
    if (op.data != op.out) visit(op.data);
  }
}

/*! \brief Calls `visit` with each tensor that an operation of a graph, or a command of a program,
 *  reads. */
template <typename Operation, typename Visitor>
void ForEachRead(const Operation& operation, const Visitor& visit) {
  std::visit([&visit](const auto& op) { ForEachOperand(op, visit); }, operation.op);
  // Input 0 of an epilogue is the result so far.
  const bool epilogue = !std::holds_alternative<npu_elementwise>(operation.op);
  for (size_t i = epilogue ? 1 : 0; i < operation.inputs.size(); ++i) visit(operation.inputs[i]);
}

/*! \brief The tensor that an operation, or a command, writes. */
template <typename Operation>
npu_tensor OutputOf(const Operation& operation) {
  return std::visit([](const auto& op) { return op.out; }, operation.op);
}

/*!
 * \name What operations/<name>.cc defines
 * - SameType: the tensor whose element type the output must have; -1: the operation converts.
 * - CyclesOf: how long the vector engine takes. `data` is the first tensor that is read.
 * - TextOf: in listings, what follows "out = "; `texts` are those of the tensors that it reads.
 * - ScratchBytes, Execute: as those of kernels.h. Of integers, a scan computes in int64, else in
 * float32; the rows of an order have less than 2^32 elements, and are not shorter than those of
 * `out`.
 * @{
 */
#define NPU_DECLARE(name, reads)                                                         \
  npu_tensor SameType(const npu_##name& op);                                             \
  int64_t CyclesOf(const npu_##name& op, const Machine& machine, const TensorView& data, \
                   const TensorView& out);                                               \
  std::string TextOf(const npu_##name& op, const std::vector<std::string>& texts);       \
  size_t ScratchBytes(const PlainArgs<npu_##name>& args, int threads);                   \
  void Execute(const PlainArgs<npu_##name>& args, const KernelContext& context);
NPU_PLAIN_OPERATIONS(NPU_DECLARE, )
#undef NPU_DECLARE
/*! @} */

}  // namespace npu::emulator

#endif  // EMULATOR_OPERATIONS_H_
