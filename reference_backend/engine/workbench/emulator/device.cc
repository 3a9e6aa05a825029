// SPDX-License-Identifier: Apache-2.0
/*!
 * \file device.cc
 * \brief The run half of the driver.
 */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "events.h"
#include "execute.h"
#include "faults.h"
#include "listing.h"
#include "program.h"
#include "queue.h"
#include "timeline.h"

namespace npu::emulator {
namespace {

/*! \brief A dimension of an input that determines the value of a symbol. */
struct SymbolSource {
  size_t input;
  int32_t dimension;
  int32_t symbol;
  int64_t factor;
};

/*! \brief An emulated device. Not destroyed: its threads may outlive main. */
struct Device {
  std::atomic<int64_t> opened{0};
  std::atomic<Queue*> queue{nullptr};
};

/*! \brief The queue of a device in this process. Without locks: in a forked child, any lock could
 *  be held by a thread that the child does not have. */
Queue& QueueOf(Device* device) {
  Queue* queue = device->queue;
  while (queue == nullptr || queue->IsForked()) {
    auto created = std::make_unique<Queue>();
    // Abandon the parent's queue: the state of its locks is unknown.
    if (device->queue.compare_exchange_strong(queue, created.get())) queue = created.release();
  }
  return *queue;
}

/*! \brief The state that the requests of a program share. */
struct Loaded {
  Loaded(Device* device, const uint8_t* bytes, size_t size)
      : device(device),
        program(Deserialize(bytes, size)),
        accesses(program),
        elision(Elide(program, accesses)),
        timeline(program, accesses) {
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      for (int32_t d = 0; d < program.inputs[i].rank; ++d) {
        const Dim& dim = program.inputs[i].dims[d];
        if (dim.symbol >= 0) symbol_sources.push_back({i, d, dim.symbol, dim.size});
      }
    }
    if (program.machine.threads > 1) pool = std::make_unique<ThreadPool>(program.machine.threads);
  }

  Device* device;
  Program program;
  Accesses accesses;
  Elision elision;
  /*! \brief With the symbols at their bounds. */
  Timeline timeline;
  std::vector<SymbolSource> symbol_sources;
  /*! \brief Null if there is one thread. */
  std::unique_ptr<ThreadPool> pool;
  /*! \brief Written when it is first requested. */
  std::once_flag is_described;
  std::string description;
};

/*! \brief Adds a run to the counters of a request. */
void AddRun(const RunCounters& run, RunCounters* sum) {
  sum->commands += run.commands;
  sum->matrix_operations += run.matrix_operations;
  sum->cycles += run.cycles;
  for (int engine = 0; engine < kEngineCount; ++engine) {
    sum->busy_cycles[engine] += run.busy_cycles[engine];
    sum->stalled_cycles[engine] += run.stalled_cycles[engine];
  }
  sum->dram_bytes_read += run.dram_bytes_read;
  sum->dram_bytes_written += run.dram_bytes_written;
  sum->scratchpad_bytes_read += run.scratchpad_bytes_read;
  sum->scratchpad_bytes_written += run.scratchpad_bytes_written;
}

}  // namespace
}  // namespace npu::emulator

namespace emulator = npu::emulator;

struct npu_device {
  emulator::Device* device;
};

/*! \brief A state in the DRAM of a device. */
struct npu_state {
  const emulator::Device* device;
  emulator::Buffer memory;
};

struct npu_program {
  std::shared_ptr<emulator::Loaded> loaded;
};

struct npu_request : emulator::Job {
  explicit npu_request(std::shared_ptr<const emulator::Loaded> shared);

  void Perform() override;
  void Drop() override;
  /*! \brief Copies states for which the call binds two buffers, since the program updates one. */
  void CopyStates();

  std::shared_ptr<const emulator::Loaded> loaded;
  /*! \brief The device's memories, as this request sees them. */
  emulator::Buffer scratchpad;
  emulator::Buffer arena;
  /*! \brief Additional memory of the host. */
  emulator::Buffer scratch;
  emulator::Execution execution;
  /*! \brief For a program with symbols, whose times depend on them. */
  std::unique_ptr<emulator::Timeline> timeline;

