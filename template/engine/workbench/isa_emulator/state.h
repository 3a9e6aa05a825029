// SPDX-License-Identifier: Apache-2.0
/*!
 * \file state.h
 * \brief The state of the machine, as the functions of vendor/isa_semantics.h see it.
 */
#ifndef ISA_EMULATOR_STATE_H_
#define ISA_EMULATOR_STATE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "driver_kit/program.h"
#include "isa_table.h"

namespace npu::isa {

/*! \brief Registers, hardware loops, and the place in the program. */
class State {
 public:
  // ---- Registers ----

  /*! \brief A register as an integer. */
  int64_t Get(int32_t index) const { return registers_[index]; }
  /*! \brief A register as a float32, which its low bits are. */
  float GetReal(int32_t index) const {
    const auto bits = static_cast<int32_t>(registers_[index]);
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  void Set(int32_t index, int64_t value) {
    registers_[index] = value;
    registers_[0] = 0;
  }
  void SetReal(int32_t index, float value) {
    int32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    Set(index, bits);
  }
  /*! \brief Adds to a register; sums wrap. */
  void Step(int32_t index, int64_t value) {
    Set(index,
        static_cast<int64_t>(static_cast<uint64_t>(Get(index)) + static_cast<uint64_t>(value)));
  }

  // ---- The place in the program ----

  int64_t line() const { return line_; }
  /*! \brief Goes on so many lines further, instead of one. */
  void Branch(int64_t lines) {
    next_ = static_cast<int64_t>(static_cast<uint64_t>(line_) + static_cast<uint64_t>(lines));
  }
  /*! \brief Ends the program. */
  void Halt() { is_done_ = true; }

  /*! \brief Begins a loop at the next line. */
  void Enter(int64_t count) {
    if (depth_ == kLoopDepth) {
      kit::Refuse("there are more than " + std::to_string(kLoopDepth) + " loops around it");
    }
    loops_[depth_++] = {line_ + 1, count};
  }
  /*! \brief Ends an iteration of the innermost loop. */
  void Again() {
    if (depth_ == 0) kit::Refuse("it belongs to no loop");
    Loop& loop = loops_[depth_ - 1];
    if (--loop.left > 0) {
      next_ = loop.begin;
    } else {
      --depth_;
    }
  }

  // ---- Memory of the host ----

  /*! \brief Memory until the instruction is done; its contents are not defined. */
  uint8_t* Borrow(size_t bytes) {
    if (used_ == borrowed_.size()) borrowed_.emplace_back();
    std::vector<uint64_t>& block = borrowed_[used_++];
    // Whole vectors of the host may be written behind the end.
    if (block.size() < bytes / 8 + 9) block.resize(bytes / 8 + 9);
    return reinterpret_cast<uint8_t*>(block.data());
  }

 private:
  friend class Execution;

  struct Loop {
    int64_t begin, left;
  };

  int64_t registers_[kRegisters] = {};
  int64_t line_ = 0, next_ = 0;
  bool is_done_ = false;
  int32_t depth_ = 0;
  Loop loops_[kLoopDepth > 0 ? kLoopDepth : 1] = {};
  std::vector<std::vector<uint64_t>> borrowed_;
  size_t used_ = 0;
};

}  // namespace npu::isa

#endif  // ISA_EMULATOR_STATE_H_
