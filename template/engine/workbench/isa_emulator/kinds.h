// SPDX-License-Identifier: Apache-2.0
/*!
 * \file kinds.h
 * \brief What the table of a machine is made of, in C++; backend/isa/cpp.py writes the table.
 */
#ifndef ISA_EMULATOR_KINDS_H_
#define ISA_EMULATOR_KINDS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "isa_emulator/wide.h"

namespace npu::isa {

class State;

/*! \brief All names of choices, as the table has them. */
enum class Name : int32_t;

/*! \brief The value of a field that is a choice. */
struct Chosen {
  Name name;
  /*! \brief Its place among the names of the field. */
  int32_t index;
  /*! \brief The bytes of an element, where it is a type. */
  int32_t size;

  /*! \brief What expressions of the table see. */
  constexpr operator int64_t() const { return index; }
};

struct MemoryInfo {
  const char* name;
  /*! \brief 0: the memory that holds tensors, in segments. */
  int64_t bytes;
};

struct EngineInfo {
  const char* name;
  /*! \brief What its work counts. */
  const char* unit;
  const char* about;
};

enum class FieldKind : int32_t { kNumber, kChoice, kFloat, kRegister, kAddress };

struct FieldInfo {
  const char* name;
  FieldKind kind;
  bool is_signed;
  /*! \brief Where it is in a word. */
  int32_t low, bits;
  /*! \brief The range of a number. */
  int64_t least, most;
  const Chosen* choices;
  int32_t choice_count;
  /*! \brief The memories of an address, a bit for each. */
  uint32_t memories;
  /*! \brief Where it is in the struct. */
  size_t place;
};

/*! \brief How many elements, and how many bytes there are from one to the next. */
struct Repeat {
  Wide count, stride;
};

/*! \brief What an instruction with certain fields touches and takes. */
struct Measures {
  /*! \brief Bytes from the place of an address on, from `low` to the one before `high`. */
  struct Extent {
    int32_t address;
    bool is_write;
    int64_t low, high;
  };

  Wide cycles = 1, work = 0;
  /*! \brief A bit for each engine that is waited for. */
  Wide waits = 0;
  /*! \brief The condition that is not met, as the table has it, or null. */
  const char* broken = nullptr;
  Extent* extents = nullptr;
  int32_t extent_count = 0;

  void Require(bool condition, const char* text) {
    if (!condition && broken == nullptr) broken = text;
  }
  void Require(Wide condition, const char* text) { Require(condition != Wide(0), text); }

  void Add(int32_t address, bool is_write, Wide when, Wide bytes,
           std::initializer_list<Repeat> repeats) {
    if (when == Wide(0) || bytes <= Wide(0)) return;
    Wide low = 0, high = bytes;
    for (const Repeat& repeat : repeats) {
      if (repeat.count <= Wide(0)) return;
      const Wide last = (repeat.count - 1) * repeat.stride;
      low = low + Least(0, last);
      high = high + Most(0, last);
    }
    extents[extent_count++] = {address, is_write, low.value(), high.value()};
  }
};

struct InstructionInfo {
  const char* name;
  int32_t opcode, engine;
  const FieldInfo* fields;
  int32_t field_count;
  /*! \brief The size of the struct. */
  size_t bytes;
  void (*measure)(const void* fields, Measures* measures);
  void (*run)(State& state, const void* fields);
};

/*! \brief How much work of an instruction its engine does in a cycle at most. */
struct PeakInfo {
  int32_t opcode;
  /*! \brief Where the struct has the type that it depends on; SIZE_MAX: on none. */
  size_t type_field;
  /*! \brief The index of the type in its choice. */
  int32_t type;
  int64_t peak;
};

}  // namespace npu::isa

#endif  // ISA_EMULATOR_KINDS_H_
