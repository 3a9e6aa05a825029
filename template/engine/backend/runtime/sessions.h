// SPDX-License-Identifier: Apache-2.0
/*!
 * \file sessions.h
 * \brief What regions ask of sessions.
 */
#ifndef RUNTIME_SESSIONS_H_
#define RUNTIME_SESSIONS_H_

#include <cstddef>
#include <memory>

#include "state_memory.h"

namespace npu {

struct HeldState;

/*!
 * \brief A state that a call in a session has lent to a region.
 *
 * The region alone reads its value, and gives the next one.
 */
class LentState {
 public:
  LentState(HeldState* state, const void* value, size_t argument, size_t result)
      : state_(state), value_(value), argument_(argument), result_(result) {}

  /*!
   * \brief The state that a region has as an argument; null if it is no lent one.
   *
   * \param value The memory of the value, by which it is found.
   * \param argument The region's argument that has it.
   */
  static LentState* Find(const void* value, size_t argument);

  const void* value() const { return value_; }
  /*! \brief The region's result that is the next value. */
  size_t result() const { return result_; }

  /*!
   * \brief Leaves the value in memory of the host, or brings it there.
   *
   * \param output The memory meant for the next value, if the region updates the value where it is:
   *  then it neither writes nor reads that.
   */
  void PlaceOnHost(const void* output);

  /*!
   * \brief Brings the value to a device, unless it is there, so that the region reads `before` and
   *  writes `after`.
   *
   * \param device The device, whose driver can allocate states.
   * \param in_place Whether the region updates the value where it is; else the two differ.
   * \param output The memory meant for the next value, which is neither written nor read.
   * \return False if the driver declines the memory, so that the value must be on the host.
   */
  bool PlaceOn(const OpenedDevice& device, bool in_place, const void* output);

  const std::shared_ptr<StateMemory>& before() const { return before_; }
  const std::shared_ptr<StateMemory>& after() const { return after_; }

  /*! \brief Keeps the next value where the region has put it; false if that is in `output`. */
  bool Keep(const void* output);

 private:
  friend class LentStates;

  HeldState* const state_;
  const void* const value_;
  const size_t argument_, result_;
  std::shared_ptr<StateMemory> before_, after_;
  /*! \brief What holds no value, since that is elsewhere. */
  const void* output_ = nullptr;
};

}  // namespace npu

#endif  // RUNTIME_SESSIONS_H_
