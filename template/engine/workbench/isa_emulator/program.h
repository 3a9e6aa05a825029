// SPDX-License-Identifier: Apache-2.0
/*!
 * \file program.h
 * \brief Programs: their bytes, as backend/isa/program.py describes them, checked and decoded.
 */
#ifndef ISA_EMULATOR_PROGRAM_H_
#define ISA_EMULATOR_PROGRAM_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isa_table.h"

namespace npu::isa {

/*! \brief Addresses are numbers: a segment, and so many bits of a place in it. */
constexpr int32_t kSegmentBits = 40;
/*! \brief The segments of the memory that holds tensors; inputs and then outputs follow. */
constexpr int32_t kConstants = 32, kWorkspace = 33, kFirstPort = 34;

/*! \brief What the header has of all bytes behind it: CRC-32 as zlib computes it. */
uint32_t ChecksumOf(const uint8_t* bytes, size_t size);
/*! \brief The instructions of the table. */
const InstructionInfo* FindInstruction(int32_t opcode);
/*! \brief The name of a choice. */
const char* TextOf(Name name);
/*! \brief How much work an instruction with these fields does in a cycle at most; 0: not known. */
int64_t PeakOf(const InstructionInfo& info, const void* fields);

/*! \brief An address of an instruction, before registers are known. */
struct AddressSlot {
  int32_t offset;
  int32_t register_index;
  uint32_t memories;
  /*! \brief Where its pointer is in the struct of the fields. */
  uint32_t place;
};

/*! \brief An instruction, decoded. */
struct Line {
  const InstructionInfo* info;
  void (*run)(State& state, const void* fields);
  int64_t cycles, work, waits;
  /*! \brief Where its fields are among those of the program. */
  uint32_t fields;
  /*! \brief The model's op, and its kernel, as numbers of texts. */
  uint32_t label, note;
  /*! \brief The loop of the kernel, as a number of a source. */
  uint32_t source;
  bool is_scalar;
  int32_t engine, address_count, extent_count;
  AddressSlot addresses[kMostAddresses];
  Measures::Extent extents[kMostBoxes];
};

/*! \brief A loop or statement that lines were made of. Number 0 is none. */
struct Source {
  /*! \brief The loop around it, as the number of a source before it. */
  uint32_t within;
  /*! \brief The loop, and why it runs as scalar code or an empty text, as numbers of texts. */
  uint32_t text, reason;
};

/*! \brief Bytes of a scratchpad or the workspace that have a purpose from one line to another. */
struct Allocation {
  /*! \brief What they are, as the number of a text. */
  uint32_t text;
  uint32_t first, last;
  /*! \brief The memory in the table. */
  int32_t memory;
  /*! \brief The place in that memory, or in the workspace. */
  int64_t offset, bytes;
};

/*! \brief The memory that holds tensors, by its place in the table. */
int32_t SegmentedMemory();

/*! \brief A program. It refers to the bytes that it was read from. */
class Program {
 public:
  /*! \brief Throws a kit::Failure where they are none of this machine. */
  Program(const uint8_t* bytes, size_t size);

  std::vector<Line> lines;
  /*! \brief The structs of all lines; pointers in them are null. */
  std::vector<uint64_t> fields;
  std::vector<std::string_view> texts;
  std::vector<Source> sources;
  std::vector<Allocation> allocations;
  std::vector<int64_t> inputs, outputs;
  int64_t workspace = 0;
  const uint8_t* constants = nullptr;
  int64_t constant_bytes = 0;

  /*! \brief An instruction as an assembler's line. */
  std::string TextOf(size_t index) const;

 private:
  void Decode(const uint8_t* word, Line* line);
};

}  // namespace npu::isa

#endif  // ISA_EMULATOR_PROGRAM_H_
