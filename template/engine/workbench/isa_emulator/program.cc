// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.cc
 * \brief Reads and checks programs.
 */
#include "isa_emulator/program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "driver_kit/program.h"

namespace npu::isa {
namespace {

// ---- Bytes ----

constexpr size_t kAlignment = 64;
constexpr size_t kCheckedFrom = 32;
/*! \brief Of what belongs to a line, a source and an allocation. */
constexpr size_t kNoteBytes = 12, kSourceBytes = 12, kAllocationBytes = 32;
/*! \brief Of an instruction: sums of them are far from any limit. */
constexpr int64_t kMostCycles = INT64_C(1) << 40;

/*! \brief The beginning of a file; backend/isa/program.py has the meaning of each number. */
struct Header {
  char magic[8];
  uint32_t version, word_bytes;
  uint64_t fingerprint;
  uint32_t checksum, zero;
  uint64_t bytes;
  uint32_t lines, texts, inputs, outputs;
  uint64_t workspace, constants, text_bytes;
  uint32_t name_bytes, other_zero;
  uint32_t sources, allocations;
};
static_assert(sizeof(Header) == 96, "the header of a program has another size");

[[noreturn]] void Corrupt(const std::string& why) { kit::Refuse("the program is corrupt: " + why); }

/*! \brief Takes one part of a file after the other. */
class Parts {
 public:
  Parts(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {}

  const uint8_t* Take(uint64_t count, uint64_t each) {
    if (count > (size_ - at_) / each) Corrupt("its parts do not fit into it");
    const uint8_t* part = bytes_ + at_;
    at_ += static_cast<size_t>(count * each);
    const size_t end = (at_ + kAlignment - 1) / kAlignment * kAlignment;
    if (end > size_) Corrupt("its parts do not fit into it");
    for (; at_ < end; ++at_) {
      if (bytes_[at_] != 0) Corrupt("there is something between its parts");
    }
    return part;
  }
  bool AreAllTaken() const { return at_ == size_; }

 private:
  const uint8_t* bytes_;
  size_t size_, at_ = 0;
};

template <typename T>
T Read(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

std::vector<int64_t> ReadSizes(const uint8_t* bytes, uint32_t count) {
  std::vector<int64_t> sizes;
  for (uint32_t i = 0; i < count; ++i) {
    const auto size = Read<uint64_t>(bytes + 8 * static_cast<size_t>(i));
    if (size >> kSegmentBits != 0) Corrupt("an input or output is larger than a segment");
    sizes.push_back(static_cast<int64_t>(size));
  }
  return sizes;
}

/*! \brief An allocation; its memory must have such bytes. */
Allocation ReadAllocation(const uint8_t* bytes, int64_t workspace) {
  const auto address = Read<uint64_t>(bytes), size = Read<uint64_t>(bytes + 8);
  const uint64_t segment = address >> kSegmentBits;
  Allocation found = {};
  found.text = Read<uint32_t>(bytes + 16);
  found.first = Read<uint32_t>(bytes + 20);
  found.last = Read<uint32_t>(bytes + 24);
  found.memory = SegmentedMemory();
  int64_t room = workspace;
  if (segment != kWorkspace) {
    if (segment == 0 || segment > kMemoryCount) Corrupt("it allocates in no memory");
    found.memory = static_cast<int32_t>(segment) - 1;
    room = kMemories[found.memory].bytes;
  }
  found.offset = static_cast<int64_t>(address & ((uint64_t{1} << kSegmentBits) - 1));
  if (found.offset > room || size > static_cast<uint64_t>(room - found.offset)) {
    Corrupt("it allocates more than a memory has");
  }
  found.bytes = static_cast<int64_t>(size);
  return found;
}

// ---- Words ----

/*! \brief At most 64 bits of a word. */
uint64_t Bits(const uint8_t* word, int32_t low, int32_t count) {
  uint64_t value = 0;
  for (int32_t done = 0; done < count;) {
    const int32_t at = low + done, in = at % 8;
    const int32_t taken = std::min(8 - in, count - done);
    const auto part = static_cast<uint64_t>(word[at / 8] >> in & ((1 << taken) - 1));
    value |= part << done;
    done += taken;
  }
  return value;
}

int64_t Extended(uint64_t value, int32_t bits) {
  if (bits == 64 || (value >> (bits - 1) & 1) == 0) return static_cast<int64_t>(value);
  return static_cast<int64_t>(value) - (int64_t{1} << (bits - 1)) * 2;
}

constexpr int32_t RegisterBits() {
  int32_t bits = 0;
  while ((int64_t{1} << bits) < kRegisters) ++bits;
  return bits;
}

template <typename T>
void Put(const T& value, void* fields, size_t place) {
  std::memcpy(static_cast<uint8_t*>(fields) + place, &value, sizeof(value));
}

template <typename T>
T Get(const void* fields, size_t place) {
  return Read<T>(static_cast<const uint8_t*>(fields) + place);
}

std::string Digits(const FieldInfo& field, int64_t value) {
  return field.is_signed ? std::to_string(value) : std::to_string(static_cast<uint64_t>(value));
}

/*! \brief A float32 in as few digits as tell it from all others. */
std::string Digits(float value) {
  char text[32];
  for (int digits = 6; digits < 10; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, static_cast<double>(value));
    if (std::strtof(text, nullptr) == value) break;
  }
  return text;
}

/*! \brief The value of a number that a text leaves out. */
int64_t DefaultOf(const FieldInfo& field) {
  const bool has_zero = field.is_signed ? field.least <= 0 && field.most >= 0 : field.least == 0;
  return has_zero ? 0 : field.least;
}

int64_t CheckedNumber(const FieldInfo& field, uint64_t raw) {
  if (!field.is_signed) {
    const auto least = static_cast<uint64_t>(field.least), most = static_cast<uint64_t>(field.most);
    if (raw >= least && raw <= most) return static_cast<int64_t>(raw);
  } else {
    const int64_t value = Extended(raw, field.bits);
    if (value >= field.least && value <= field.most) return value;
  }
  const int64_t value = field.is_signed ? Extended(raw, field.bits) : static_cast<int64_t>(raw);
  kit::Refuse(std::string(field.name) + " is " + Digits(field, value) + ", not from " +
              Digits(field, field.least) + " to " + Digits(field, field.most));
}

int32_t CheckedRegister(const FieldInfo& field, uint64_t raw) {
  if (raw >= static_cast<uint64_t>(kRegisters)) {
    kit::Refuse(std::string(field.name) + " is register " + std::to_string(raw) +
                ", but they are from 0 to " + std::to_string(kRegisters - 1));
  }
  return static_cast<int32_t>(raw);
}

}  // namespace

int32_t SegmentedMemory() {
  for (int32_t i = 0; i < kMemoryCount; ++i) {
    if (kMemories[i].bytes == 0) return i;
  }
  return 0;
}

uint32_t ChecksumOf(const uint8_t* bytes, size_t size) {
  // Eight bytes at a time.
  static const auto tables = [] {
    std::array<std::array<uint32_t, 256>, 8> made = {};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
      made[0][i] = value;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (uint32_t i = 0; i < 256; ++i) {
        made[k][i] = made[k - 1][i] >> 8 ^ made[0][made[k - 1][i] & 255];
      }
    }
    return made;
  }();
  uint32_t sum = ~0u;
  for (; size >= 8; size -= 8, bytes += 8) {
    uint32_t low = 0, high = 0;
    std::memcpy(&low, bytes, 4);
    std::memcpy(&high, bytes + 4, 4);
    low ^= sum;
    sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum ^= tables[static_cast<size_t>(7 - i)][low >> (8 * i) & 255];
      sum ^= tables[static_cast<size_t>(3 - i)][high >> (8 * i) & 255];
    }
  }
  for (; size > 0; --size, ++bytes) sum = sum >> 8 ^ tables[0][(sum ^ *bytes) & 255];
  return ~sum;
}

