// SPDX-License-Identifier: Apache-2.0
/*!
 * \file emit.h
 * \brief The commands of one operation: transfers of its tiles, and the work on them.
 */
#ifndef EMULATOR_COMPILER_EMIT_H_
#define EMULATOR_COMPILER_EMIT_H_

#include <cstdint>
#include <vector>

#include "assembler.h"
#include "tiling.h"

namespace npu::emulator {

/*! \brief How an operation is cut, and where in the scratchpad it works. */
struct Placement {
  Loop loop;
  Tiling tiling;
  /*! \brief Offsets of the buffers of each operand, and for partial sums. */
  std::vector<std::vector<int64_t>> reads;
  std::vector<int64_t> outs, sums;
  /*! \brief Whether the output goes to its home in DRAM, even if it is resident. */
  bool store = true;
};

/*! \brief Adds the commands of operation `index`. */
void Emit(const Operation& operation, int32_t index, const Placement& placement,
          const Machine& machine, Assembler* assembler);

}  // namespace npu::emulator

#endif  // EMULATOR_COMPILER_EMIT_H_
