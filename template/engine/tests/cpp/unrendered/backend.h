// SPDX-License-Identifier: Apache-2.0
/*!
 * \file backend.h
 * \brief Names for the engine when it is built in the template.
 */
#ifndef BACKEND_H_
#define BACKEND_H_

#define BACKEND_NAME "npu_engine"
#define BACKEND_CLASS_NAME "NpuEngine"
#define BACKEND_PREFIX "NPU_ENGINE_"
#define BACKEND_PACKAGE "npu_engine"

#endif  // BACKEND_H_
