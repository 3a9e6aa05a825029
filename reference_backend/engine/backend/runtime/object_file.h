// SPDX-License-Identifier: Apache-2.0
/*!
 * \file object_file.h
 * \brief Writes data as an object file, for linking into a library.
 */
#ifndef RUNTIME_OBJECT_FILE_H_
#define RUNTIME_OBJECT_FILE_H_

#include <optional>
#include <string>
#include <string_view>

namespace npu {

/*! \brief The processors for which object files can be written. */
enum class Processor { kX86_64, kAArch64 };

/*!
 * \brief The processor of a target triple, if object files can be written for it.
 * \param triple In LLVM's form, e.g. "aarch64-linux-gnu"; empty for this machine.
 */
std::optional<Processor> FindProcessor(const std::string& triple);

/*!
 * \brief Writes an ELF object file with data, aligned to 64 bytes, and a function that tvm-ffi can
 *        call (TVMFFISafeCallType) and that returns the address of the data.
 * \return Whether that succeeded; if not, errno has the reason.
 */
bool WriteObjectFile(const std::string& path, Processor processor, const std::string& function,
                     std::string_view data);

}  // namespace npu

#endif  // RUNTIME_OBJECT_FILE_H_