  /*! \brief Addresses and shapes of the inputs, followed by those of the outputs. */
  std::vector<void*> buffers;
  std::vector<int64_t> shapes;
  /*! \brief Whether anything was bound since the last submission. */
  bool bound = true;
  /*! \brief The values of the symbols: by the shapes of the inputs, and those in effect. */
  std::vector<int64_t> symbols, set_symbols;

  /*! \brief The queue to which it was submitted. */
  emulator::Queue* queue = nullptr;
  npu_status status = NPU_OK;
  emulator::RunCounters counters = {};
  /*! \brief The events of the last execution, if they were requested. */
  std::unique_ptr<emulator::Events> events;
  std::vector<npu_allocation> allocations;
  std::vector<npu_memory> memories;
};

npu_request::npu_request(std::shared_ptr<const emulator::Loaded> shared)
    : loaded(std::move(shared)),
      scratchpad(emulator::ScratchpadBytes(loaded->program)),
      arena(loaded->program.arena_bytes),
      execution(loaded->program, loaded->accesses, loaded->elision, scratchpad.data(),
                arena.data()) {
  const emulator::Program& program = loaded->program;
  scratch = emulator::Buffer(execution.most_scratch_bytes());
  buffers.resize(program.inputs.size() + program.outputs.size());
  shapes.resize(buffers.size() * NPU_MAX_RANK);
  symbols.resize(program.symbols.size());
  for (const emulator::Symbol& symbol : program.symbols) set_symbols.push_back(symbol.bound);
  if (!symbols.empty()) timeline = std::make_unique<emulator::Timeline>(loaded->timeline);
  const emulator::RunCounters& run = loaded->timeline.counters();
  counters.arena_bytes = run.arena_bytes;
  counters.scratchpad_bytes = run.scratchpad_bytes;
  counters.constant_bytes = run.constant_bytes;
  counters.frequency_mhz = run.frequency_mhz;
}

void npu_request::CopyStates() {
  const emulator::Program& program = loaded->program;
  for (const emulator::StateMemory& state : program.states) {
    void* output = buffers[program.inputs.size() + state.output];
    if (buffers[state.input] == output) continue;
    const int64_t bytes = emulator::MostBytes(program.inputs[state.input]);
    std::memcpy(output, buffers[state.input], static_cast<size_t>(bytes));
    const auto copied = static_cast<uint64_t>(bytes);
    const auto cycles = static_cast<uint64_t>(emulator::DmaCycles(program.machine, 1, bytes));
    counters.dram_bytes_read += copied;
    counters.dram_bytes_written += copied;
    counters.cycles += 2 * cycles;
    counters.busy_cycles[emulator::kEngineDmaOut] += 2 * cycles;
  }
}

void npu_request::Perform() {
  using Clock = emulator::Queue::Clock;
  const emulator::RunCounters& run = (timeline ? *timeline : loaded->timeline).counters();
  int64_t pace = loaded->program.machine.pace;
  Clock::time_point begin;
  if (pace > 0) begin = Clock::now();
  CopyStates();
  bool done = execution.Run({scratch.data(), loaded->pool.get()}, cancel_);
  if (done && pace > 0) {
    // At most a few years: adding more to a time could overflow.
    constexpr double kLong = 1e17;
    double nanoseconds = 1e3 * static_cast<double>(run.cycles) /
                         static_cast<double>(run.frequency_mhz) * static_cast<double>(pace);
    auto duration = std::chrono::nanoseconds(static_cast<int64_t>(std::min(nanoseconds, kLong)));
    emulator::QueueOf(loaded->device)
        .Sleep(*this, begin + std::chrono::duration_cast<Clock::duration>(duration));
    done = !cancel_;
  }
  ++counters.submissions;
  status = done ? NPU_OK : NPU_CANCELLED;
  if (done) {
    emulator::AddRun(run, &counters);
  } else {
    ++counters.failures;
  }
}

void npu_request::Drop() {
  ++counters.submissions;
  ++counters.failures;
  status = NPU_CANCELLED;
}

