// SPDX-License-Identifier: Apache-2.0
/*!
 * \file names.h
 * \brief The names of this backend as values.
 */
#ifndef COMMON_NAMES_H_
#define COMMON_NAMES_H_

#include "backend.h"

namespace npu {

constexpr const char* kBackend = BACKEND_NAME;
/*! \brief The environment variable that names the device. */
constexpr const char* kDeviceVariable = BACKEND_PREFIX "DEVICE";
/*! \brief The environment variable that names a folder to search first for drivers. */
constexpr const char* kDriverFolderVariable = BACKEND_PREFIX "DRIVER_DIR";

}  // namespace npu

#endif  // COMMON_NAMES_H_
