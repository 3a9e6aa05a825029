// SPDX-License-Identifier: Apache-2.0
#include "execution.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "names.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kNotSet = std::numeric_limits<int64_t>::min();

/*! \brief How long a wait lasts before Python is asked for signals, such as that of Ctrl-C. */
constexpr std::chrono::microseconds kSlice = std::chrono::milliseconds(50);

/*! \brief The device that SetDevice chose on this thread. */
thread_local int64_t device_of_this_thread = kNotSet;

/*! \brief A device that is open as long as anything uses it. */
std::shared_ptr<npu_device> OpenDevice(const npu_run_api& driver, int64_t index) {
  static std::mutex mutex;
  static std::map<std::pair<const npu_run_api*, int32_t>, std::weak_ptr<npu_device>> open_devices;
  if (driver.open == nullptr) {
    if (index == 0) return nullptr;
    TVM_FFI_THROW(ValueError) << kBackend << ": there is no device " << index << "; the driver "
                              << driver.name << " has one, device 0";
  }
  // An index beyond int32_t is as invalid as -1, and the driver reports the valid ones.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  auto narrow = static_cast<int32_t>(index < 0 || index > kMost ? -1 : index);
  std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<npu_device>& open = open_devices[{&driver, narrow}];
  std::shared_ptr<npu_device> device = open.lock();
  if (device == nullptr) {
    npu_device* opened = nullptr;
    CheckDriver(driver, driver.open(narrow, &opened),
                "opening the device " + std::to_string(index));
    device.reset(opened, [&driver](npu_device* closed) {
      if (driver.close != nullptr) driver.close(closed);
    });
    open = device;
  }
  return device;
}

bool Conflict(const Request& a, const Request& b) {
  for (const MemoryUse& x : a.memory) {
    for (const MemoryUse& y : b.memory) {
      bool overlap = x.begin < y.end && y.begin < x.end;
      if (overlap && (x.writes || y.writes)) return true;
    }
  }
  return false;
}

/*! \brief The driver's reason for the failure of its last call on this thread. */
std::string ReasonOf(const npu_run_api& driver) {
  const char* reason = driver.error == nullptr ? nullptr : driver.error();
  return reason == nullptr ? "no reason given" : Readable(reason, true);
}

[[noreturn]] void ThrowFailure(npu_status status, const std::string& doing,
                               const std::string& reason) {
  // Ctrl-C may be why: drivers that wait for a process notice it, too.
  if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
  std::string sentence =
      std::string(kBackend) + ": the driver failed while " + doing + ": " + reason;
  if (status == NPU_INVALID) TVM_FFI_THROW(ValueError) << sentence;
  TVM_FFI_THROW(RuntimeError) << sentence;
}

}  // namespace

void CheckDriver(const npu_run_api& driver, npu_status status, const std::string& doing) {
  if (status != NPU_OK) ThrowFailure(status, doing, ReasonOf(driver));
}

