// SPDX-License-Identifier: Apache-2.0
#include "execution.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "artifact.h"
#include "names.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kNotSet = std::numeric_limits<int64_t>::min();

/*! \brief What SetDevice said on this thread. */
thread_local int64_t device_of_this_thread = kNotSet;

/*! \brief A device, open as long as somebody uses it. */
std::shared_ptr<npu_device> OpenDevice(int64_t index) {
  static std::mutex mutex;
  static std::map<int32_t, std::weak_ptr<npu_device>> open_devices;
  // An index that is no int32_t is as impossible as -1, and the driver says what is possible.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  auto narrow = static_cast<int32_t>(index < 0 || index > kMost ? -1 : index);
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<npu_device> device = open_devices[narrow].lock();
  if (device == nullptr) {
    npu_device* opened = nullptr;
    CheckDriver(RunApi().open(narrow, &opened), "opening the device " + std::to_string(index));
    device.reset(opened, RunApi().close);
    open_devices[narrow] = device;
  }
  return device;
}

bool Conflict(const Request& a, const Request& b) {
  for (const MemoryUse& one : a.memory) {
    for (const MemoryUse& other : b.memory) {
      bool overlap = one.begin < other.end && other.begin < one.end;
      if (overlap && (one.writes || other.writes)) return true;
    }
  }
  return false;
}

void Add(const npu_counters& counters, npu_counters* total) {
  total->submissions += counters.submissions;
  total->failures += counters.failures;
  total->commands += counters.commands;
  total->matrix_operations += counters.matrix_operations;
  total->cycles += counters.cycles;
  for (size_t i = 0; i < NPU_ENGINE_COUNT; ++i) {
    total->busy_cycles[i] += counters.busy_cycles[i];
    total->stalled_cycles[i] += counters.stalled_cycles[i];
  }
  total->dram_bytes_read += counters.dram_bytes_read;
  total->dram_bytes_written += counters.dram_bytes_written;
  total->scratchpad_bytes_read += counters.scratchpad_bytes_read;
  total->scratchpad_bytes_written += counters.scratchpad_bytes_written;
  // These are no sums.
  total->arena_bytes = std::max(total->arena_bytes, counters.arena_bytes);
  total->scratchpad_bytes = std::max(total->scratchpad_bytes, counters.scratchpad_bytes);
  total->constant_bytes = std::max(total->constant_bytes, counters.constant_bytes);
  total->frequency_mhz = std::max(total->frequency_mhz, counters.frequency_mhz);
}

}  // namespace

void CheckDriver(npu_status status, const std::string& doing) {
  if (status == NPU_OK) return;
  const char* reason = RunApi().error();
  std::string sentence = std::string(kBackend) + ": the driver failed while " + doing + ": " +
                         (reason == nullptr ? "no reason given" : Readable(reason, true));
  if (status == NPU_INVALID) TVM_FFI_THROW(ValueError) << sentence;
  TVM_FFI_THROW(RuntimeError) << sentence;
}

void SetDevice(int64_t index) {
  OpenDevice(index);  // Throws if there is none.
  device_of_this_thread = index;
}

int64_t GetDevice() {
  if (device_of_this_thread != kNotSet) return device_of_this_thread;
  const char* text = std::getenv(kDeviceVariable);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  errno = 0;
  int64_t index = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0) {
    TVM_FFI_THROW(ValueError) << kBackend << ": the environment variable " << kDeviceVariable
                              << " is '" << text << "'; it must be the index of a device, counted "
                              << "from 0";
  }
  return index;
}

LoadedProgram::LoadedProgram(std::string_view bytes, int64_t device, const std::string& symbol,
                             int64_t timeout_ms)
    : symbol_(Readable(symbol)),
      timeout_(std::chrono::milliseconds(timeout_ms)),
      device_(OpenDevice(device)) {
  CheckDriver(RunApi().load(device_.get(), reinterpret_cast<const uint8_t*>(bytes.data()),
                            bytes.size(), &program_),
              "loading the program of the region '" + symbol_ + "'");
}

LoadedProgram::~LoadedProgram() {
  for (const auto& request : requests_) RunApi().destroy_request(request->handle);
  RunApi().unload(program_);
}

Request* LoadedProgram::Acquire() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!idle_.empty()) {
    Request* request = idle_.back();
    idle_.pop_back();
    return request;
  }
  auto request = std::make_unique<Request>();
  request->program = this;
  idle_.reserve(requests_.size() + 1);
  requests_.reserve(requests_.size() + 1);
  CheckDriver(RunApi().create_request(program_, &request->handle),
              "making a request for the region '" + symbol_ + "'");
  requests_.push_back(std::move(request));
  return requests_.back().get();
}

void LoadedProgram::Release(Request* request) {
  // Last, because nothing else may keep the module alive.
  ffi::ObjectPtr<ffi::Object> module = std::move(request->module);
  request->tensors.clear();
  request->memory.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  RunApi().counters(request->handle, &request->counters);
  idle_.push_back(request);
}

