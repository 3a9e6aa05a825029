// Template-owned: 'copier update' brings changes and merges your edits.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file backend.h
 * \brief The names that differ from backend to backend.
 */
#ifndef COMMON_BACKEND_H_
#define COMMON_BACKEND_H_

/*! \brief The name under which TVM knows this backend; a macro, to be part of other literals. */
#define BACKEND_NAME "example_npu"

namespace tvm_example_npu {

constexpr const char* kBackend = BACKEND_NAME;
/*! \brief The environment variable that names the device. */
constexpr const char* kDeviceVariable = "EXAMPLE_NPU_DEVICE";

}  // namespace tvm_example_npu

#endif  // COMMON_BACKEND_H_