Program::Program(const uint8_t* bytes, size_t size) {
  Header header;
  if (size < sizeof(header) || std::memcmp(bytes, "NPUISA1", 8) != 0) {
    kit::Refuse("it is no program of an instruction set: it does not begin with NPUISA1");
  }
  std::memcpy(&header, bytes, sizeof(header));
  if (header.version != 1) {
    kit::Refuse("the program has version " + std::to_string(header.version) +
                " of its format; supported is 1");
  }
  if (header.bytes != size) {
    Corrupt("it has " + std::to_string(size) + " bytes, but should have " +
            std::to_string(header.bytes));
  }
  if (ChecksumOf(bytes + kCheckedFrom, size - kCheckedFrom) != header.checksum ||
      header.zero != 0 || header.other_zero != 0) {
    Corrupt("its checksum is another");
  }
  if (header.word_bytes != kWordBytes || header.fingerprint != kFingerprint) {
    kit::Refuse(std::string("the program was compiled for another table than that of '") +
                kMachine + "': compile it again");
  }
  if (header.workspace >> kSegmentBits != 0 || header.constants >> kSegmentBits != 0) {
    Corrupt("a segment is too large");
  }
  Parts parts(bytes, size);
  parts.Take(1, sizeof(header));
  const uint8_t* ports = parts.Take(uint64_t{header.inputs} + header.outputs, 8);
  parts.Take(header.name_bytes, 1);
  const uint8_t* notes = parts.Take(header.lines, kNoteBytes);
  const uint8_t* from = parts.Take(header.sources, kSourceBytes);
  const uint8_t* kept = parts.Take(header.allocations, kAllocationBytes);
  const uint8_t* text = parts.Take(header.text_bytes, 1);
  constants = parts.Take(header.constants, 1);
  const uint8_t* words = parts.Take(header.lines, kWordBytes);
  if (!parts.AreAllTaken()) Corrupt("its parts do not fill it");
  constant_bytes = static_cast<int64_t>(header.constants);
  workspace = static_cast<int64_t>(header.workspace);
  inputs = ReadSizes(ports, header.inputs);
  outputs = ReadSizes(ports + 8 * static_cast<size_t>(header.inputs), header.outputs);

  const uint8_t* const text_end = text + header.text_bytes;
  for (uint32_t i = 0; i < header.texts; ++i) {
    const auto left = static_cast<size_t>(text_end - text);
    if (left < 4 || Read<uint32_t>(text) > left - 4) Corrupt("its texts do not fill their part");
    texts.emplace_back(reinterpret_cast<const char*>(text) + 4, Read<uint32_t>(text));
    text += 4 + texts.back().size();
  }
  if (text != text_end || texts.empty() || !texts[0].empty()) {
    Corrupt("its texts do not fill their part");
  }

  sources.resize(1);
  for (uint32_t i = 0; i < header.sources; ++i, from += kSourceBytes) {
    const auto source = Read<Source>(from);
    if (source.within > i || source.text >= texts.size() || source.reason >= texts.size()) {
      Corrupt("it has no text or loop for a source");
    }
    sources.push_back(source);
  }
  for (uint32_t i = 0; i < header.allocations; ++i, kept += kAllocationBytes) {
    allocations.push_back(ReadAllocation(kept, workspace));
    const Allocation& allocation = allocations.back();
    if (allocation.text >= texts.size() || allocation.first > allocation.last ||
        allocation.last >= header.lines) {
      Corrupt("it has no text or lines for what it allocates");
    }
  }

  lines.resize(header.lines);
  for (size_t i = 0; i < lines.size(); ++i) {
    Line& line = lines[i];
    line.label = Read<uint32_t>(notes + kNoteBytes * i);
    line.note = Read<uint32_t>(notes + kNoteBytes * i + 4);
    line.source = Read<uint32_t>(notes + kNoteBytes * i + 8);
    if (line.label >= texts.size() || line.note >= texts.size() || line.source >= sources.size()) {
      Corrupt("it lacks a text or a source");
    }
    line.is_scalar = sources[line.source].reason != 0;
    try {
      Decode(words + kWordBytes * i, &line);
    } catch (kit::Failure& failure) {
      failure.reason = "line " + std::to_string(i) + ": " + failure.reason;
      throw;
    }
  }
}

