// SPDX-License-Identifier: Apache-2.0
/*!
 * \file events.h
 * \brief The timeline of a request, in the form of the driver interface.
 */
#ifndef EMULATOR_EVENTS_H_
#define EMULATOR_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "accesses.h"
#include "npu_driver.h"
#include "program.h"
#include "timeline.h"

namespace npu::emulator {

/*! \brief The name of an engine, as in counters and listings. */
const char* Name(Engine engine);
/*! \brief The name of an engine, with its core where each core has one, e.g. "matrix.0". */
std::string NameOf(Engine engine, int32_t core);

/*!
 * \brief The events of one run of a program.
 *
 * Busy cycles and traffic add up to the counters of the timeline, and the last event ends with it.
 */
class Events {
 public:
  /*! \brief The timeline has the values of these symbols. All must outlive this. */
  Events(const Program& program, const Accesses& accesses, const Timeline& timeline,
         const int64_t* symbols);
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  /*! \brief In the order of their beginnings. */
  const std::vector<npu_event>& all() const { return all_; }

 private:
  void Add(size_t command, const Work& work, Engine engine, const char* waits_for);

  const Program& program_;
  const std::vector<TimeSpan>& intervals_;
  std::vector<npu_event> all_;
  /*! \brief Storage that events point to; it does not move. */
  std::deque<std::string> names_;
  std::deque<std::vector<npu_traffic>> traffic_;
};

/*!
 * \brief The allocations of one run of a program in the scratchpad, and in the part of DRAM that
 * intermediates share, by the place in memory.
 *
 * An allocation lasts from the first command that touches it to the last. Data written to the same
 * bytes later, without reading them, is another one.
 */
std::vector<npu_allocation> AllocationsOf(const Program& program, const Accesses& accesses,
                                          const Timeline& timeline);

/*! \brief The memories of the machine, and the bytes that they move in a cycle. */
std::vector<npu_memory> MemoriesOf(const Machine& machine);

/*! \brief The most operations in a cycle, for the element types of the program's products; without
 *  products, for real numbers. */
double OperationsPerCycle(const Program& program);

}  // namespace npu::emulator

#endif  // EMULATOR_EVENTS_H_
