// SPDX-License-Identifier: Apache-2.0
/*!
 * \file elision.h
 * \brief Leaves out transfers that the emulator's host does not need.
 */
#ifndef EMULATOR_ELISION_H_
#define EMULATOR_ELISION_H_

#include <vector>

#include "accesses.h"
#include "program.h"

namespace npu::emulator {

/*! \brief Where the commands of a program find their tensors. */
struct Elision {
  /*! \brief By access: where the tensor is. */
  std::vector<Place> places;
  /*! \brief By command: whether it is a transfer that needs not be done. */
  std::vector<bool> skipped;
};

/*! \brief Every tensor where the program says, and every command done. */
Elision NoElision(const Program& program, const Accesses& accesses);

/*!
 * \brief The same results with fewer transfers. For the host, all memories are alike, and copies
 *        from one to the other a waste.
 *
 * Two kinds of transfers of bytes that lie side by side are left out, where no command can tell:
 *
 * - a load to the scratchpad: who reads the copy reads the original;
 * - a store of what one command wrote to the scratchpad: that command writes to the destination,
 *   and who reads the copy in the scratchpad reads the destination.
 *
 * It holds for all values of the symbols.
 */
Elision Elide(const Program& program, const Accesses& accesses);

}  // namespace npu::emulator

#endif  // EMULATOR_ELISION_H_
