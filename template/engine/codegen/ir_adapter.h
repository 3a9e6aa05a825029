// SPDX-License-Identifier: Apache-2.0
/*!
 * \file ir_adapter.h
 * \brief The only code that knows how this version of TVM represents Relax.
 *
 * The wheel ships no headers of the IR, and its C++ types are not a stable ABI. All nodes are
 * therefore read by type key and field name, through the reflection of tvm-ffi.
 */
#ifndef CODEGEN_IR_ADAPTER_H_
#define CODEGEN_IR_ADAPTER_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/string.h>

#include <string>

#include "graph.h"

namespace npu {

/*!
 * \brief Whether the type keys and fields that this adapter reads exist in the loaded TVM.
 * \return Empty, or a sentence that names what is missing.
 */
std::string CheckIR();

/*!
 * \brief Reads a Relax function: a region with composites inside, or one composite.
 * \param function The relax.expr.Function.
 * \param constant_names TVM's names of constants; others are numbered.
 * \throws Refusal naming what cannot be represented.
 */
Graph ReadFunction(const tvm::ffi::ObjectRef& function,
                   const tvm::ffi::Map<tvm::ffi::ObjectRef, tvm::ffi::String>& constant_names);

}  // namespace npu

#endif  // CODEGEN_IR_ADAPTER_H_