void Program::Decode(const uint8_t* word, Line* line) {
  const InstructionInfo* const info = FindInstruction(word[0]);
  if (info == nullptr) {
    kit::Refuse("there is no instruction with opcode " + std::to_string(word[0]));
  }
  line->info = info;
  line->run = info->run;
  line->engine = info->engine;
  const size_t begin = fields.size();
  if (begin > UINT32_MAX) Corrupt("it has too many instructions");
  line->fields = static_cast<uint32_t>(begin);
  fields.resize(begin + (info->bytes + 7) / 8);
  void* const values = &fields[begin];
  try {
    int32_t end = 8;
    for (const FieldInfo* field = info->fields; field != info->fields + info->field_count;
         ++field) {
      end = field->low + field->bits;
      if (field->kind == FieldKind::kAddress) {
        const uint64_t index = Bits(word, field->low, RegisterBits());
        const auto offset = static_cast<uint32_t>(Bits(word, field->low + RegisterBits(), 32));
        AddressSlot& slot = line->addresses[line->address_count++];
        slot.register_index = CheckedRegister(*field, index);
        slot.offset = static_cast<int32_t>(offset);
        slot.memories = field->memories;
        slot.place = static_cast<uint32_t>(field->place);
        Put<uint8_t*>(nullptr, values, field->place);
        continue;
      }
      const uint64_t raw = Bits(word, field->low, field->bits);
      switch (field->kind) {
        case FieldKind::kNumber:
          Put<int64_t>(CheckedNumber(*field, raw), values, field->place);
          break;
        case FieldKind::kChoice:
          if (raw >= static_cast<uint64_t>(field->choice_count)) {
            kit::Refuse(std::string(field->name) + " is choice " + std::to_string(raw) +
                        ", but there are only " + std::to_string(field->choice_count) +
                        ", from 0 on");
          }
          Put(field->choices[raw], values, field->place);
          break;
        case FieldKind::kFloat:
          Put<uint32_t>(static_cast<uint32_t>(raw), values, field->place);
          break;
        default:
          Put<int32_t>(CheckedRegister(*field, raw), values, field->place);
      }
    }
    for (int32_t at = end; at < 8 * kWordBytes; at += 8 - at % 8) {
      if (Bits(word, at, 8 - at % 8) != 0) {
        kit::Refuse("bits from " + std::to_string(end) + " on are not 0");
      }
    }
    Measures measures;
    measures.extents = line->extents;
    info->measure(values, &measures);
    if (measures.broken != nullptr) kit::Refuse(std::string("it needs ") + measures.broken);
    if (measures.cycles < Wide(0) || measures.cycles > Wide(kMostCycles)) {
      kit::Refuse("it would take " + std::to_string(measures.cycles.value()) + " cycles");
    }
    line->extent_count = measures.extent_count;
    line->cycles = measures.cycles.value();
    line->work = measures.work.value();
    line->waits = measures.waits.value();
  } catch (kit::Failure& failure) {
    failure.reason = std::string(info->name) + ": " + failure.reason;
    throw;
  }
}

