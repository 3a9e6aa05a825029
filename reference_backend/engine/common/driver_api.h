// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_api.h
 * \brief The driver, under names that are the same in every backend.
 */
#ifndef COMMON_DRIVER_API_H_
#define COMMON_DRIVER_API_H_

#include <stdexcept>
#include <string>

#include "npu_driver.h"

namespace npu {

/*! \brief A half of the driver; throws if it was built from another version of its header. */
template <typename Api>
const Api& Checked(const Api* api, const char* half) {
  if (api == nullptr || api->version != NPU_DRIVER_API_VERSION) {
    throw std::runtime_error(
        std::string("the ") + half + " half of the driver has the API version " +
        (api == nullptr ? "none" : std::to_string(api->version)) + ", but this library needs " +
        std::to_string(NPU_DRIVER_API_VERSION) + "; build the driver and this library together");
  }
  return *api;
}

/*! \brief The build half of the driver: only in the codegen library. */
inline const npu_build_api& BuildApi() {
  static const auto& api = Checked(NPU_BUILD_API(), "build");
  return api;
}

/*! \brief The run half of the driver. */
inline const npu_run_api& RunApi() {
  static const auto& api = Checked(NPU_RUN_API(), "run");
  return api;
}

}  // namespace npu

#endif  // COMMON_DRIVER_API_H_
