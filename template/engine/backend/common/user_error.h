// SPDX-License-Identifier: Apache-2.0
/*!
 * \file user_error.h
 * \brief What a user reads of a failure inside of the API.
 */
#ifndef COMMON_USER_ERROR_H_
#define COMMON_USER_ERROR_H_

#include <tvm/ffi/error.h>

#include <string>

#include "names.h"

namespace npu {

/*! \brief Runs a function of the API; a failure of this type becomes an error for the user. */
template <typename Failure, typename Body>
auto Translated(const char* about, const Body& body) {
  try {
    return body();
  } catch (const Failure& failure) {
    // TVM_FFI_THROW would name this header by its path at the build.
    throw tvm::ffi::Error("ValueError", std::string(kBackend) + about + failure.what(), "");
  }
}

}  // namespace npu

#endif  // COMMON_USER_ERROR_H_
