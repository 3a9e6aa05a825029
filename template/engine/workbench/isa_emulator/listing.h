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

/*! \brief The memories that a program needs, and its instructions, each with the op and the loop
 * that it was made of, where they are others than those of the line before. */
std::string Listing(const Program& program);

}  // namespace npu::isa

#endif  // ISA_EMULATOR_LISTING_H_
