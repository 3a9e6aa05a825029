// SPDX-License-Identifier: Apache-2.0
/*!
 * \file device.cc
 * \brief The run half of a driver whose programs the emulator executes.
 */
#include "isa_emulator/device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "driver_kit/run.h"
#include "isa_emulator/execution.h"
#include "isa_emulator/listing.h"

namespace npu::isa {
namespace {

struct Loaded {
  Loaded(const uint8_t* bytes, size_t size) : kit(kit::Parse(bytes, size)) {
    // What only copies was not compiled.
    if (kit.nodes.empty()) return;
    program = std::make_unique<Program>(kit.opaque, kit.opaque_bytes);
    RequirePorts("inputs", kit.inputs, program->inputs);
    RequirePorts("outputs", kit.outputs, program->outputs);
  }

  static void RequirePorts(const std::string& what, const std::vector<kit::Value>& ports,
                           const std::vector<int64_t>& sizes) {
    bool fit = ports.size() == sizes.size();
    for (size_t i = 0; fit && i < sizes.size(); ++i) {
      fit = static_cast<int64_t>(kit::BytesOf(ports[i])) == sizes[i];
    }
    if (!fit) kit::Refuse("the " + what + " of the program are not those of its region");
  }

  kit::Program kit;
  /*! \brief Null if there is nothing to execute. */
  std::unique_ptr<Program> program;
  std::once_flag is_described;
  std::string text;
};

// ---- Counters ----

constexpr size_t kCountersOfEngine = 3;

/*! \brief Scalar code, which the first engine executes, is shown as an engine of its own. */
const std::string& ScalarEngine() {
  static const std::string name = std::string(kEngines[0].name) + ".scalar";
  return name;
}

/*! \brief The counters, in the order of their values. */
struct Counters {
  Counters() {
    Add("submissions", "", "how often it was executed");
    Add("failures", "", "executions that did not end well");
    Add("instructions", "", "instructions that were executed");
    Add("cycles", "cycles", "from the first instruction to the end of the last one");
    for (const EngineInfo& engine : kEngines) {
      const std::string name = engine.name;
      Add("busy_cycles." + name, "cycles", "work of the engine");
      Add("stalled_cycles." + name, "cycles", "its waits for other engines");
      Add("work." + name, engine.unit, "how much it did");
    }
    Add("busy_cycles." + ScalarEngine(), "cycles", "work of the first engine as scalar code");
  }

  void Add(const std::string& name, const char* unit, const char* about) {
    names.push_back(name);
    infos.push_back({names.back().c_str(), unit, NPU_COUNTER_SUM, about});
  }

  std::deque<std::string> names;
  std::vector<npu_counter_info> infos;
};

const Counters& AllCounters() {
  static const Counters counters;
  return counters;
}

constexpr size_t kSubmissions = 0, kFailures = 1, kInstructions = 2, kCycles = 3,
                 kFirstOfEngines = 4,
                 kScalarCycles = kFirstOfEngines + kCountersOfEngine * kEngineCount;

// ---- Requests ----

struct Request {
  explicit Request(Loaded& loaded)
      : loaded(loaded),
        inputs(loaded.kit.inputs.size()),
        outputs(loaded.kit.outputs.size()),
        input_sizes(inputs.size()),
        output_sizes(outputs.size()),
        counters(AllCounters().infos.size()) {
    if (loaded.program != nullptr) execution = std::make_unique<Execution>(*loaded.program);
  }

  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() {
    is_cancelled = true;
    if (worker.joinable()) worker.join();
  }

  /*! \brief Starts a thread that executes it. */
  void Submit() {
    RequireBound();
    is_done = is_cancelled = false;
    worker = std::thread([this] {
      status = kit::Try(&reason, [this] { Execute(); });
      const std::lock_guard<std::mutex> lock(mutex);
      is_done = true;
      done.notify_all();
    });
  }

