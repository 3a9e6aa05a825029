// SPDX-License-Identifier: Apache-2.0
/*!
 * \file listing.cc
 * \brief A program as text for people.
 */
#include "isa_emulator/listing.h"

#include <algorithm>

namespace npu::isa {
namespace {

void AddSizes(const char* what, const std::vector<int64_t>& sizes, std::string* text) {
  if (sizes.empty()) return;
  *text += std::string(what) + (sizes.size() == 1 ? " " : "s ");
  for (size_t i = 0; i < sizes.size(); ++i) {
    *text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  }
  *text += " bytes; ";
}

}  // namespace

std::string Listing(const Program& program) {
  std::string text =
      std::string(kMachine) + ": " + std::to_string(program.lines.size()) + " instructions; ";
  AddSizes("input", program.inputs, &text);
  AddSizes("output", program.outputs, &text);
  text += "constants " + std::to_string(program.constant_bytes) + " bytes; workspace " +
          std::to_string(program.workspace) + " bytes\n";
  const std::string last = std::to_string(program.lines.size());
  uint32_t label = 0, note = 0;
  for (size_t i = 0; i < program.lines.size(); ++i) {
    const Line& line = program.lines[i];
    std::string number = std::to_string(i);
    number.insert(0, last.size() - std::min(last.size(), number.size()), ' ');
    std::string all = number + "  " + program.TextOf(i);
    if (line.label != label || line.note != note) {
      label = line.label;
      note = line.note;
      constexpr size_t kColumn = 88;
      if (all.size() < kColumn) all.append(kColumn - all.size(), ' ');
      all += "  ; " + std::string(program.texts[label]);
      if (note != 0) all += (label != 0 ? " | " : "| ") + std::string(program.texts[note]);
    }
    text += all + "\n";
  }
  return text;
}

}  // namespace npu::isa