void SetDevice(int64_t index) {
  // One driver with this device is enough: the artifact determines which one runs a program.
  std::exception_ptr error;
  for (const auto& driver : RunDrivers()) {
    try {
      OpenDevice(driver.api, index);
      device_of_this_thread = index;
      return;
    } catch (const std::exception&) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  std::rethrow_exception(error);
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

LoadedProgram::LoadedProgram(const npu_run_api& driver, const Pieces& bytes, int64_t device,
                             const std::string& symbol, int64_t timeout_ms)
    : driver_(driver),
      symbol_(Readable(symbol)),
      timeout_(std::chrono::milliseconds(timeout_ms)),
      device_(OpenDevice(driver, device)) {
  if (bytes.size() != 1) {
    joined_.emplace(SizeOf(bytes));
    Join(bytes, joined_->data());
  }
  const std::string_view whole = joined_.has_value() ? joined_->view() : bytes[0];
  CheckDriver(driver_,
              driver_.load(device_.get(), reinterpret_cast<const uint8_t*>(whole.data()),
                           whole.size(), &program_),
              "loading the program of the region '" + symbol_ + "'");
}

LoadedProgram::~LoadedProgram() {
  if (driver_.destroy_request != nullptr) {
    for (const auto& request : requests_) driver_.destroy_request(request->handle);
  }
  if (driver_.unload != nullptr) driver_.unload(program_);
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
  request->counters.resize(driver_.counter_count);
  idle_.reserve(requests_.size() + 1);
  requests_.reserve(requests_.size() + 1);
  CheckDriver(driver_, driver_.create_request(program_, &request->handle),
              "making a request for the region '" + symbol_ + "'");
  requests_.push_back(std::move(request));
  return requests_.back().get();
}

void LoadedProgram::Release(Request* request) {
  // Last, because nothing else may keep the module alive.
  ffi::ObjectPtr<ffi::Object> module = std::move(request->module);
  request->tensors.clear();
  request->states.clear();
  request->memory.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  if (driver_.counter_count > 0) {
    driver_.read_counters(request->handle, request->counters.data());
  }
  idle_.push_back(request);
}

void LoadedProgram::Permute(Request* request, bool outputs) {
  for (Permutation& permutation : request->permutations) {
    if (permutation.is_output == outputs) permutation.Run();
  }
}

void LoadedProgram::Execute(Request* request) {
  if (timeout_.count() > 0 || driver_.execute == nullptr || may_be_long_) {
    auto began = std::chrono::steady_clock::now();
    Submit(request);
    Wait(request);
    may_be_long_ = std::chrono::steady_clock::now() - began > kSlice;
  } else {
    Begin(request);
    Permute(request, false);
    npu_status status = driver_.execute(request->handle);
    if (status != NPU_OK) CheckDriver(driver_, status, "running the region '" + symbol_ + "'");
    Permute(request, true);
    if (request->began.has_value()) Record(request);
  }
}

void LoadedProgram::Submit(Request* request) {
  Begin(request);
  // Not earlier: requests before this one may have written the inputs.
  Permute(request, false);
  if (timeout_.count() > 0) request->deadline = std::chrono::steady_clock::now() + timeout_;
  if (driver_.submit == nullptr) {
    request->outcome = driver_.execute(request->handle);
    if (request->outcome != NPU_OK) request->failure = ReasonOf(driver_);
  } else {
    npu_status status = driver_.submit(request->handle);
    if (status != NPU_OK) CheckDriver(driver_, status, "starting the region '" + symbol_ + "'");
  }
  request->is_running = true;
}

void LoadedProgram::Poll(Request* request) {
  npu_status status = driver_.wait == nullptr ? request->outcome : driver_.wait(request->handle, 0);
  if (status != NPU_TIMEOUT) End(request, status);
}

void LoadedProgram::Wait(Request* request) {
  if (driver_.wait == nullptr) return End(request, request->outcome);
  for (;;) {
    std::chrono::microseconds slice = kSlice;
    if (timeout_.count() > 0) {
      auto remaining = request->deadline - std::chrono::steady_clock::now();
      slice = std::clamp(std::chrono::duration_cast<std::chrono::microseconds>(remaining),
                         std::chrono::microseconds(0), kSlice);
    }
    auto began = std::chrono::steady_clock::now();
    npu_status status = driver_.wait(request->handle, slice.count());
    if (status != NPU_TIMEOUT) return End(request, status);
    // The device may end a wait early by a limit of its own.
    bool is_early = std::chrono::steady_clock::now() - began < slice / 2;
    if (TVMFFIEnvCheckSignals() != 0) {
      Cancel(request);
      throw ffi::EnvErrorAlreadySet();
    }
    if (slice < kSlice || is_early) break;
  }
  Cancel(request);
  auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
  TVM_FFI_THROW(RuntimeError) << kBackend << ": the region '" << symbol_ << "' was "
                              << (driver_.cancel != nullptr ? "cancelled" : "given up")
                              << ": it took longer than the " << limit.count()
                              << " ms that the option timeout_ms allows";
}

void LoadedProgram::Cancel(Request* request) {
  if (driver_.cancel != nullptr) driver_.cancel(request->handle);
  driver_.wait(request->handle, -1);
  request->is_running = false;
}

void LoadedProgram::End(Request* request, npu_status status) {
  request->is_running = false;
  if (status == NPU_OK) {
    Permute(request, true);
    if (request->began.has_value()) Record(request);
    return;
  }
  std::string reason = driver_.wait == nullptr ? request->failure : ReasonOf(driver_);
  ThrowFailure(status, "running the region '" + symbol_ + "'", reason);
}

void LoadedProgram::NoteInFlight(int64_t count) {
  int64_t most = most_in_flight_.load(std::memory_order_relaxed);
  while (most < count && !most_in_flight_.compare_exchange_weak(most, count)) {
  }
}

ffi::Map<ffi::String, int64_t> LoadedProgram::Counters() {
  std::vector<uint64_t> totals(driver_.counter_count);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& request : requests_) {
      for (size_t i = 0; i < totals.size(); ++i) {
        uint64_t value = request->counters[i];
        bool is_sum = driver_.counters[i].kind == NPU_COUNTER_SUM;
        totals[i] = is_sum ? totals[i] + value : std::max(totals[i], value);
      }
    }
  }
  ffi::Map<ffi::String, int64_t> result;
  for (size_t i = 0; i < totals.size(); ++i) {
    result.Set(driver_.counters[i].name, static_cast<int64_t>(totals[i]));
  }
  result.Set("most_in_flight", most_in_flight_.load());
  return result;
}

