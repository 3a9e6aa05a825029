// SPDX-License-Identifier: Apache-2.0
/*!
 * \file backend.h
 * \brief The names of this backend, for the engine; valid C and C++.
 */
#ifndef BACKEND_H_
#define BACKEND_H_

/*! \brief The name under which TVM knows this backend. */
#define BACKEND_NAME "example_npu"
/*! \brief The name in runtime.<ClassName>JSONRuntimeCreate. */
#define BACKEND_CLASS_NAME "ExampleNPU"
/*! \brief The prefix of this backend's environment variables. */
#define BACKEND_PREFIX "EXAMPLE_NPU_"
/*! \brief The Python package, which also names the libraries. */
#define BACKEND_PACKAGE "tvm_example_npu"

#endif  // BACKEND_H_
