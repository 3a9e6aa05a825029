// SPDX-License-Identifier: Apache-2.0
/*!
 * \file timing.h
 * \brief When instructions run: engines, their queues, and hazards between them.
 *
 * The first engine fetches in order. It executes its own instructions at once; another one it hands
 * over, which takes kIssueCycles, and waits if the queue of its engine is full. An instruction
 * begins when its engine has done those before it, and ends so many cycles later. In between, it
 * may read and write at any time.
 */
#ifndef ISA_EMULATOR_TIMING_H_
#define ISA_EMULATOR_TIMING_H_

#include <cstdint>
#include <vector>

#include "isa_table.h"

namespace npu::isa {

/*! \brief Bytes that an instruction touches: addresses from `low` to the one before `high`. */
struct Access {
  int64_t low, high;
  bool is_write;
};

/*! \brief An instruction that waits for nothing any more. */
struct Span {
  int64_t begin, end;
  /*! \brief For how long its engine, or the first one, could not go on because of others. */
  int64_t stalled;
  /*! \brief The engine that it waited for last, or -1. */
  int32_t waits_for;
};

/*! \brief What orders instructions of different engines that touch the same bytes. */
enum class Sync : int32_t {
  /*! \brief They wait for each other. */
  kScoreboard,
  /*! \brief The program has an instruction between them that waits; what lacks it is refused. */
  kExplicit,
  /*! \brief Nothing: for tests, to show that order matters. */
  kNone,
};

/*! \brief The clock of a run. */
class Timing {
 public:
  explicit Timing(Sync sync);

  /*! \brief The time of the first engine. */
  int64_t now() const { return now_; }
  /*! \brief The first engine is busy. */
  void Spend(int64_t cycles) { now_ += cycles; }

  /*! \brief The next instruction of another engine than the first. */
  Span Issue(int32_t engine, int32_t line, int64_t cycles, const Access* accesses, int32_t count);
  /*! \brief The next instruction of the first engine, which touches memory. */
  Span Touch(int64_t cycles, const Access* accesses, int32_t count);
  /*! \brief Waits for engines, one for each bit; returns for how long. */
  int64_t Wait(int64_t engines);

 private:
  /*! \brief An instruction that may not be done. */
  struct Pending {
    int64_t end;
    int32_t line, count;
    Access accesses[kMostBoxes];
  };

  /*! \brief An engine's instructions, the oldest first, in a ring. */
  struct Queue {
    std::vector<Pending> ring;
    size_t first = 0, count = 0;
    /*! \brief When the engine is done with all of them. */
    int64_t free = 0;

    const Pending& At(size_t index) const { return ring[(first + index) % ring.size()]; }
    void DropUntil(int64_t time);
  };

  /*! \brief Bytes that an engine has touched since it was last waited for, where programs have
   *  instructions to wait: sorted, apart, each with the last line that touched it. */
  struct Unordered {
    struct Part {
      int64_t low, high;
      int32_t line;
    };
    std::vector<Part> parts;

    void Add(int64_t low, int64_t high, int32_t line);
    /*! \brief Returns a line that touched such bytes, or -1. */
    int32_t Find(int64_t low, int64_t high) const;
  };

  /*! \brief When instructions of other engines that conflict are done. */
  void Order(int32_t engine, const Access* accesses, int32_t count, Span* span) const;
  /*! \brief Refuses what needs an instruction that waits, and lacks it. */
  void RequireOrder(int32_t engine, const Access* accesses, int32_t count) const;

  Sync sync_;
  int64_t now_ = 0;
  Queue queues_[kEngineCount];
  Unordered read_[kEngineCount], written_[kEngineCount];
};

}  // namespace npu::isa

#endif  // ISA_EMULATOR_TIMING_H_
