// SPDX-License-Identifier: Apache-2.0
/*!
 * \file execution.h
 * \brief Devices, loaded programs, and the requests that run on them.
 */
#ifndef RUNTIME_EXECUTION_H_
#define RUNTIME_EXECUTION_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/string.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aligned_memory.h"
#include "artifact.h"
#include "driver_api.h"
#include "ports.h"
#include "state_memory.h"

namespace npu {

/*! \brief Throws the driver's error unless it succeeded. */
void CheckDriver(const npu_run_api& driver, npu_status status, const std::string& doing);

/*! \brief Sets the device of modules that this thread loads from now on. */
void SetDevice(int64_t index);
/*! \brief The device set by SetDevice on this thread, else by the environment, else 0. */
int64_t GetDevice();

/*! \brief A memory range that a request reads or writes. */
struct MemoryUse {
  const char* begin;
  const char* end;
  bool writes;
};

class LoadedProgram;

/*! \brief A request of the driver, used by one call at a time. */
struct Request {
  LoadedProgram* program = nullptr;
  npu_request* handle = nullptr;
  /*! \brief One for each of the driver's inputs and outputs, if they differ from the region's. */
  std::vector<Permutation> permutations;
  /*! \brief The counters after the last call: the driver cannot be asked while a request runs. */
  std::vector<uint64_t> counters;
  /*! \brief Whether it was submitted and not yet waited for. */
  bool is_running = false;
  /*! \brief The status if the driver can only execute: known before the wait. */
  npu_status outcome = NPU_OK;
  std::string failure;
  std::chrono::steady_clock::time_point deadline;
  /*! \brief When a recorded call began, and whether the driver records its events. */
  std::optional<std::chrono::steady_clock::time_point> began;
  bool records_events = false;
  /*! \brief Objects to keep alive while it runs asynchronously, and the memory that it uses. */
  tvm::ffi::ObjectPtr<tvm::ffi::Object> module;
  std::vector<tvm::ffi::Tensor> tensors;
  std::vector<std::shared_ptr<StateMemory>> states;
  std::vector<MemoryUse> memory;
};

/*! \brief A program on a device, and its requests; safe to use from several threads. */
class LoadedProgram {
 public:
  /*!
   * \brief Opens the device and loads the program.
   * \param driver The driver that compiled it.
   * \param bytes The program, whose pieces are aligned to 64 bytes and outlive this object.
   * \param device The index of the device.
   * \param symbol The region's name, for messages.
   * \param timeout_ms The time limit of a call; 0: none.
   */
  LoadedProgram(const npu_run_api& driver, const Pieces& bytes, int64_t device,
                const std::string& symbol, int64_t timeout_ms);
  ~LoadedProgram();
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;

  const npu_run_api& driver() const { return driver_; }
  OpenedDevice device() const { return {&driver_, device_}; }

  /*! \brief A request that no other call uses. */
  Request* Acquire();
  /*! \brief Returns a request for reuse. */
  void Release(Request* request);

  /*! \brief Runs a bound request, within the time limit. */
  void Execute(Request* request);
  /*! \brief Starts a bound request. */
  void Submit(Request* request);
  /*! \brief Polls whether a running request has ended. */
  void Poll(Request* request);
  /*! \brief Waits for a running request, within the time limit. */
  void Wait(Request* request);

  /*! \brief Records the largest number of requests in flight. */
  void NoteInFlight(int64_t count);
  /*! \brief The counters of all requests so far. */
  tvm::ffi::Map<tvm::ffi::String, int64_t> Counters();
  /*! \brief The units of the counters, "" for plain numbers. */
  tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String> CounterUnits() const;
  /*! \brief The driver's description of the program. */
  std::string Describe();

  /*! \brief Starts or stops recording calls; forgets those recorded before. */
  void SetProfiling(bool on);
  /*! \brief The recorded calls as JSON, which are then forgotten: for each, the time on the host
   *  and the driver's events. */
  tvm::ffi::String TakeProfile();

 private:
  /*! \brief Permutes what the work reads, or has written. */
  static void Permute(Request* request, bool outputs);
  /*! \brief Handles the status of the driver's wait; throws if it is an error. */
  void End(Request* request, npu_status status);
  /*! \brief Notes that a call begins, if calls are recorded. */
  void Begin(Request* request);
  /*! \brief Records a call that ended well. */
  void Record(Request* request);
  /*! \brief Cancels running work, and waits until nothing uses the caller's memory any more. */
  void Cancel(Request* request);

  const npu_run_api& driver_;
  std::string symbol_;
  std::chrono::microseconds timeout_;
  std::shared_ptr<npu_device> device_;
  /*! \brief The bytes in one place, if they come in several pieces. */
  std::optional<AlignedMemory> joined_;
  npu_program* program_ = nullptr;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> idle_;
  std::atomic<int64_t> most_in_flight_{0};
  std::atomic<bool> is_profiling_{false};
  /*! \brief Whether a call may take long, and must react to signals; the first may. */
  std::atomic<bool> may_be_long_{true};
  tvm::ffi::json::Array calls_;
  double units_per_microsecond_ = 0;
  /*! \brief The device's peak rates; empty: not known. */
  tvm::ffi::json::Object peaks_;
};

/*!
 * \brief The requests that one thread has submitted and not yet waited for.
 *
 * An error of a request is thrown when all have ended, so that none is left running.
 */
class PendingRequests {
 public:
  /*! \brief The requests of the calling thread. */
  static PendingRequests& OfThisThread();
  PendingRequests() = default;
  ~PendingRequests();
  PendingRequests(const PendingRequests&) = delete;
  PendingRequests& operator=(const PendingRequests&) = delete;

  /*! \brief Starts a bound request after all that write memory it uses, or read memory it writes.
   *  Takes over the request, even if this throws. */
  void Submit(Request* request);
  /*! \brief Waits for all, and throws the first error. */
  void WaitAll() {
    if (!requests_.empty()) Drain(nullptr);
  }

 private:
  /*! \brief Waits for all, and throws the first error. */
  void Drain(std::exception_ptr error);

  /*! \brief In the order in which they were submitted. */
  std::vector<Request*> requests_;
};

}  // namespace npu

#endif  // RUNTIME_EXECUTION_H_
