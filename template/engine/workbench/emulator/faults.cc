// SPDX-License-Identifier: Apache-2.0
/*!
 * \file faults.cc
 * \brief Failures on demand.
 */
#include "faults.h"

#include <atomic>
#include <cstring>

namespace npu::emulator {
namespace {

constexpr const char* kCalls[] = {"load", "create_request", "execute",     "submit",
                                  "wait", "allocate_state", "write_state", "read_state"};
constexpr int kCallCount = static_cast<int>(Call::kCount);
static_assert(sizeof(kCalls) / sizeof(kCalls[0]) == kCallCount, "");

/*! \brief The status in the upper half, the number of calls left in the lower one. */
std::atomic<uint64_t> faults[kCallCount];

}  // namespace

npu_status TakeFault(Call call) {
  std::atomic<uint64_t>& fault = faults[static_cast<int>(call)];
  uint64_t known = fault.load(std::memory_order_relaxed);
  while (static_cast<uint32_t>(known) != 0) {
    if (fault.compare_exchange_weak(known, known - 1)) return static_cast<npu_status>(known >> 32);
  }
  return NPU_OK;
}

void FailOnDemand(Call call) {
  npu_status status = TakeFault(call);
  if (status == NPU_OK) return;
  const char* name = kCalls[static_cast<int>(call)];
  throw Error(status, Join("The emulated device was asked to fail at the next ", name, "."));
}

namespace {

npu_status FailNext(const char* call, npu_status status, int32_t count) {
  if (call == nullptr || status <= NPU_OK || status > NPU_CANCELLED || count < 0) {
    return NPU_INVALID;
  }
  for (int i = 0; i < kCallCount; ++i) {
    if (std::strcmp(call, kCalls[i]) != 0) continue;
    faults[i] = static_cast<uint64_t>(status) << 32 | static_cast<uint64_t>(count);
    return NPU_OK;
  }
  return NPU_INVALID;
}

}  // namespace

const npu_faults kFaults = {sizeof(npu_faults), FailNext};

}  // namespace npu::emulator