ffi::Map<ffi::String, ffi::String> LoadedProgram::CounterUnits() const {
  ffi::Map<ffi::String, ffi::String> units;
  for (size_t i = 0; i < driver_.counter_count; ++i) {
    const char* unit = driver_.counters[i].unit;
    units.Set(driver_.counters[i].name, unit == nullptr ? "" : unit);
  }
  units.Set("most_in_flight", "");
  return units;
}

std::string LoadedProgram::Describe() {
  if (driver_.describe == nullptr) return "";
  const char* text = nullptr;
  CheckDriver(driver_, driver_.describe(program_, &text),
              "describing the program of the region '" + symbol_ + "'");
  return text == nullptr ? "" : Readable(text, true);
}

void LoadedProgram::Begin(Request* request) {
  const bool on = is_profiling_.load(std::memory_order_relaxed);
  if (on != request->records_events) {
    if (driver_.record_events != nullptr) {
      CheckDriver(driver_, driver_.record_events(request->handle, on ? 1 : 0),
                  "recording events of the region '" + symbol_ + "'");
    }
    request->records_events = on;
  }
  request->began.reset();
  if (on) request->began = std::chrono::steady_clock::now();
}

void LoadedProgram::Record(Request* request) {
  const auto now = std::chrono::steady_clock::now();
  const auto microseconds = [](std::chrono::steady_clock::time_point time) {
    return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
  };
  const npu_event* events = nullptr;
  size_t count = 0;
  double units_per_microsecond = 0;
  if (driver_.read_events != nullptr) {
    CheckDriver(driver_,
                driver_.read_events(request->handle, &events, &count, &units_per_microsecond),
                "reading events of the region '" + symbol_ + "'");
  }
  const auto text = [](const char* name) {
    return name == nullptr ? ffi::json::Value(nullptr)
                           : ffi::json::Value(ffi::String(Readable(name)));
  };
  ffi::json::Array event_list;
  for (size_t i = 0; i < count; ++i) {
    const npu_event& event = events[i];
    ffi::json::Object traffic;
    for (size_t k = 0; k < event.traffic_count; ++k) {
      const npu_traffic& moved = event.traffic[k];
      traffic.Set(ffi::String(Readable(moved.memory)),
                  ffi::json::Array({static_cast<int64_t>(moved.bytes_read),
                                    static_cast<int64_t>(moved.bytes_written)}));
    }
    event_list.push_back(
        ffi::json::Object({{ffi::String("name"), text(event.name)},
                           {ffi::String("label"), text(event.label)},
                           {ffi::String("engine"), text(event.engine)},
                           {ffi::String("begin"), event.begin},
                           {ffi::String("end"), event.end},
                           {ffi::String("busy"), event.busy},
                           {ffi::String("waits_for"), text(event.waits_for)},
                           {ffi::String("traffic"), traffic},
                           {ffi::String("operations"), static_cast<int64_t>(event.operations)}}));
  }
  const npu_allocation* allocations = nullptr;
  size_t allocation_count = 0;
  if (driver_.read_events != nullptr && driver_.read_allocations != nullptr) {
    CheckDriver(driver_, driver_.read_allocations(request->handle, &allocations, &allocation_count),
                "reading what the region '" + symbol_ + "' keeps in memories");
  }
  ffi::json::Array allocation_list;
  for (size_t i = 0; i < allocation_count; ++i) {
    const npu_allocation& allocation = allocations[i];
    allocation_list.push_back(
        ffi::json::Object({{ffi::String("memory"), text(allocation.memory)},
                           {ffi::String("label"), text(allocation.label)},
                           {ffi::String("offset"), static_cast<int64_t>(allocation.offset)},
                           {ffi::String("bytes"), static_cast<int64_t>(allocation.bytes)},
                           {ffi::String("begin"), allocation.begin},
                           {ffi::String("end"), allocation.end}}));
  }
  ffi::json::Object peaks;
  if (driver_.read_events != nullptr && driver_.read_peaks != nullptr) {
    double operations = 0;
    const npu_memory* memories = nullptr;
    size_t memory_count = 0;
    CheckDriver(driver_, driver_.read_peaks(request->handle, &operations, &memories, &memory_count),
                "reading the peaks of the region '" + symbol_ + "'");
    ffi::json::Object by_name;
    for (size_t i = 0; i < memory_count; ++i) {
      by_name.Set(
          ffi::String(Readable(memories[i].name)),
          ffi::json::Object({{ffi::String("bytes"), static_cast<int64_t>(memories[i].bytes)},
                             {ffi::String("bytes_per_unit"), memories[i].bytes_per_unit}}));
    }
    peaks = ffi::json::Object(
        {{ffi::String("operations"), operations}, {ffi::String("memories"), by_name}});
  }
  std::lock_guard<std::mutex> lock(mutex_);
  units_per_microsecond_ = units_per_microsecond;
  peaks_ = peaks;
  // The time that recording took does not count as the model's.
  const auto recorded = std::chrono::steady_clock::now();
  calls_.push_back(ffi::json::Object({{ffi::String("begin_us"), microseconds(*request->began)},
                                      {ffi::String("end_us"), microseconds(now)},
                                      {ffi::String("recorded_us"), microseconds(recorded)},
                                      {ffi::String("events"), event_list},
                                      {ffi::String("allocations"), allocation_list}}));
  request->began.reset();
}

