// SPDX-License-Identifier: Apache-2.0
/*!
 * \file elision.h
 * \brief Elides transfers that the emulator's host does not need.
 */
#ifndef EMULATOR_ELISION_H_
#define EMULATOR_ELISION_H_

#include <vector>

#include "accesses.h"
#include "program.h"

namespace npu::emulator {

/*! \brief Where the commands of a program find their tensors. */
struct Elision {
  /*! \brief Where each access finds its tensor. */
  std::vector<Place> places;
  /*! \brief By command: whether it is an elided transfer. */
  std::vector<bool> skipped;
  /*! \brief By command: the elided transfer that put zeros between the data of this convolution,
   *  which reads what the transfer has read; otherwise -1. */
  std::vector<int32_t> spreads;
};

/*! \brief Tensors at the program's places, and no transfer elided. */
Elision NoElision(const Program& program, const Accesses& accesses);

/*!
 * \brief The same results with fewer transfers: the host has one memory, so copies between the
 *        emulated ones are a waste.
 *
 * Three kinds of transfers are elided if no command can tell:
 *
 * - a contiguous load to the scratchpad: readers of the copy read the original;
 * - a load that puts zeros between the elements, for convolutions: they read the original;
 * - a contiguous store of what one command wrote to the scratchpad: that command writes to the
 *   destination, and readers of the copy in the scratchpad read the destination.
 *
 * It holds for all values of the symbols.
 */
Elision Elide(const Program& program, const Accesses& accesses);

}  // namespace npu::emulator

#endif  // EMULATOR_ELISION_H_
