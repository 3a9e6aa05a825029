// SPDX-License-Identifier: Apache-2.0
/*!
 * \file names.h
 * \brief The names of this backend. They are values, so that the engine compiles to the same
 * objects for all backends.
 */
#ifndef COMMON_NAMES_H_
#define COMMON_NAMES_H_

#include <string>

namespace npu {

extern const char* const kBackend;
/*! \brief The name in runtime.<ClassName>JSONRuntimeCreate. */
extern const char* const kClassName;
/*! \brief The Python package, after which the libraries are named. */
extern const char* const kPackage;
/*! \brief The kind of a module that holds the artifact of a region. */
extern const char* const kArtifactKind;
/*! \brief The prefix of functions that return an artifact. */
extern const char* const kArtifactFunction;
/*! \brief The environment variable that names the device. */
extern const char* const kDeviceVariable;
/*! \brief The environment variable that names a folder to search first for drivers. */
extern const char* const kDriverFolderVariable;
/*! \brief "vendor" or "emulator": the driver to ask first. */
extern const char* const kDefaultDriver;

/*! \brief The name of a global function of this backend. */
inline std::string GlobalName(const char* function) {
  return std::string(kBackend) + "." + function;
}

}  // namespace npu

#endif  // COMMON_NAMES_H_
