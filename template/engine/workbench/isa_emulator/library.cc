// SPDX-License-Identifier: Apache-2.0
/*!
 * \file library.cc
 * \brief The emulator for Python: tests, tuning and reports, see emulator.py. Both are of one
 * build.
 */
#include <algorithm>
#include <cstring>
#include <string>

#include "isa_emulator/execution.h"
#include "isa_emulator/listing.h"

namespace npu::isa {
namespace {

thread_local std::string last_error;

}  // namespace
}  // namespace npu::isa

extern "C" {

/*! \brief A run: settings, what is read and written, and what it did. Pointers may be null, but for
 *  those of ports. */
struct npu_isa_run {
  int64_t most_instructions, most_cycles, most_delay;
  uint64_t seed;
  /*! \brief A Sync; -1: as the table says. */
  int64_t sync;
  int64_t is_only_timed;
  /*! \brief The memories of inputs and outputs. */
  uint8_t* const* ports;
  /*! \brief By memory of the table: its contents before, and after. That which holds tensors is the
   *  workspace here. */
  uint8_t* const* memories;
  int64_t* registers;
  int64_t instructions, cycles, scalar;
  /*! \brief By engine. */
  int64_t *busy, *stalled, *work;
  /*! \brief By line: how often it was executed, and how many cycles it waited for others. */
  int64_t *counts, *stalls;
};

NPU_EXPORT const char* npu_isa_error() { return npu::isa::last_error.c_str(); }

/*! \brief The bytes must stay until the program is unloaded. */
NPU_EXPORT int32_t npu_isa_load(const uint8_t* bytes, size_t size, npu::isa::Program** program) {
  return npu::kit::Try(&npu::isa::last_error,
                       [&] { *program = new npu::isa::Program(bytes, size); });
}

NPU_EXPORT void npu_isa_unload(npu::isa::Program* program) { delete program; }

/*! \brief The program as text; writes at most `size` bytes, and returns how many it has. */
NPU_EXPORT size_t npu_isa_text(const npu::isa::Program* program, char* text, size_t size) {
  const std::string listing = npu::isa::Listing(*program);
  if (text != nullptr) std::copy_n(listing.data(), std::min(size, listing.size()), text);
  return listing.size();
}

NPU_EXPORT int32_t npu_isa_execute(const npu::isa::Program* program, npu_isa_run* run) {
  using namespace npu::isa;
  return npu::kit::Try(&last_error, [&] {
    Execution execution(*program);
    for (size_t i = 0; i < program->inputs.size() + program->outputs.size(); ++i) {
      execution.Bind(i, run->ports[i]);
    }
    const auto each_memory = [&](const auto& function) {
      for (int32_t i = 0; run->memories != nullptr && i < kMemoryCount; ++i) {
        if (run->memories[i] == nullptr) continue;
        const bool has_tensors = kMemories[i].bytes == 0;
        const int64_t bytes = has_tensors ? program->workspace : kMemories[i].bytes;
        function(has_tensors ? execution.workspace() : execution.memory(i), run->memories[i],
                 static_cast<size_t>(bytes));
      }
    };
    each_memory([](uint8_t* inside, const uint8_t* outside, size_t bytes) {
      if (bytes > 0) std::memcpy(inside, outside, bytes);
    });
    for (int32_t i = 0; run->registers != nullptr && i < kRegisters; ++i) {
      execution.state().Set(i, run->registers[i]);
    }
    Settings settings;
    if (run->most_instructions > 0) settings.most_instructions = run->most_instructions;
    if (run->most_cycles > 0) settings.most_cycles = run->most_cycles;
    settings.most_delay = run->most_delay;
    settings.seed = run->seed;
    if (run->sync >= 0) settings.sync = static_cast<Sync>(run->sync);
    settings.is_only_timed = run->is_only_timed != 0;
    execution.Run(settings);
    each_memory([](const uint8_t* inside, uint8_t* outside, size_t bytes) {
      if (bytes > 0) std::memcpy(outside, inside, bytes);
    });
    for (int32_t i = 0; run->registers != nullptr && i < kRegisters; ++i) {
      run->registers[i] = execution.state().Get(i);
    }
    const Totals totals = execution.totals();
    run->instructions = totals.instructions;
    run->cycles = totals.cycles;
    run->scalar = totals.scalar;
    for (int32_t i = 0; i < kEngineCount; ++i) {
      if (run->busy != nullptr) run->busy[i] = totals.busy[i];
      if (run->stalled != nullptr) run->stalled[i] = totals.stalled[i];
      if (run->work != nullptr) run->work[i] = totals.work[i];
    }
    for (size_t i = 0; i < program->lines.size(); ++i) {
      if (run->counts != nullptr) run->counts[i] = execution.counts()[i];
      if (run->stalls != nullptr) run->stalls[i] = execution.stalls()[i];
    }
  });
}

}  // extern "C"
