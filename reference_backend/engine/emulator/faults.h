// SPDX-License-Identifier: Apache-2.0
/*!
 * \file faults.h
 * \brief Failures on demand, for the conformance kit: what if the device runs out of memory?
 *
 * A driver of real hardware may have no such function; the kit then leaves these cases out, and
 * says so.
 */
#ifndef EMULATOR_FAULTS_H_
#define EMULATOR_FAULTS_H_

#include <cstdint>

#include "support.h"

#pragma GCC visibility push(default)
extern "C" {
/*!
 * \brief Makes calls of the run half fail, in this process and on any thread.
 * \param call The function: "load", "create_request", "execute", "submit" or "wait".
 * \param status What it returns, an npu_status. A wait does its waiting before, unless this is
 *   NPU_TIMEOUT.
 * \param count How many calls fail from now on; 0 ends it.
 * \return 0, or -1 where there is no such function or status.
 */
int32_t NPU_FAIL_NEXT(const char* call, int32_t status, int32_t count);
}  // extern "C"
#pragma GCC visibility pop

namespace npu::emulator {

/*! \brief The functions of the run half that can fail on demand. */
enum class Call : uint8_t { kLoad, kCreateRequest, kExecute, kSubmit, kWait, kCount };

/*! \brief The status with which this call has to fail, or NPU_OK. */
npu_status TakeFault(Call call);

/*! \brief Throws if this call has to fail. */
void FailOnDemand(Call call);

}  // namespace npu::emulator

#endif  // EMULATOR_FAULTS_H_
