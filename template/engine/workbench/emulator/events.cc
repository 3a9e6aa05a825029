// SPDX-License-Identifier: Apache-2.0
/*!
 * \file events.cc
 * \brief The timeline of a request, in the form of the driver interface.
 */
#include "events.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace npu::emulator {
namespace {

constexpr const char* kEngines[] = {"matrix", "vector", "dma_in", "dma_out"};
static_assert(sizeof(kEngines) / sizeof(kEngines[0]) == kEngineCount, "an engine has no name");

bool Overlap(const Access& one, const Access& other) {
  return one.begin < other.end && other.begin < one.end;
}

/*! \brief Whether a command must wait for an earlier one. */
bool DependsOn(const Accesses& accesses, size_t command, size_t earlier) {
  const Access &out = accesses.output(command), &written = accesses.output(earlier);
  for (const Access* access = accesses.begin(command); access != accesses.end(command); ++access) {
    if (Overlap(*access, written)) return true;
  }
  return std::any_of(accesses.begin(earlier), accesses.end(earlier),
                     [&out](const Access& access) { return Overlap(access, out); });
}

}  // namespace

const char* Name(Engine engine) { return kEngines[engine]; }

std::string NameOf(Engine engine, int32_t core) {
  const bool has_cores = engine == kEngineMatrix || engine == kEngineVector;
  return has_cores ? std::string(Name(engine)) + "." + std::to_string(core) : Name(engine);
}

Events::Events(const Program& program, const Accesses& accesses, const Timeline& timeline,
               const int64_t* symbols)
    : program_(program), intervals_(timeline.intervals()) {
  /*! \brief Sorted by their ends. */
  std::multimap<int64_t, size_t> ended;
  std::vector<int64_t> free(static_cast<size_t>(kEngineCount) * program.machine.cores);
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const Work work = WorkOf(program, program.commands[i], symbols);
    if (work.is_nothing) continue;
    const TimeSpan& interval = intervals_[i];
    std::vector<Engine> used = {interval.engine};
    for (int32_t engine = 0; engine < kEngineCount; ++engine) {
      if (engine != interval.engine && work.cycles[engine] > 0) {
        used.push_back(static_cast<Engine>(engine));
      }
    }
    int64_t ready = 0;
    for (Engine engine : used) {
      int64_t& since = free[engine + static_cast<size_t>(kEngineCount) * interval.core];
      ready = std::max(ready, since);
      since = interval.end;
    }
    const char* waits_for = nullptr;
    if (interval.start > ready) {
      const auto [begin, end] = ended.equal_range(interval.start);
      const auto cause = std::find_if(
          begin, end, [&](const auto& item) { return DependsOn(accesses, i, item.second); });
      if (cause != end) waits_for = Name(intervals_[cause->second].engine);
    }
    for (Engine engine : used) Add(i, work, engine, waits_for);
    ended.emplace(interval.end, i);
  }
  std::stable_sort(all_.begin(), all_.end(), [](const npu_event& one, const npu_event& other) {
    return one.begin < other.begin;
  });
}

void Events::Add(size_t command, const Work& work, Engine engine, const char* waits_for) {
  const TimeSpan& interval = intervals_[command];
  const Command& what = program_.commands[command];
  npu_event event = {};
  event.name = Name(what);
  const auto label = static_cast<size_t>(what.label);
  if (label < program_.labels.size()) event.label = program_.labels[label].c_str();
  names_.push_back(NameOf(engine, interval.core));
  event.engine = names_.back().c_str();
  event.begin = interval.start;
  event.end = interval.end;
  event.busy = work.cycles[engine];
  event.waits_for = waits_for;
  if (engine == interval.engine) {
    std::vector<npu_traffic> traffic;
    const auto add = [&traffic](const char* memory, int64_t read, int64_t written) {
      if (read + written == 0) return;
      traffic.push_back({memory, static_cast<uint64_t>(read), static_cast<uint64_t>(written)});
    };
    add("dram", work.dram_bytes_read, work.dram_bytes_written);
    add("scratchpad", work.scratchpad_bytes_read, work.scratchpad_bytes_written);
    traffic_.push_back(std::move(traffic));
    event.traffic = traffic_.back().data();
    event.traffic_count = traffic_.back().size();
    event.operations = static_cast<uint64_t>(work.matrix_operations);
  }
  all_.push_back(event);
}

std::vector<npu_allocation> AllocationsOf(const Program& program, const Accesses& accesses,
                                          const Timeline& timeline) {
  std::vector<npu_allocation> all;
  // The latest allocation of a place, and the tensor that was written to it last.
  struct Latest {
    size_t allocation;
    npu_tensor written;
  };
  std::map<std::tuple<Memory, uint64_t, uint64_t>, Latest> places;
  for (size_t i = 0; i < program.commands.size(); ++i) {
    const TimeSpan& interval = timeline.intervals()[i];
    if (interval.start == interval.end) continue;
    const Access* const output = &accesses.output(i);
    for (const Access* access = accesses.begin(i); access != accesses.end(i); ++access) {
      const Tensor& tensor = program.tensors[access->tensor];
      const Memory memory = tensor.place.memory;
      if (memory != Memory::kScratchpad && memory != Memory::kArena) continue;
      const uint64_t bytes = MostBytes(tensor);
      if (bytes == 0) continue;
      const auto key = std::make_tuple(memory, tensor.place.offset, bytes);
      auto found = places.find(key);
      const bool is_read = std::any_of(
          accesses.begin(i), output, [&](const Access& other) { return Overlap(other, *access); });
      const bool is_new = found == places.end() ||
                          (access == output && !is_read && found->second.written != access->tensor);
      if (is_new) {
        npu_allocation allocation = {};
        allocation.memory = Name(memory);
        const auto label = static_cast<size_t>(program.commands[i].label);
        if (label < program.labels.size()) allocation.label = program.labels[label].c_str();
        allocation.offset = tensor.place.offset;
        allocation.bytes = bytes;
        allocation.begin = interval.start;
        allocation.end = interval.end;
        found = places.insert_or_assign(key, Latest{all.size(), access->tensor}).first;
        all.push_back(allocation);
      }
      npu_allocation& allocation = all[found->second.allocation];
      allocation.begin = std::min(allocation.begin, interval.start);
      allocation.end = std::max(allocation.end, interval.end);
      if (access == output) found->second.written = access->tensor;
    }
  }
  return all;
}

std::vector<npu_memory> MemoriesOf(const Machine& machine) {
  // Both DMA engines at once. Megabytes per second are bytes per microsecond.
  const double dram = 2.0 * machine.dram_megabytes_per_second / machine.FrequencyMHz();
  return {{"dram", static_cast<uint64_t>(machine.dram_bytes), dram},
          {"scratchpad", static_cast<uint64_t>(machine.scratchpad_bytes), 0}};
}

double OperationsPerCycle(const Program& program) {
  int64_t steps = 1;
  const auto note = [&](npu_tensor one, npu_tensor other) {
    const auto type = [&](npu_tensor tensor) { return program.tensors[tensor].desc.dtype; };
    steps = std::max(steps, StepsOfCell(type(one), type(other)));
  };
  for (const Command& command : program.commands) {
    if (const auto* matmul = std::get_if<npu_matmul>(&command.op)) note(matmul->a, matmul->b);
    if (const auto* convolution = std::get_if<npu_convolution>(&command.op)) {
      note(convolution->data, convolution->weight);
    }
  }
  const Machine& machine = program.machine;
  return 2.0 * machine.cores * machine.matrix_rows * machine.matrix_columns *
         static_cast<double>(steps);
}

}  // namespace npu::emulator