void LoadedProgram::Execute(Request* request) {
  if (timeout_.count() > 0) {
    Submit(request);
    Wait(request);
  } else {
    npu_status status = RunApi().execute(request->handle);
    if (status != NPU_OK) CheckDriver(status, "running the region '" + symbol_ + "'");
  }
}

void LoadedProgram::Submit(Request* request) {
  if (timeout_.count() > 0) request->deadline = std::chrono::steady_clock::now() + timeout_;
  npu_status status = RunApi().submit(request->handle);
  if (status != NPU_OK) CheckDriver(status, "starting the region '" + symbol_ + "'");
  request->is_running = true;
}

void LoadedProgram::Poll(Request* request) {
  npu_status status = RunApi().wait(request->handle, 0);
  if (status != NPU_TIMEOUT) End(request, status);
}

void LoadedProgram::Wait(Request* request) {
  int64_t left = -1;
  if (timeout_.count() > 0) {
    auto duration = request->deadline - std::chrono::steady_clock::now();
    left = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
    left = std::max<int64_t>(left, 0);
  }
  npu_status status = RunApi().wait(request->handle, left);
  if (status != NPU_TIMEOUT) return End(request, status);
  // Nothing may use the caller's memory after this.
  RunApi().cancel(request->handle);
  RunApi().wait(request->handle, -1);
  request->is_running = false;
  auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
  TVM_FFI_THROW(RuntimeError) << kBackend << ": the region '" << symbol_ << "' was cancelled: it "
                              << "took longer than the " << limit.count() << " ms that the option "
                              << "timeout_ms allows";
}

void LoadedProgram::End(Request* request, npu_status status) {
  request->is_running = false;
  if (status != NPU_OK) CheckDriver(status, "running the region '" + symbol_ + "'");
}

void LoadedProgram::NoteInFlight(int64_t count) {
  int64_t most = most_in_flight_.load(std::memory_order_relaxed);
  while (most < count && !most_in_flight_.compare_exchange_weak(most, count)) {
  }
}

ffi::Map<ffi::String, int64_t> LoadedProgram::Counters() {
  npu_counters total = {};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& request : requests_) Add(request->counters, &total);
  }
  ffi::Map<ffi::String, int64_t> result;
  auto set = [&result](const std::string& name, uint64_t value) {
    result.Set(name, static_cast<int64_t>(value));
  };
  set("submissions", total.submissions);
  set("failures", total.failures);
  set("commands", total.commands);
  set("matrix_operations", total.matrix_operations);
  set("cycles", total.cycles);
  constexpr const char* kEngines[NPU_ENGINE_COUNT] = {"matrix", "vector", "dma_in", "dma_out"};
  for (size_t i = 0; i < NPU_ENGINE_COUNT; ++i) {
    set(std::string("busy_cycles.") + kEngines[i], total.busy_cycles[i]);
    set(std::string("stalled_cycles.") + kEngines[i], total.stalled_cycles[i]);
  }
  set("dram_bytes_read", total.dram_bytes_read);
  set("dram_bytes_written", total.dram_bytes_written);
  set("scratchpad_bytes_read", total.scratchpad_bytes_read);
  set("scratchpad_bytes_written", total.scratchpad_bytes_written);
  set("arena_bytes", total.arena_bytes);
  set("scratchpad_bytes", total.scratchpad_bytes);
  set("constant_bytes", total.constant_bytes);
  set("frequency_mhz", total.frequency_mhz);
  set("most_in_flight", static_cast<uint64_t>(most_in_flight_.load()));
  return result;
}

std::string LoadedProgram::Describe() {
  const char* text = nullptr;
  CheckDriver(RunApi().describe(program_, &text),
              "describing the program of the region '" + symbol_ + "'");
  return text == nullptr ? "" : Readable(text, true);
}

PendingRequests& PendingRequests::OfThisThread() {
  thread_local PendingRequests requests;
  return requests;
}

PendingRequests::~PendingRequests() {
  try {
    WaitAll();
  } catch (const std::exception&) {
    // The thread ends: there is nobody left to tell.
  }
}

void PendingRequests::Submit(Request* request) {
  requests_.push_back(request);
  try {
    for (Request* other : requests_) {
      if (other == request) continue;
      Conflict(*other, *request) ? other->program->Wait(other) : other->program->Poll(other);
    }
    auto ended = std::remove_if(requests_.begin(), requests_.end(), [request](Request* other) {
      if (other == request || other->is_running) return false;
      other->program->Release(other);
      return true;
    });
    requests_.erase(ended, requests_.end());
    request->program->Submit(request);
    request->program->NoteInFlight(static_cast<int64_t>(requests_.size()));
  } catch (...) {
    Drain(std::current_exception());
  }
}

void PendingRequests::Drain(std::exception_ptr error) {
  for (Request* request : requests_) {
    try {
      if (request->is_running) request->program->Wait(request);
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
    request->program->Release(request);
  }
  requests_.clear();
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace npu
