// SPDX-License-Identifier: Apache-2.0
/*!
 * \file listing.h
 * \brief A program as text for people.
 */
#ifndef EMULATOR_LISTING_H_
#define EMULATOR_LISTING_H_

#include <string>

#include "accesses.h"
#include "program.h"
#include "timeline.h"

namespace npu::emulator {

/*! \brief The machine, the memory map, one line for each command, and totals, with the times of
 *  `timeline`. */
std::string Listing(const Program& program, const Accesses& accesses, const Timeline& timeline);

}  // namespace npu::emulator

#endif  // EMULATOR_LISTING_H_
