// Yours: written once, then never touched by 'copier update'.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file plan.h
 * \brief Where each tensor of a program lies in memory.
 */
#ifndef EMULATOR_PLAN_H_
#define EMULATOR_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program.h"

namespace tvm_example_npu::emulator {

/*! \brief The memory that holds the elements of a tensor. */
struct Location {
  enum Place : uint8_t { kNowhere, kInput, kConstant, kOutput, kArena };
  Place place = kNowhere;
  /*! \brief Number of the input, constant or output; offset in the arena. */
  size_t position = 0;
};

/*! \brief A copy to an output that no command writes itself. */
struct OutputCopy {
  npu_tensor tensor;
  size_t output;
};

/*! \brief The memory plan of a program for certain values of its symbols. */
struct Plan {
  std::vector<int64_t> symbols;
  /*! \brief By tensor; views lie where their base does. */
  std::vector<Location> locations;
  /*! \brief To be done after all commands. */
  std::vector<OutputCopy> copies;
  /*! \brief Size of the memory that intermediate tensors share. */
  size_t arena_bytes = 0;
};

/*! \brief Plans the memory of a program; `symbols` has a value for each of its symbols. Takes
 *  O(n log n) for n commands. */
Plan MakePlan(const Program& program, const std::vector<int64_t>& symbols);

}  // namespace tvm_example_npu::emulator

#endif  // EMULATOR_PLAN_H_