void LoadedProgram::SetProfiling(bool on) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_ = {};
  is_profiling_ = on;
}

ffi::String LoadedProgram::TakeProfile() {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool has_events = driver_.read_events != nullptr && driver_.event_unit != nullptr;
  const ffi::json::Object profile(
      {{ffi::String("unit"),
        has_events ? ffi::json::Value(ffi::String(Readable(driver_.event_unit))) : nullptr},
       {ffi::String("ticks_per_us"), units_per_microsecond_},
       {ffi::String("peaks"), peaks_},
       {ffi::String("calls"), calls_}});
  calls_ = {};
  return ffi::json::Stringify(profile);
}

PendingRequests& PendingRequests::OfThisThread() {
  thread_local PendingRequests requests;
  return requests;
}

PendingRequests::~PendingRequests() {
  try {
    WaitAll();
  } catch (const std::exception&) {
    // The thread is ending; nothing could catch the exception.
  }
}

void PendingRequests::Submit(Request* request) {
  requests_.push_back(request);
  try {
    for (Request* earlier : requests_) {
      if (earlier == request) continue;
      LoadedProgram* program = earlier->program;
      Conflict(*earlier, *request) ? program->Wait(earlier) : program->Poll(earlier);
    }
    auto ended = std::remove_if(requests_.begin(), requests_.end(), [request](Request* pending) {
      if (pending == request || pending->is_running) return false;
      pending->program->Release(pending);
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
