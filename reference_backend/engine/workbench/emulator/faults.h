// SPDX-License-Identifier: Apache-2.0
/*!
 * \file faults.h
 * \brief Failures on demand, for the conformance kit: what if the device runs out of memory?
 */
#ifndef EMULATOR_FAULTS_H_
#define EMULATOR_FAULTS_H_

#include <cstdint>

#include "support.h"

namespace npu::emulator {

/*! \brief The functions of the run half that can fail on demand. */
enum class Call : uint8_t {
  kLoad,
  kCreateRequest,
  kExecute,
  kSubmit,
  kWait,
  kAllocateState,
  kWriteState,
  kReadState,
  kCount
};

/*! \brief The status that this call has to return, or NPU_OK. */
npu_status TakeFault(Call call);

/*! \brief Throws if this call has to fail. */
void FailOnDemand(Call call);

/*! \brief The extension that requests failures. */
extern const npu_faults kFaults;

}  // namespace npu::emulator

#endif  // EMULATOR_FAULTS_H_