std::string Program::TextOf(size_t index) const {
  const Line& line = lines[index];
  const InstructionInfo& info = *line.info;
  const void* values = fields.data() + line.fields;
  std::string text = info.name;
  int32_t address = 0;
  for (const FieldInfo* field = info.fields; field != info.fields + info.field_count; ++field) {
    // Numbers, floats and registers of their default are left out, as backend/isa/text.py does.
    std::string value;
    switch (field->kind) {
      case FieldKind::kNumber: {
        const auto number = Get<int64_t>(values, field->place);
        if (number != DefaultOf(*field)) value = Digits(*field, number);
        break;
      }
      case FieldKind::kChoice:
        value = isa::TextOf(Get<Chosen>(values, field->place).name);
        break;
      case FieldKind::kFloat: {
        const auto real = Get<float>(values, field->place);
        if (real != 0 || std::signbit(real)) value = Digits(real);
        break;
      }
      case FieldKind::kRegister: {
        const auto number = Get<int32_t>(values, field->place);
        if (number != 0) value = "r" + std::to_string(number);
        break;
      }
      case FieldKind::kAddress: {
        const AddressSlot& slot = line.addresses[address++];
        value = "r" + std::to_string(slot.register_index);
        if (slot.offset != 0) {
          value += (slot.offset < 0 ? "" : "+") + std::to_string(slot.offset);
        }
      }
    }
    if (!value.empty()) text += std::string(" ") + field->name + "=" + value;
  }
  return text;
}

}  // namespace npu::isa
