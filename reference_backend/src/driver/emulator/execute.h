// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execute.h
 * \brief Runs the commands of a program.
 */
#ifndef EMULATOR_EXECUTE_H_
#define EMULATOR_EXECUTE_H_

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "plan.h"
#include "program.h"

namespace tvm_example_npu::emulator {

/*!
 * \brief A program made ready for one memory plan: everything but the addresses of inputs and
 *        outputs is settled, so that a run does nothing but the work.
 */
class Execution {
 public:
  Execution() = default;
  /*! \brief `program` and `arena` (plan.arena_bytes) must outlive this. */
  Execution(const Program& program, const Plan& plan, uint8_t* arena, int32_t threads);
  // Moving keeps the addresses of views and steps, copying would not.
  Execution(Execution&&) = default;
  Execution& operator=(Execution&&) = default;

  /*! \brief Sets the addresses of the inputs, followed by those of the outputs. */
  void Bind(const std::vector<void*>& buffers);
  /*! \brief Executes; the context's scratch has scratch_bytes(). */
  void Run(const KernelContext& context) const;

  size_t scratch_bytes() const { return scratch_bytes_; }
  /*! \brief Number of commands of a run, with copies to outputs. */
  uint64_t commands() const { return steps_.size(); }
  /*! \brief Floating-point operations of matmuls and convolutions of a run. */
  uint64_t matrix_operations() const { return matrix_operations_; }

 private:
  using Step =
      std::variant<MatMulArgs, ConvolutionArgs, PoolArgs, ElementwiseArgs, ReduceArgs, CopyArgs>;
  /*! \brief An address to be set by Bind. */
  struct Slot {
    void** address;
    size_t buffer;
  };
  class Preparer;

  std::vector<Step> steps_;
  /*! \brief The inputs of all vector programs. */
  std::vector<TensorView> views_;
  std::vector<Slot> slots_;
  size_t scratch_bytes_ = 0;
  uint64_t matrix_operations_ = 0;
};

}  // namespace tvm_example_npu::emulator

#endif  // EMULATOR_EXECUTE_H_
