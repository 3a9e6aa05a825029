// SPDX-License-Identifier: Apache-2.0
/*!
 * \file table.cc
 * \brief The instructions of the machine: what backend/isa/cpp.py wrote, and the vendor's
 * functions.
 */
#include <cstring>
#include <iterator>

#include "isa_emulator/program.h"
#include "isa_emulator/state.h"
#include "isa_semantics.h"

namespace npu::isa {
namespace {

#include "isa_table.inc"

/*! \brief The places of instructions by their opcodes; -1: none. */
struct Places {
  Places() {
    std::memset(places, -1, sizeof(places));
    for (const InstructionInfo& info : kInstructions) {
      places[info.opcode] = static_cast<int16_t>(&info - kInstructions);
    }
  }
  int16_t places[256];
};

}  // namespace

const InstructionInfo* FindInstruction(int32_t opcode) {
  static const Places places;
  const int16_t place = places.places[opcode & 255];
  return place < 0 ? nullptr : &kInstructions[place];
}

const char* TextOf(Name name) { return kNames[static_cast<int32_t>(name)]; }

int64_t PeakOf(const InstructionInfo& info, const void* fields) {
  for (const PeakInfo& peak : kPeaks) {
    if (peak.opcode != info.opcode) continue;
    if (peak.type_field == SIZE_MAX) return peak.peak;
    Chosen type;
    std::memcpy(&type, static_cast<const uint8_t*>(fields) + peak.type_field, sizeof(type));
    if (type.index == peak.type) return peak.peak;
  }
  return 0;
}

}  // namespace npu::isa
