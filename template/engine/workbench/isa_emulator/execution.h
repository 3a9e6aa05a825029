// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execution.h
 * \brief Executes programs on memories of exactly their size, with the time that they take.
 */
#ifndef ISA_EMULATOR_EXECUTION_H_
#define ISA_EMULATOR_EXECUTION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "isa_emulator/program.h"
#include "isa_emulator/state.h"
#include "isa_emulator/timing.h"

namespace npu::isa {

/*! \brief How a program is executed. */
struct Settings {
  /*! \brief More instructions, or more cycles, are refused. */
  int64_t most_instructions = INT64_C(1) << 40;
  int64_t most_cycles = INT64_C(1) << 60;
  /*! \brief For tests: each instruction of an engine but the first takes up to so many cycles more,
   *  at random. What it does is then done at a random moment between its beginning and its end. */
  int64_t most_delay = 0;
  uint64_t seed = 0;
  Sync sync = kIsExplicit ? Sync::kExplicit : Sync::kScoreboard;
  /*! \brief Only the first engine computes, so that loops and branches are as they are where they
   *  do not depend on values of others. */
  bool is_only_timed = false;
};

/*! \brief A stretch of instructions of one engine, one kernel and one loop of it. */
struct Stretch {
  /*! \brief The first of them. */
  int32_t line;
  int32_t engine, waits_for;
  /*! \brief Whether it is scalar code of the first engine. */
  bool is_scalar;
  int64_t begin, end, busy, work, count;
  /*! \brief By memory. */
  std::vector<int64_t> bytes_read, bytes_written;
};

/*! \brief When a line began first and ended last; -1: never. */
struct LineSpan {
  int64_t begin, end;
};

/*! \brief What a run did. */
struct Totals {
  int64_t instructions = 0, cycles = 0;
  /*! \brief How long the first engine was busy with scalar code. */
  int64_t scalar = 0;
  int64_t busy[kEngineCount] = {}, stalled[kEngineCount] = {}, work[kEngineCount] = {};
};

/*! \brief A program, and memories to execute it: one run at a time. */
class Execution {
 public:
  /*! \brief The program must outlive it. Memories are zeros. */
  explicit Execution(const Program& program);

  /*! \brief The memory of an input, an output behind the inputs, with as many bytes as the program
   *  says, at any address. */
  void Bind(size_t port, void* data);
  /*! \brief The bytes of a memory that holds no tensors, by its place in the table. */
  uint8_t* memory(int32_t index) { return segments_[static_cast<size_t>(index) + 1].data; }
  uint8_t* workspace() { return segments_[kWorkspace].data; }
  State& state() { return state_; }

  /*! \brief Sets memories and registers to zeros. */
  void Reset();

  /*! \brief Runs the program from its first line. Throws a kit::Failure, with the line, where the
   *  machine refuses it, and where `cancelled` becomes true. */
  void Run(const Settings& settings, const std::atomic<bool>* cancelled = nullptr);

  /*! \brief Of the last run. */
  Totals totals() const;
  const std::vector<int64_t>& counts() const { return counts_; }
  const std::vector<int64_t>& stalls() const { return stalls_; }
  /*! \brief Records stretches in the next runs. */
  void Record(bool on) { is_recording_ = on; }
  /*! \brief Of the last run, in the order of their beginnings. */
  const std::vector<Stretch>& stretches() const { return stretches_; }
  /*! \brief By line. */
  const std::vector<LineSpan>& spans() const { return spans_; }

 private:
  struct Segment {
    uint8_t* data = nullptr;
    int64_t bytes = 0;
    /*! \brief The memory that it belongs to. */
    int32_t memory = 0;
    bool is_read_only = false;
    bool exists = false;
  };

  /*! \brief An instruction that is executed later. */
  struct Deferred {
    int64_t moment;
    const Line* line;
    std::vector<uint64_t> fields;
  };

  void Loop(const Settings& settings, const std::atomic<bool>* cancelled);
  /*! \brief Executes a line that touches memory, waits, or belongs to another engine. */
  void Step(const Line& line, const Settings& settings);
  /*! \brief Finds the memory of a line: sets its pointers, returns its accesses. */
  int32_t Resolve(const Line& line, Access* accesses);
  void Execute(const Line& line, void* fields);
  /*! \brief Executes what is done before a moment. */
  void Flush(int64_t moment);
  void Note(const Line& line, const Span& span, const Access* accesses, int32_t count);
  [[noreturn]] void RefuseAddress(const Line& line, int32_t address) const;
  [[noreturn]] void RefuseExtent(const Line& line, const Measures::Extent& extent, int64_t place,
                                 const Segment& segment) const;

  const Program& program_;
  State state_;
  Timing timing_{Sync::kScoreboard};
  std::vector<std::unique_ptr<uint8_t[]>> owned_;
  std::vector<Segment> segments_;
  /*! \brief Those of the program, with pointers. */
  std::vector<uint64_t> fields_;
  std::vector<int64_t> counts_, stalls_;
  int64_t random_ = 0;
  std::vector<Deferred> deferred_;
  bool is_recording_ = false;
  std::vector<Stretch> stretches_;
  /*! \brief The last stretch of each engine, and of scalar code, or -1. */
  int64_t latest_[kEngineCount + 1] = {};
  std::vector<LineSpan> spans_;
};

}  // namespace npu::isa

#endif  // ISA_EMULATOR_EXECUTION_H_
