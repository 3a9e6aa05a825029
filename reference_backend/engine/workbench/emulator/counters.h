// SPDX-License-Identifier: Apache-2.0
/*!
 * \file counters.h
 * \brief The counters of the emulated device.
 */
#ifndef EMULATOR_COUNTERS_H_
#define EMULATOR_COUNTERS_H_

#include <cstdint>

#include "npu_driver.h"

namespace npu::emulator {

/*! \brief The engines of the device whose time is counted. */
enum Engine : int32_t {
  kEngineMatrix = 0,
  kEngineVector,
  /*! \brief Transfers to the scratchpad. */
  kEngineDmaIn,
  /*! \brief All other transfers. */
  kEngineDmaOut,
  kEngineCount,
};

/*! \brief The counters of a request since its creation, in the order of kCounters, which describes
 *  them. */
struct RunCounters {
  uint64_t submissions;
  uint64_t failures;
  uint64_t commands;
  uint64_t matrix_operations;
  uint64_t cycles;
  uint64_t busy_cycles[kEngineCount];
  uint64_t stalled_cycles[kEngineCount];
  uint64_t dram_bytes_read, dram_bytes_written;
  uint64_t scratchpad_bytes_read, scratchpad_bytes_written;
  uint64_t arena_bytes, scratchpad_bytes, constant_bytes;
  uint64_t frequency_mhz;
};

constexpr npu_counter_info kCounters[] = {
    {"submissions", "", NPU_COUNTER_SUM, "how often it was executed or submitted"},
    {"failures", "", NPU_COUNTER_SUM, "executions that did not end well"},
    {"commands", "", NPU_COUNTER_SUM, "commands of the program"},
    {"matrix_operations", "FLOP", NPU_COUNTER_SUM, "arithmetic of matmuls and convolutions"},
    {"cycles", "cycles", NPU_COUNTER_SUM, "from the first command to the end of the last one"},
    {"busy_cycles.matrix", "cycles", NPU_COUNTER_SUM, "work of the matrix engines"},
    {"busy_cycles.vector", "cycles", NPU_COUNTER_SUM, "work of the vector engines"},
    {"busy_cycles.dma_in", "cycles", NPU_COUNTER_SUM, "transfers to the scratchpad"},
    {"busy_cycles.dma_out", "cycles", NPU_COUNTER_SUM, "all other transfers"},
    {"stalled_cycles.matrix", "cycles", NPU_COUNTER_SUM, "the matrix engines' waits for others"},
    {"stalled_cycles.vector", "cycles", NPU_COUNTER_SUM, "the vector engines' waits for others"},
    {"stalled_cycles.dma_in", "cycles", NPU_COUNTER_SUM, "waits of transfers to the scratchpad"},
    {"stalled_cycles.dma_out", "cycles", NPU_COUNTER_SUM, "waits of all other transfers"},
    {"dram_bytes_read", "bytes", NPU_COUNTER_SUM, "read from DRAM"},
    {"dram_bytes_written", "bytes", NPU_COUNTER_SUM, "written to DRAM"},
    {"scratchpad_bytes_read", "bytes", NPU_COUNTER_SUM, "read from the scratchpad"},
    {"scratchpad_bytes_written", "bytes", NPU_COUNTER_SUM, "written to the scratchpad"},
    {"arena_bytes", "bytes", NPU_COUNTER_MOST, "DRAM that intermediates share"},
    {"scratchpad_bytes", "bytes", NPU_COUNTER_MOST, "the scratchpad in use at most"},
    {"constant_bytes", "bytes", NPU_COUNTER_MOST, "constants in DRAM"},
    {"frequency_mhz", "MHz", NPU_COUNTER_MOST, "cycles per microsecond"},
};
constexpr size_t kCounterCount = sizeof(kCounters) / sizeof(kCounters[0]);
static_assert(sizeof(RunCounters) == kCounterCount * sizeof(uint64_t), "a counter has no meaning");

}  // namespace npu::emulator

#endif  // EMULATOR_COUNTERS_H_
