// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_api.h
 * \brief The drivers installed beside this library, and their functions.
 *
 * The only place that handles versions and absent functions: everybody else sees a table with all
 * fields.
 */
#ifndef COMMON_DRIVER_API_H_
#define COMMON_DRIVER_API_H_

#include <stdexcept>
#include <string>
#include <vector>

#include "npu_driver.h"

namespace npu {

/*! \brief A driver cannot be used; what() says why, and what to do. */
class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/*! \brief The table of a driver as this header has it: what the driver's is too short for is NULL.
 *  Throws a DriverError where it is no table, or lacks what every driver must have. */
npu_build_api Adopt(const npu_build_api* table, const std::string& path);
npu_run_api Adopt(const npu_run_api* table, const std::string& path);

/*! \brief The installed drivers, the one that was built as the default first; found once. An
 * unusable library is a DriverError. */
template <typename Api>
struct InstalledDriver {
  /*! \brief "vendor" or "emulator". */
  std::string role;
  Api api;
};

const std::vector<InstalledDriver<npu_build_api>>& BuildDrivers();
const std::vector<InstalledDriver<npu_run_api>>& RunDrivers();

/*! \brief The build half of a driver by its role; "" means the first one. */
const npu_build_api& BuildDriver(const std::string& role);
/*! \brief The run half of the driver that calls itself `name`, which made a program. */
const npu_run_api& RunDriver(const std::string& name);

}  // namespace npu

#endif  // COMMON_DRIVER_API_H_
