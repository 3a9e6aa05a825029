// SPDX-License-Identifier: Apache-2.0
/*!
 * \file names.cc
 * \brief The names of this backend, from backend.h.
 */
#include "names.h"

#include "backend.h"

namespace npu {

const char* const kBackend = BACKEND_NAME;
const char* const kClassName = BACKEND_CLASS_NAME;
const char* const kPackage = BACKEND_PACKAGE;
const char* const kArtifactKind = BACKEND_NAME ".artifact";
const char* const kArtifactFunction = BACKEND_NAME "_artifact_";
const char* const kDeviceVariable = BACKEND_PREFIX "DEVICE";
const char* const kDriverFolderVariable = BACKEND_PREFIX "DRIVER_DIR";
const char* const kDefaultDriver = NPU_DEFAULT_DRIVER;

}  // namespace npu
