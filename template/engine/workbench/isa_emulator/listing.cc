// SPDX-License-Identifier: Apache-2.0
/*!
 * \file listing.cc
 * \brief A program as text for people.
 */
#include "isa_emulator/listing.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

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

/*! \brief Writes what lines belong to, where that is something else than for the line before. */
class Comments {
 public:
  Comments(const Program& program, std::string* text)
      : program_(program), text_(text), by_line_(program.allocations.size()) {
    std::iota(by_line_.begin(), by_line_.end(), size_t{0});
    std::stable_sort(by_line_.begin(), by_line_.end(), [&](size_t a, size_t b) {
      const Allocation &one = program.allocations[a], &other = program.allocations[b];
      return std::tie(one.first, one.memory, one.offset) <
             std::tie(other.first, other.memory, other.offset);
    });
  }

  void AddBefore(size_t index) {
    const Line& line = program_.lines[index];
    if (line.label != label_ || line.note != note_) {
      label_ = line.label;
      note_ = line.note;
      source_ = 0;
      const std::string op(program_.texts[label_]), kernel(program_.texts[note_]);
      Add(0, op + (op.empty() || kernel.empty() ? "" : " | ") + kernel);
    }
    for (; next_ < by_line_.size(); ++next_) {
      const Allocation& it = program_.allocations[by_line_[next_]];
      if (it.first > index) break;
      AddAllocation(it);
    }
    if (line.source != source_) {
      AddSource(line.source);
      source_ = line.source;
    }
  }

 private:
  void Add(size_t depth, const std::string& what) {
    *text_ += "# " + std::string(2 * depth, ' ') + what + "\n";
  }

  void AddAllocation(const Allocation& it) {
    Add(1, std::string(kMemories[it.memory].name) + " " + std::to_string(it.offset) + " to " +
               std::to_string(it.offset + it.bytes) + ": " + std::string(program_.texts[it.text]) +
               ", lines " + std::to_string(it.first) + " to " + std::to_string(it.last));
  }

  /*! \brief Adds a loop and those around it, but for those that the line before is in. */
  void AddSource(uint32_t source) {
    std::vector<uint32_t> path;
    for (; source != 0; source = program_.sources[source].within) path.push_back(source);
    for (size_t depth = 1; !path.empty(); path.pop_back(), ++depth) {
      if (IsIn(path.back())) continue;
      const Source& it = program_.sources[path.back()];
      const std::string reason(program_.texts[it.reason]);
      Add(depth, std::string(program_.texts[it.text]) +
                     (reason.empty() ? "" : "  (scalar code, since " + reason + ")"));
    }
  }

  /*! \brief Whether the line before is in a loop. */
  bool IsIn(uint32_t source) const {
    uint32_t before = source_;
    while (before > source) before = program_.sources[before].within;
    return before == source;
  }

  const Program& program_;
  std::string* text_;
  std::vector<size_t> by_line_;
  size_t next_ = 0;
  uint32_t label_ = 0, note_ = 0, source_ = 0;
};

}  // namespace

std::string Listing(const Program& program) {
  std::string text =
      std::string(kMachine) + ": " + std::to_string(program.lines.size()) + " instructions; ";
  AddSizes("input", program.inputs, &text);
  AddSizes("output", program.outputs, &text);
  text += "constants " + std::to_string(program.constant_bytes) + " bytes; workspace " +
          std::to_string(program.workspace) + " bytes\n";
  const size_t digits = std::to_string(program.lines.size()).size();
  Comments comments(program, &text);
  for (size_t i = 0; i < program.lines.size(); ++i) {
    comments.AddBefore(i);
    std::string number = std::to_string(i);
    number.insert(0, digits - std::min(digits, number.size()), ' ');
    text += number + "  " + program.TextOf(i) + "\n";
  }
  return text;
}

}  // namespace npu::isa
