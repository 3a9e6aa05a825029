// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execute.h
 * \brief Runs the commands of a program.
 */
#ifndef EMULATOR_EXECUTE_H_
#define EMULATOR_EXECUTE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "elision.h"
#include "program.h"

namespace npu::emulator {

/*!
 * \brief A program prepared for certain memory: only symbols and the addresses of inputs and
 * outputs are left to set, so that a run does only the work.
 */
class Execution {
 public:
  /*! \brief `program` must outlive this, and so must the scratchpad (ScratchpadBytes) and the
   *  arena. */
  Execution(const Program& program, const Accesses& accesses, const Elision& elision,
            uint8_t* scratchpad, uint8_t* arena);
  // Slots refer to members.
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  /*! \brief Sets the symbols, initially at their bounds; allocates nothing. */
  void SetSymbols(const int64_t* symbols);
  /*! \brief Sets the addresses of the inputs, followed by those of the outputs. */
  void Bind(const std::vector<void*>& buffers);
  /*! \brief Executes; the context's scratch has scratch_bytes(). Stops between two commands, and
   *  returns false, when `cancel` is set. */
  bool Run(const KernelContext& context, const std::atomic<bool>& cancel) const;

  /*! \brief The kernels' scratch size with the current symbols. */
  size_t scratch_bytes() const { return scratch_bytes_; }
  /*! \brief The kernels' scratch size for any symbols, as far as known. */
  size_t most_scratch_bytes() const { return most_scratch_bytes_; }

 private:
#define NPU_ARGS(name, reads) , PlainArgs<npu_##name>
  using Step = std::variant<MatMulArgs, ConvolutionArgs, PoolArgs, ElementwiseArgs, ReduceArgs,
                            CopyArgs, GatherArgs, UpdateArgs NPU_PLAIN_OPERATIONS(NPU_ARGS, )>;
#undef NPU_ARGS
  /*! \brief An address to be set by Bind. */
  struct Slot {
    void** address;
    size_t buffer;
    uint64_t offset;
  };
  /*! \brief A shape to be set by SetSymbols. */
  struct Shape {
    TensorView* view;
    const Desc* desc;
  };
  class Preparer;

  /*! \brief Runs the steps from `first` on that take one pass over rows; returns their number,
   *  or 0. */
  size_t RunRows(size_t first, const KernelContext& context) const;

  int32_t threads_;
  std::vector<Step> steps_;
  /*! \brief The inputs of all vector programs. */
  std::vector<TensorView> views_;
  std::vector<Slot> slots_;
  std::vector<Shape> shapes_;
  size_t scratch_bytes_ = 0;
  size_t most_scratch_bytes_ = 0;
};

}  // namespace npu::emulator

#endif  // EMULATOR_EXECUTE_H_
