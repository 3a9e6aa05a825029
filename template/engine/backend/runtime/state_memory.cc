// SPDX-License-Identifier: Apache-2.0
#include "state_memory.h"

#include "execution.h"

namespace npu {

std::shared_ptr<StateMemory> StateMemory::Allocate(const OpenedDevice& device, size_t bytes) {
  std::shared_ptr<StateMemory> memory(new StateMemory(device, bytes));
  const npu_run_api& driver = *device.driver;
  const npu_status status = driver.allocate_state(device.handle.get(), bytes, &memory->handle_);
  if (status == NPU_DECLINED) return nullptr;
  CheckDriver(driver, status, "allocating " + std::to_string(bytes) + " bytes for a state");
  return memory;
}

void StateMemory::Write(const void* data) {
  const npu_run_api& driver = *device_.driver;
  CheckDriver(driver, driver.write_state(handle_, data, bytes_), "writing a state");
}

void StateMemory::Read(void* data) const {
  const npu_run_api& driver = *device_.driver;
  CheckDriver(driver, driver.read_state(handle_, data, bytes_), "reading a state");
}

}  // namespace npu
