// SPDX-License-Identifier: Apache-2.0
/*!
 * \file device.h
 * \brief The run half of a driver whose programs the emulator executes.
 */
#ifndef ISA_EMULATOR_DEVICE_H_
#define ISA_EMULATOR_DEVICE_H_

#include "npu_driver.h"

namespace npu::isa {

/*!
 * \brief The table of the run half: programs of the driver kit whose opaque bytes are a program of
 * the machine (backend/isa/program.py).
 *
 * Inputs and outputs are the segments of its ports, in their order. Events are in cycles.
 */
npu_run_api RunTable(const char* name, const char* release);

}  // namespace npu::isa

#endif  // ISA_EMULATOR_DEVICE_H_
