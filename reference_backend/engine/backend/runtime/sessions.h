// SPDX-License-Identifier: Apache-2.0
/*!
 * \file sessions.h
 * \brief What regions ask of sessions.
 */
#ifndef RUNTIME_SESSIONS_H_
#define RUNTIME_SESSIONS_H_

#include <cstddef>

namespace npu {

/*!
 * \brief Whether a region that may update a state in its memory does, since a call in a session has
 *  lent it the only reference to the state's value.
 *
 * \param value The memory of the value before the call.
 * \param argument The region's argument that has it.
 * \param result The region's result that is the value after the call.
 * \param output The memory meant for that, which is then neither written nor read.
 */
bool UpdatesInPlace(const void* value, size_t argument, size_t result, const void* output);

}  // namespace npu

#endif  // RUNTIME_SESSIONS_H_
