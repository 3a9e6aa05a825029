// SPDX-License-Identifier: Apache-2.0
/*!
 * \file listing.h
 * \brief A program as text for people.
 */
#ifndef ISA_EMULATOR_LISTING_H_
#define ISA_EMULATOR_LISTING_H_

#include <string>

#include "isa_emulator/program.h"

namespace npu::isa {

/*! \brief The memories that a program needs, and its instructions. In lines that begin with "#"
 *  before them: the op and its kernel, what lies in the memories, and the loops that they were made
 *  of, each where it begins. */
std::string Listing(const Program& program);

}  // namespace npu::isa

#endif  // ISA_EMULATOR_LISTING_H_