  /*! \brief Waits for that, for so many microseconds at most; returns whether it is done. */
  bool Wait(int64_t timeout_us) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      const auto ended = [this] { return is_done; };
      if (timeout_us < 0) {
        done.wait(lock, ended);
      } else if (!done.wait_for(lock, std::chrono::microseconds(timeout_us), ended)) {
        return false;
      }
    }
    if (worker.joinable()) worker.join();
    if (status != NPU_OK) throw kit::Failure{status, reason};
    return true;
  }

  void RequireBound() const {
    kit::RequireBound(inputs, "input ");
    kit::RequireBound(outputs, "output ");
  }

  void Execute() {
    RequireBound();
    ++counters[kSubmissions];
    if (execution == nullptr) return CopyOutputs();
    ++counters[kFailures];
    padded.clear();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const kit::Value& port = loaded.kit.inputs[i];
      void* data = MemoryOf(port, input_sizes[i], inputs[i]);
      if (data != inputs[i]) kit::CopyPadded(port, input_sizes[i], inputs[i], data);
      execution->Bind(i, data);
    }
    std::vector<void*> results(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      results[i] = MemoryOf(loaded.kit.outputs[i], output_sizes[i], outputs[i]);
      execution->Bind(inputs.size() + i, results[i]);
    }
    execution->Reset();
    execution->Run({}, &is_cancelled);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (results[i] == outputs[i]) continue;
      kit::CopyCropped(loaded.kit.outputs[i], output_sizes[i], results[i], outputs[i]);
    }
    --counters[kFailures];
    const Totals totals = execution->totals();
    const auto add = [this](size_t counter, int64_t value) {
      counters[counter] += static_cast<uint64_t>(value);
    };
    add(kInstructions, totals.instructions);
    add(kCycles, totals.cycles);
    add(kScalarCycles, totals.scalar);
    for (size_t i = 0; i < kEngineCount; ++i) {
      add(kFirstOfEngines + kCountersOfEngine * i, totals.busy[i] - (i == 0 ? totals.scalar : 0));
      add(kFirstOfEngines + kCountersOfEngine * i + 1, totals.stalled[i]);
      add(kFirstOfEngines + kCountersOfEngine * i + 2, totals.work[i]);
    }
  }

  /*! \brief Memory for all rows of an input or output: the caller's, if it has as many. */
  void* MemoryOf(const kit::Value& port, int64_t size, void* data) {
    if (kit::BytesOf(port, size) == kit::BytesOf(port)) return data;
    padded.emplace_back(kit::BytesOf(port));
    return padded.back().data();
  }

  /*! \brief Each output is an input. */
  void CopyOutputs() {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const kit::Value& value = loaded.kit.At(static_cast<int32_t>(loaded.kit.outputs[i].place));
      if (value.source != kit::Source::kInput) kit::Refuse("the program lacks an instruction");
      std::memcpy(outputs[i], inputs[static_cast<size_t>(value.place)],
                  kit::BytesOf(loaded.kit.outputs[i], output_sizes[i]));
    }
  }

  /*! \brief Makes the events of what was recorded. */
  void ReadEvents() {
    events.clear();
    names.clear();
    traffic.clear();
    kept.clear();
    if (execution == nullptr) return;
    for (const Stretch& stretch : execution->stretches()) {
      const Line& line = loaded.program->lines[static_cast<size_t>(stretch.line)];
      npu_event event = {};
      event.name = line.note == 0 ? line.info->name : Keep(line.note);
      event.label = line.label == 0 ? nullptr : Keep(line.label);
      event.engine = stretch.is_scalar ? ScalarEngine().c_str() : kEngines[stretch.engine].name;
      event.begin = stretch.begin;
      event.end = stretch.end;
      event.busy = std::min(stretch.busy, stretch.end - stretch.begin);
      if (stretch.waits_for >= 0) event.waits_for = kEngines[stretch.waits_for].name;
      traffic.emplace_back();
      for (size_t i = 0; i < kMemoryCount; ++i) {
        const int64_t read = stretch.bytes_read[i], written = stretch.bytes_written[i];
        if (read + written == 0) continue;
        traffic.back().push_back(
            {kMemories[i].name, static_cast<uint64_t>(read), static_cast<uint64_t>(written)});
      }
      event.traffic = traffic.back().data();
      event.traffic_count = traffic.back().size();
      // A multiplication and its addition are two operations.
      const bool counts_products = std::strcmp(kEngines[stretch.engine].unit, "MAC") == 0;
      if (counts_products) event.operations = 2 * static_cast<uint64_t>(stretch.work);
      events.push_back(event);
    }
  }

  /*! \brief Makes the allocations of what was recorded; those of lines that did not run are left
   *  out. */
  void ReadAllocations() {
    allocations.clear();
    if (execution == nullptr) return;
    const std::vector<LineSpan>& spans = execution->spans();
    for (const Allocation& it : loaded.program->allocations) {
      npu_allocation found = {};
      found.begin = -1;
      for (size_t i = it.first; i <= it.last && i < spans.size(); ++i) {
        if (spans[i].begin < 0) continue;
        found.begin = found.begin < 0 ? spans[i].begin : std::min(found.begin, spans[i].begin);
        found.end = std::max(found.end, spans[i].end);
      }
      if (found.begin < 0) continue;
      const uint32_t label = loaded.program->lines[it.first].label;
      found.memory = kMemories[it.memory].name;
      found.label = label == 0 ? nullptr : Keep(label);
      found.offset = static_cast<uint64_t>(it.offset);
      found.bytes = static_cast<uint64_t>(it.bytes);
      allocations.push_back(found);
    }
  }

  void Record(bool on) {
    if (execution != nullptr) execution->Record(on);
  }

  /*! \brief A text of the program with a zero at its end. */
  const char* Keep(uint32_t text) {
    if (kept.size() < loaded.program->texts.size()) kept.resize(loaded.program->texts.size());
    const char*& found = kept[text];
    if (found == nullptr) {
      names.emplace_back(loaded.program->texts[text]);
      found = names.back().c_str();
    }
    return found;
  }

  /*! \brief Products in a cycle at most, as operations, of the fastest instruction. */
  double OperationsPerCycle() const {
    int64_t most = 0;
    if (loaded.program == nullptr) return 0;
    for (const Line& line : loaded.program->lines) {
      if (std::strcmp(kEngines[line.engine].unit, "MAC") != 0) continue;
      most = std::max(most, PeakOf(*line.info, &loaded.program->fields[line.fields]));
    }
    return 2.0 * static_cast<double>(most);
  }

  /*! \brief What a submission has, and how it ended. */
  std::thread worker;
  std::mutex mutex;
  std::condition_variable done;
  std::atomic<bool> is_cancelled{false};
  bool is_done = true;
  npu_status status = NPU_OK;
  std::string reason;

  Loaded& loaded;
  std::unique_ptr<Execution> execution;
  std::vector<void*> inputs, outputs;
  /*! \brief Of inputs and outputs that grow. */
  std::vector<int64_t> input_sizes, output_sizes;
  /*! \brief Memory for the bound, in a call with less. */
  std::deque<kit::Block> padded;
  std::vector<uint64_t> counters;
  std::vector<npu_event> events;
  /*! \brief Storage that events point to; it does not move. */
  std::deque<std::string> names;
  std::deque<std::vector<npu_traffic>> traffic;
  std::vector<const char*> kept;
  std::vector<npu_memory> memories;
  std::vector<npu_allocation> allocations;
};

