// SPDX-License-Identifier: Apache-2.0
/*!
 * \file ir_adapter.h
 * \brief The only code that knows how the supported versions of TVM represent Relax.
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
#include <vector>

#include "graph.h"

namespace npu {

/*! \brief The types, and fields of types, that this adapter reads and the loaded TVM lacks. */
std::vector<std::string> MissingIR();

/*! \brief The fields of a type of the loaded TVM, by its key; none if it lacks the type. */
std::vector<std::string> FieldNames(const std::string& type_key);

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
