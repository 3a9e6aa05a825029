// SPDX-License-Identifier: Apache-2.0
/*!
 * \file timeline.h
 * \brief The cost model applied: when each command of a program runs, and what it moves.
 */
#ifndef EMULATOR_TIMELINE_H_
#define EMULATOR_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "accesses.h"
#include "program.h"

namespace npu::emulator {

/*!
 * \brief The cost of a command with certain values of the symbols.
 *
 * - A matmul is a product for each matrix of b; the matrices of a that meet it are one tall
 *   matrix. A convolution is a product for each group: m are the positions of all images, k the
 *   elements of a window, n the output channels. Epilogues run on the vector engine of the same
 *   core while results leave the matrix engine.
 * - The vector engine handles each element of the output once per instruction. A pool has an
 *   instruction for each element of a window, a reduction one for each element of the data;
 *   averages have one more.
 *   Plain operations say it themselves (CyclesOf).
 * - A transfer costs DmaCycles for each of its two sides that is in DRAM, in pieces that are
 *   contiguous there (or less than a burst apart); if neither is, it is one piece.
 * - A gather is a transfer whose data is a piece for each slice that it takes, wherever that is;
 *   its indices are one more piece if they are in DRAM.
 */
struct Work {
  /*! \brief Cycles for which the command keeps each engine busy; 0 for others. */
  int64_t cycles[kEngineCount] = {};
  /*! \brief Multiplications and additions of a matmul or convolution. */
  int64_t matrix_operations = 0;
  int64_t dram_bytes_read = 0, dram_bytes_written = 0;
  int64_t scratchpad_bytes_read = 0, scratchpad_bytes_written = 0;
  /*! \brief There are no elements: the command does nothing. */
  bool is_nothing = false;
};

/*! \brief The work of one command. */
Work WorkOf(const Program& program, const Command& command, const int64_t* symbols);

/*! \brief When a command runs; from 0 to 0 if it does nothing. */
struct TimeSpan {
  Engine engine = kEngineMatrix;
  int32_t core = 0;
  int64_t start = 0, end = 0;
};

/*!
 * \brief The commands of a program in time.
 *
 * Each engine takes its commands in the order of the program. One starts when its engines are free
 * and all earlier commands that it depends on are done: those that wrote what it reads, and those
 * that read or wrote what it writes. It ends when the slower of its engines is done.
 */
class Timeline {
 public:
  /*! \brief Both must outlive this. Symbols have their bounds. */
  Timeline(const Program& program, const Accesses& accesses);

  /*! \brief Computes it for these values of the symbols, in O(n log n) and without allocation. */
  void SetSymbols(const int64_t* symbols);

  /*! \brief By command. */
  const std::vector<TimeSpan>& intervals() const { return intervals_; }
  /*! \brief The counters of a request that ran once. */
  const RunCounters& counters() const { return counters_; }

 private:
  const Program* program_;
  const Accesses* accesses_;
  std::vector<TimeSpan> intervals_;
  /*! \brief When each engine is free. */
  std::vector<int64_t> free_;
  /*! \brief By piece: when the last command that wrote, or touched, it ended. */
  Latest written_, touched_;
  RunCounters counters_ = {};
};

}  // namespace npu::emulator

#endif  // EMULATOR_TIMELINE_H_