Loaded& AsLoaded(npu_program* program) { return *reinterpret_cast<Loaded*>(program); }
Request& AsRequest(npu_request* request) { return *reinterpret_cast<Request*>(request); }

template <typename Body>
npu_status Try(const Body& body) {
  return kit::Try(&kit::RunError(), body);
}

npu_status Load(npu_device*, const uint8_t* bytes, size_t size, npu_program** program) {
  return Try([&] { *program = reinterpret_cast<npu_program*>(new Loaded(bytes, size)); });
}

npu_status Describe(npu_program* program, const char** text) {
  return Try([&] {
    Loaded& loaded = AsLoaded(program);
    std::call_once(loaded.is_described, [&] {
      loaded.text = loaded.program == nullptr ? "it copies its inputs\n" : Listing(*loaded.program);
    });
    *text = loaded.text.c_str();
  });
}

npu_status CreateRequest(npu_program* program, npu_request** request) {
  return Try([&] { *request = reinterpret_cast<npu_request*>(new Request(AsLoaded(program))); });
}

npu_status BindInput(npu_request* request, size_t index, const npu_buffer* buffer) {
  return Try([&] {
    Request& bound = AsRequest(request);
    bound.inputs[index] = kit::CheckedData(bound.loaded.kit.inputs, index, buffer);
    bound.input_sizes[index] = kit::GrownSize(bound.loaded.kit.inputs[index], buffer);
  });
}

