// SPDX-License-Identifier: Apache-2.0
/*!
 * \file arena.h
 * \brief The allocation of a memory.
 */
#ifndef EMULATOR_COMPILER_ARENA_H_
#define EMULATOR_COMPILER_ARENA_H_

#include <cstdint>
#include <map>
#include <vector>

#include "../support.h"

namespace npu::emulator {

/*! \brief A memory that is allocated while commands are made. Sizes are multiples of
 *  Buffer::kAlignment. */
class Space {
 public:
  explicit Space(int64_t size) { Release(0, size / Unit() * Unit()); }

  /*! \brief The offset of free memory at or after `from`, else anywhere; -1 if there is none. */
  int64_t Allocate(int64_t size, int64_t from);
  /*! \brief Gives memory back. */
  void Release(int64_t offset, int64_t size);
  /*! \brief The number of free bytes. */
  int64_t free() const { return free_; }

 private:
  static constexpr int64_t Unit() { return static_cast<int64_t>(Buffer::kAlignment); }

  /*! \brief Free pieces: offset to size. No two of them touch. */
  std::map<int64_t, int64_t> pieces_;
  int64_t free_ = 0;
};

/*! \brief Memory that is live from one command through another, inclusive. */
struct Lifetime {
  int32_t first = -1, last = -1;
  int64_t bytes = 0;
  /*! \brief The result of PlanArena. */
  int64_t offset = 0;
};

/*! \brief A plan of a memory. */
struct ArenaPlan {
  int64_t bytes = 0;
  /*! \brief The most bytes that are live at once. */
  int64_t lower_bound = 0;
};

/*! \brief Sets the offsets so that memory that is live at the same time does not overlap. */
ArenaPlan PlanArena(std::vector<Lifetime>* lifetimes);

}  // namespace npu::emulator

#endif  // EMULATOR_COMPILER_ARENA_H_
