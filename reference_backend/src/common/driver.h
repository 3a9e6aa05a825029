// Template-owned: 'copier update' brings changes and merges your edits.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver.h
 * \brief The driver, under a name that is the same in every backend.
 */
#ifndef DRIVER_ALIAS_H_
#define DRIVER_ALIAS_H_

#include "example_npu_driver.h"

namespace tvm_example_npu {

/*! \brief The build half of the driver. */
inline const npu_build_api& BuildApi() { return *example_npu_build_api(); }
/*! \brief The run half of the driver. */
inline const npu_run_api& RunApi() { return *example_npu_run_api(); }

}  // namespace tvm_example_npu

#endif  // DRIVER_ALIAS_H_
