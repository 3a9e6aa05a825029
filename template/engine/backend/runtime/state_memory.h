// SPDX-License-Identifier: Apache-2.0
/*!
 * \file state_memory.h
 * \brief Memory of devices that holds the values of states between calls.
 */
#ifndef RUNTIME_STATE_MEMORY_H_
#define RUNTIME_STATE_MEMORY_H_

#include <cstddef>
#include <memory>

#include "npu_driver.h"

namespace npu {

/*! \brief An open device, and its driver. */
struct OpenedDevice {
  const npu_run_api* driver = nullptr;
  std::shared_ptr<npu_device> handle;

  bool operator==(const OpenedDevice& other) const {
    return driver == other.driver && handle == other.handle;
  }
};

/*! \brief The value of a state in memory of a device. */
class StateMemory {
 public:
  /*! \brief New memory, of unknown content; null where the driver declines it. */
  static std::shared_ptr<StateMemory> Allocate(const OpenedDevice& device, size_t bytes);
  ~StateMemory() { device_.driver->free_state(handle_); }
  StateMemory(const StateMemory&) = delete;
  StateMemory& operator=(const StateMemory&) = delete;

  const OpenedDevice& device() const { return device_; }
  npu_state* handle() const { return handle_; }

  /*! \brief Copies from the host's memory, or to it: all bytes. */
  void Write(const void* data);
  void Read(void* data) const;

 private:
  StateMemory(const OpenedDevice& device, size_t bytes) : device_(device), bytes_(bytes) {}

  const OpenedDevice device_;
  const size_t bytes_;
  npu_state* handle_ = nullptr;
};

}  // namespace npu

#endif  // RUNTIME_STATE_MEMORY_H_