npu_status BindOutput(npu_request* request, size_t index, const npu_buffer* buffer) {
  return Try([&] {
    Request& bound = AsRequest(request);
    bound.outputs[index] = kit::CheckedData(bound.loaded.kit.outputs, index, buffer);
    bound.output_sizes[index] = kit::GrownSize(bound.loaded.kit.outputs[index], buffer);
  });
}

npu_status ReadEvents(npu_request* request, const npu_event** events, size_t* count,
                      double* units_per_microsecond) {
  return Try([&] {
    Request& done = AsRequest(request);
    done.ReadEvents();
    *events = done.events.data();
    *count = done.events.size();
    *units_per_microsecond = 0;
  });
}

npu_status ReadAllocations(npu_request* request, const npu_allocation** allocations,
                           size_t* count) {
  return Try([&] {
    Request& done = AsRequest(request);
    done.ReadAllocations();
    *allocations = done.allocations.data();
    *count = done.allocations.size();
  });
}

npu_status ReadPeaks(npu_request* request, double* operations_per_unit, const npu_memory** memories,
                     size_t* count) {
  return Try([&] {
    Request& done = AsRequest(request);
    done.memories.clear();
    for (const MemoryInfo& memory : kMemories) {
      done.memories.push_back({memory.name, static_cast<uint64_t>(memory.bytes), 0});
    }
    *operations_per_unit = done.OperationsPerCycle();
    *memories = done.memories.data();
    *count = done.memories.size();
  });
}

}  // namespace

npu_run_api RunTable(const char* name, const char* release) {
  npu_run_api api = {};
  api.size = sizeof(api);
  api.version = NPU_DRIVER_API_VERSION;
  api.name = name;
  api.release = release;
  api.counters = AllCounters().infos.data();
  api.counter_count = AllCounters().infos.size();
  api.error = [] { return kit::RunError().c_str(); };
  api.load = Load;
  api.unload = [](npu_program* program) { delete reinterpret_cast<Loaded*>(program); };
  api.describe = Describe;
  api.create_request = CreateRequest;
  api.destroy_request = [](npu_request* request) { delete reinterpret_cast<Request*>(request); };
  api.bind_input = BindInput;
  api.bind_output = BindOutput;
  api.execute = [](npu_request* request) {
    return Try([&] {
      AsRequest(request).is_cancelled = false;
      AsRequest(request).Execute();
    });
  };
  api.cancels = NPU_CANCEL_RUNNING;
  api.submit = [](npu_request* request) { return Try([&] { AsRequest(request).Submit(); }); };
  api.wait = [](npu_request* request, int64_t timeout_us) {
    bool is_done = true;
    const npu_status status = Try([&] { is_done = AsRequest(request).Wait(timeout_us); });
    return is_done ? status : NPU_TIMEOUT;
  };
  api.cancel = [](npu_request* request) {
    AsRequest(request).is_cancelled = true;
    return NPU_OK;
  };
  api.read_counters = [](const npu_request* request, uint64_t* values) {
    const Request& done = *reinterpret_cast<const Request*>(request);
    std::copy(done.counters.begin(), done.counters.end(), values);
    return NPU_OK;
  };
  api.event_unit = "cycles";
  api.record_events = [](npu_request* request, int32_t on) {
    return Try([&] { AsRequest(request).Record(on != 0); });
  };
  api.read_events = ReadEvents;
  api.read_allocations = ReadAllocations;
  api.read_peaks = ReadPeaks;
  return api;
}

}  // namespace npu::isa
