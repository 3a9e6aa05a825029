// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_api.h
 * \brief The drivers installed next to this library, and their functions.
 *
 * The only place that handles versions and absent functions: all other code sees a table with all
 * fields.
 */
#ifndef COMMON_DRIVER_API_H_
#define COMMON_DRIVER_API_H_

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "npu_driver.h"

namespace npu {

/*! \brief A driver cannot be used; what() says why, and what to do. */
class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/*! \brief The table of a driver with this header's fields: NULL beyond the end of a shorter table.
 *  Throws a DriverError for other tables, and without a required function. */
npu_build_api Adopt(const npu_build_api* table, const std::string& path);
npu_run_api Adopt(const npu_run_api* table, const std::string& path);

/*! \brief A driver next to this library. */
template <typename Api>
struct InstalledDriver {
  /*! \brief "vendor", "second" or "emulator". */
  std::string role;
  Api api;
};

/*! \brief The installed drivers, the default one first; searched once. An unusable library is a
 *  DriverError. */
const std::vector<InstalledDriver<npu_build_api>>& BuildDrivers();
const std::vector<InstalledDriver<npu_run_api>>& RunDrivers();

/*! \brief The build half of a driver by its role; "" means the first one. */
const npu_build_api& BuildDriver(const std::string& role);
/*! \brief The run half of the driver that calls itself `name`, which compiled the program. */
const npu_run_api& RunDriver(const std::string& name);

/*!
 * \name Operations only for drivers with `integers`
 * A driver that ignores zero points would compute wrong results. `is_float` tells whether a tensor
 * has real numbers.
 * @{
 */
inline bool NeedsIntegers(const npu_vector_program* program) {
  for (int32_t i = 0; program != nullptr && i < program->instruction_count; ++i) {
    if (program->instructions[i].opcode == NPU_VECTOR_RESCALE) return true;
  }
  return false;
}

template <typename Op, typename IsFloat>
bool NeedsIntegers(const Op& op, const IsFloat& is_float) {
  if constexpr (std::is_same_v<Op, npu_matmul>) {
    return !is_float(op.a) || NeedsIntegers(op.epilogue);
  } else if constexpr (std::is_same_v<Op, npu_convolution> ||
                       std::is_same_v<Op, npu_transposed_convolution>) {
    return !is_float(op.data) || !is_float(op.weight) || NeedsIntegers(op.epilogue);
  } else if constexpr (std::is_same_v<Op, npu_reduce>) {
    return NeedsIntegers(op.epilogue);
  } else if constexpr (std::is_same_v<Op, npu_elementwise>) {
    return NeedsIntegers(op.program);
  } else {
    return false;
  }
}
/*! @} */

/*! \brief Whether real numbers are multiplied by integers, which needs a driver with
 *  `integer_weights`. */
template <typename Op, typename IsFloat>
bool NeedsIntegerWeights(const Op& op, const IsFloat& is_float) {
  if constexpr (std::is_same_v<Op, npu_matmul>) return is_float(op.a) && !is_float(op.b);
  return false;
}

}  // namespace npu

#endif  // COMMON_DRIVER_API_H_