namespace npu::emulator {
namespace {

constexpr int32_t kDevices = 8;
Device devices[kDevices];

/*! \brief The last failure on this thread. */
thread_local std::string last_sentence;

template <typename Body>
npu_status Run(const Body& body) {
  return Guard(&last_sentence, body);
}

std::string ShapeString(const int64_t* shape, int32_t rank) {
  std::string text = "[";
  for (int32_t i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

const char* LastError() { return last_sentence.c_str(); }

npu_status CountDevices(int32_t* count) {
  return Run([&] {
    RequireArgument(count, "count");
    *count = kDevices;
  });
}

npu_status Open(int32_t index, npu_device** device) {
  return Run([&] {
    RequireArgument(device, "device");
    if (index < 0 || index >= kDevices) {
      Invalid("There is no device ", index, "; the emulator has devices 0 to ", kDevices - 1, ".");
    }
    *device = new npu_device{&devices[index]};
    ++devices[index].opened;
  });
}

void Close(npu_device* device) {
  if (device == nullptr) return;
  Queue* queue = device->device->queue;
  if (--device->device->opened == 0 && queue != nullptr && !queue->IsForked()) queue->Rest();
  delete device;
}

npu_status Load(npu_device* device, const uint8_t* bytes, size_t size, npu_program** program) {
  return Run([&] {
    RequireArgument(device, "device");
    RequireArgument(bytes, "bytes");
    RequireArgument(program, "program");
    if (reinterpret_cast<uintptr_t>(bytes) % Buffer::kAlignment != 0) {
      Invalid("The bytes of the program are not aligned to ", Buffer::kAlignment, " bytes.");
    }
    FailOnDemand(Call::kLoad);
    *program = new npu_program{std::make_shared<Loaded>(device->device, bytes, size)};
  });
}

void Unload(npu_program* program) { delete program; }

npu_status Describe(npu_program* program, const char** text) {
  return Run([&] {
    RequireArgument(program, "program");
    RequireArgument(text, "text");
    Loaded& loaded = *program->loaded;
    std::call_once(loaded.is_described, [&loaded] {
      loaded.description = Listing(loaded.program, loaded.accesses, loaded.timeline);
    });
    *text = loaded.description.c_str();
  });
}

npu_status CreateRequest(npu_program* program, npu_request** request) {
  return Run([&] {
    RequireArgument(program, "program");
    RequireArgument(request, "request");
    FailOnDemand(Call::kCreateRequest);
    *request = new npu_request(program->loaded);
  });
}

void DestroyRequest(npu_request* request) {
  if (request == nullptr) return;
  if (Queue::IsPending(*request) && !request->queue->IsForked()) {
    request->queue->Cancel(request);
    request->queue->Wait(request, -1);
  }
  delete request;
}

/*! \brief Throws if the request was submitted and not waited for. */
void RequireIdle(const npu_request* request, const char* what) {
  RequireArgument(request, "request");
  if (Queue::IsPending(*request)) {
    Invalid("The request was submitted; call wait before the next ", what, ".");
  }
}

/*! \brief The memory of a state that is bound to an input or output of a program. */
const void* MemoryOf(const npu_state& state, const Loaded& loaded, const Desc& desc) {
  if (state.device != loaded.device) Invalid("A state is on another device than the program.");
  const auto bytes = static_cast<size_t>(MostBytes(desc));
  if (state.memory.size() < bytes) {
    Invalid("A state has ", state.memory.size(), " bytes, but the program needs ", bytes, ".");
  }
  return state.memory.data();
}

/*! \brief The part of binding that inputs and outputs have in common. */
void Bind(npu_request* request, bool input, size_t index, const npu_buffer* buffer) {
  RequireIdle(request, "bind");
  RequireArgument(buffer, "buffer");
  const void* data = buffer->data;
  const int64_t* dims = buffer->dims;
  const int32_t rank = buffer->rank;
  const Program& program = request->loaded->program;
  const char* kind = input ? "Input " : "Output ";
  const std::vector<Desc>& descs = input ? program.inputs : program.outputs;
  if (index >= descs.size()) {
    Invalid(kind, index, " does not exist; the program has ", descs.size(),
            input ? " inputs." : " outputs.");
  }
  const Desc& desc = descs[index];
  // NOLINTNEXTLINE(bugprone-sizeof-expression): the field is a pointer.
  if (data == nullptr && NPU_HAS(npu_buffer, buffer, state) && buffer->state != nullptr) {
    data = MemoryOf(*buffer->state, *request->loaded, desc);
  }
  if (data == nullptr) Invalid("The data of ", input ? "input " : "output ", index, " is null.");
  if (rank < 0 || rank > NPU_MAX_RANK) Invalid(kind, index, " has rank ", rank, ".");
  if (rank > 0) RequireArgument(dims, "dims");
  if (reinterpret_cast<uintptr_t>(data) % ElementSize(desc.dtype) != 0) {
    Invalid("The data of ", input ? "input " : "output ", index,
            " is not aligned to its elements, which have ", ElementSize(desc.dtype), " bytes.");
  }
  // The bytes may not match the graph that is stored with them.
  bool fits = rank == desc.rank && buffer->dtype == desc.dtype;
  // Output sizes are known, and checked, once all inputs are.
  for (int32_t d = 0; input && fits && d < rank; ++d) {
    const Dim& dim = desc.dims[d];
    fits = dim.symbol < 0 ? dims[d] == dim.size : dims[d] > 0 && dims[d] % dim.size == 0;
  }
  if (!fits) {
    Invalid(kind, index, " has shape ", ShapeString(dims, rank), " and type ",
            static_cast<uint32_t>(buffer->dtype) < kDtypeCount ? Name(buffer->dtype) : "?",
            ", but the program was compiled for ", ToString(desc, program.symbols), ".");
  }
  size_t place = input ? index : program.inputs.size() + index;
  request->buffers[place] = const_cast<void*>(data);
  if (rank > 0) std::copy_n(dims, rank, &request->shapes[place * NPU_MAX_RANK]);
  request->bound = true;
}

npu_status BindInput(npu_request* request, size_t index, const npu_buffer* buffer) {
  return Run([&] { Bind(request, true, index, buffer); });
}

npu_status BindOutput(npu_request* request, size_t index, const npu_buffer* buffer) {
  return Run([&] { Bind(request, false, index, buffer); });
}

/*! \brief Takes the values of the symbols from the shapes of the inputs. */
void FindSymbols(npu_request* request) {
  std::fill(request->symbols.begin(), request->symbols.end(), 0);
  const auto& sources = request->loaded->symbol_sources;
  for (const SymbolSource& source : sources) {
    int64_t size = request->shapes[source.input * NPU_MAX_RANK + source.dimension];
    int64_t value = size / source.factor;
    const Symbol& symbol = request->loaded->program.symbols[source.symbol];
    if (value > symbol.bound) {
      Invalid("Symbol ", symbol.name, " is ", value, " by dimension ", source.dimension,
              " of input ", source.input, ", but the program was compiled for at most ",
              symbol.bound, "; compile the model with a larger symbol_bound.");
    }
    int64_t& known = request->symbols[source.symbol];
    if (known == 0) known = value;
    if (known == value) continue;
    for (const SymbolSource& first : sources) {
      if (first.symbol != source.symbol) continue;
      Invalid("The shapes of the inputs disagree: ", symbol.name, " is ", known, " by dimension ",
              first.dimension, " of input ", first.input, ", but ", value, " by dimension ",
              source.dimension, " of input ", source.input, ".");
    }
  }
}

/*! \brief Makes the request ready for the values of its symbols. */
void SetSymbols(npu_request* request) {
  // Stays unset unless everything below succeeds.
  request->set_symbols[0] = 0;
  request->execution.SetSymbols(request->symbols.data());
  if (request->scratch.size() < request->execution.scratch_bytes()) {
    // Rare: kernels need more memory than for any size that was tried.
    request->scratch = Buffer();
    request->scratch = Buffer(request->execution.scratch_bytes());
  }
  request->timeline->SetSymbols(request->symbols.data());
  request->set_symbols = request->symbols;
}

/*! \brief Checks and adopts what was bound since the last submission. */
void TakeOver(npu_request* request) {
  const Program& program = request->loaded->program;
  size_t inputs = program.inputs.size();
  for (size_t i = 0; i < request->buffers.size(); ++i) {
    if (request->buffers[i] != nullptr) continue;
    if (i < inputs) Invalid("Input ", i, " is not bound.");
    Invalid("Output ", i - inputs, " is not bound.");
  }
  FindSymbols(request);
  for (size_t i = inputs; i < request->buffers.size(); ++i) {
    const Desc& desc = program.outputs[i - inputs];
    const int64_t* shape = &request->shapes[i * NPU_MAX_RANK];
    TensorView expected = Resolve(desc, request->symbols.data());
    if (!std::equal(shape, shape + desc.rank, expected.dims)) {
      Invalid("Output ", i - inputs, " has shape ", ShapeString(shape, desc.rank), " instead of ",
              ShapeString(expected.dims, desc.rank), ".");
    }
  }
  for (size_t i = inputs; i < request->buffers.size(); ++i) {
    for (size_t k = 0; k < inputs; ++k) {
      if (request->buffers[k] != request->buffers[i]) continue;
      const bool is_state = std::any_of(
          program.states.begin(), program.states.end(),
          [&](const StateMemory& state) { return state.input == k && state.output == i - inputs; });
      if (!is_state) {
        Invalid("Output ", i - inputs, " has the buffer of input ", k,
                ", but the program does not update it.");
      }
    }
  }
  if (request->symbols != request->set_symbols) SetSymbols(request);
  if (program.states.empty()) {
    request->execution.Bind(request->buffers);
  } else {
    std::vector<void*> memory = request->buffers;
    for (const StateMemory& state : program.states) {
      memory[state.input] = memory[inputs + state.output];
    }
    request->execution.Bind(memory);
  }
  request->bound = false;
}

/*! \brief The status of finished work, with a sentence. */
npu_status StatusOf(const npu_request* request) {
  if (request->status == NPU_CANCELLED) last_sentence = "The request was cancelled.";
  return request->status;
}

npu_status Execute(npu_request* request) {
  npu_status status = Run([&] {
    RequireIdle(request, "execute");
    FailOnDemand(Call::kExecute);
    if (request->bound) TakeOver(request);
    Queue::Execute(request);
  });
  return status == NPU_OK ? StatusOf(request) : status;
}

npu_status Submit(npu_request* request) {
  return Run([&] {
    RequireIdle(request, "submit");
    FailOnDemand(Call::kSubmit);
    if (request->bound) TakeOver(request);
    request->queue = &QueueOf(request->loaded->device);
    try {
      request->queue->Submit(request);
    } catch (const std::system_error&) {
      throw Error(NPU_OUT_OF_MEMORY, "The system has no more threads for the emulated device.");
    }
  });
}

npu_status Wait(npu_request* request, int64_t timeout_us) {
  bool done = false;
  npu_status status = Run([&] {
    RequireArgument(request, "request");
    if (!Queue::IsPending(*request)) Invalid("There is nothing to wait for; call submit before.");
    if (request->queue->IsForked()) {
      Queue::Forget(request);
      throw Error(NPU_DEVICE_ERROR,
                  "The request was submitted before this process was forked; its parent has it.");
    }
    npu_status fault = TakeFault(Call::kWait);
    if (fault == NPU_TIMEOUT) return;  // Pretend that it is still running.
    done = request->queue->Wait(request, timeout_us);
    if (fault != NPU_OK) throw Error(fault, "The emulated device was asked to fail at a wait.");
  });
  if (status != NPU_OK) return status;
  if (done) return StatusOf(request);
  last_sentence = "The time was up before the request was done; it goes on.";
  return NPU_TIMEOUT;
}

npu_status Cancel(npu_request* request) {
  return Run([&] {
    RequireArgument(request, "request");
    QueueOf(request->loaded->device).Cancel(request);
  });
}

npu_status ReadCounters(const npu_request* request, uint64_t* values) {
  return Run([&] {
    RequireArgument(request, "request");
    RequireArgument(values, "values");
    std::memcpy(values, &request->counters, sizeof(request->counters));
  });
}

npu_status ReadEvents(npu_request* request, const npu_event** events, size_t* count,
                      double* units_per_microsecond) {
  return Run([&] {
    RequireIdle(request, "read_events");
    RequireArgument(events, "events");
    RequireArgument(count, "count");
    RequireArgument(units_per_microsecond, "units_per_microsecond");
    const Loaded& loaded = *request->loaded;
    const Timeline& timeline = request->timeline ? *request->timeline : loaded.timeline;
    request->events = std::make_unique<Events>(loaded.program, loaded.accesses, timeline,
                                               request->set_symbols.data());
    *events = request->events->all().data();
    *count = request->events->all().size();
    *units_per_microsecond = static_cast<double>(loaded.program.machine.FrequencyMHz());
  });
}

npu_status ReadAllocations(npu_request* request, const npu_allocation** allocations,
                           size_t* count) {
  return Run([&] {
    RequireIdle(request, "read_allocations");
    RequireArgument(allocations, "allocations");
    RequireArgument(count, "count");
    const Loaded& loaded = *request->loaded;
    const Timeline& timeline = request->timeline ? *request->timeline : loaded.timeline;
    request->allocations = AllocationsOf(loaded.program, loaded.accesses, timeline);
    *allocations = request->allocations.data();
    *count = request->allocations.size();
  });
}

npu_status ReadPeaks(npu_request* request, double* operations_per_unit, const npu_memory** memories,
                     size_t* count) {
  return Run([&] {
    RequireIdle(request, "read_peaks");
    RequireArgument(operations_per_unit, "operations_per_unit");
    RequireArgument(memories, "memories");
    RequireArgument(count, "count");
    const Program& program = request->loaded->program;
    request->memories = MemoriesOf(program.machine);
    *operations_per_unit = OperationsPerCycle(program);
    *memories = request->memories.data();
    *count = request->memories.size();
  });
}

npu_status AllocateState(npu_device* device, size_t bytes, npu_state** state) {
  return Run([&] {
    RequireArgument(device, "device");
    RequireArgument(state, "state");
    FailOnDemand(Call::kAllocateState);
    *state = new npu_state{device->device, Buffer(bytes)};
  });
}

void FreeState(npu_state* state) { delete state; }

/*! \brief Throws unless it is all of a state that is copied. */
void RequireWhole(const npu_state* state, const void* data, size_t bytes) {
  RequireArgument(state, "state");
  RequireArgument(data, "data");
  if (bytes != state->memory.size()) {
    Invalid("A state has ", state->memory.size(), " bytes, not ", bytes, ".");
  }
}

npu_status WriteState(npu_state* state, const void* data, size_t bytes) {
  return Run([&] {
    RequireWhole(state, data, bytes);
    FailOnDemand(Call::kWriteState);
    std::memcpy(state->memory.data(), data, bytes);
  });
}

npu_status ReadState(npu_state* state, void* data, size_t bytes) {
  return Run([&] {
    RequireWhole(state, data, bytes);
    FailOnDemand(Call::kReadState);
    std::memcpy(data, state->memory.data(), bytes);
  });
}

const void* Extension(const char* name) {
  return name != nullptr && std::strcmp(name, NPU_FAULTS) == 0 ? &kFaults : nullptr;
}

constexpr npu_run_api kRunApi = {
    sizeof(npu_run_api),
    NPU_DRIVER_API_VERSION,
    kDriverName,
    kDriverRelease,
    kCounters,
    kCounterCount,
    NPU_CANCEL_RUNNING,
    LastError,
    CountDevices,
    Open,
    Close,
    Load,
    Unload,
    Describe,
    CreateRequest,
    DestroyRequest,
    BindInput,
    BindOutput,
    Execute,
    Submit,
    Wait,
    Cancel,
    ReadCounters,
    Extension,
    "cycles",
    nullptr,
    ReadEvents,
    ReadAllocations,
    ReadPeaks,
    AllocateState,
    FreeState,
    WriteState,
    ReadState,
};

}  // namespace
}  // namespace npu::emulator

const npu_run_api* npu_driver_run(uint32_t) { return &emulator::kRunApi; }
