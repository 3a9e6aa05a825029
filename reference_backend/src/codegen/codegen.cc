// Template-owned: 'copier update' brings changes and merges your edits.
// SPDX-License-Identifier: Apache-2.0
/*!
 * \file codegen.cc
 * \brief relax.ext.example_npu: each region becomes a module.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <string>

#include "graph.h"
#include "ir_adapter.h"
#include "lowering.h"

namespace tvm_example_npu {
namespace {

namespace ffi = tvm::ffi;

constexpr const char* kBackend = "example_npu";

using OptionMap = ffi::Map<ffi::String, ffi::Any>;
using ConstantNames = ffi::Map<ffi::ObjectRef, ffi::String>;

/*! \brief Options as the driver takes them: pairs of strings. */
DriverOptions ReadOptions(const OptionMap& options) {
  DriverOptions result;
  for (const auto& [key, value] : options) {
    std::string text;
    if (auto string = value.try_cast<ffi::String>()) {
      text = *string;
    } else if (value.type_index() == ffi::TypeIndex::kTVMFFIBool) {
      text = value.cast<bool>() ? "1" : "0";
    } else if (auto integer = value.try_cast<int64_t>()) {
      text = std::to_string(*integer);
    } else if (auto number = value.try_cast<double>()) {
      text = std::to_string(*number);
    } else {
      throw Refusal("the option '" + std::string(key) + "' must be a number, a bool or a string");
    }
    result.emplace_back(std::string(key), text);
  }
  return result;
}

ffi::Module CompileRegion(const ffi::ObjectRef& function, const DriverOptions& options,
                          const ConstantNames& constant_names) {
  Graph graph = ReadFunction(function, constant_names);
  std::string program = LowerGraph(graph, options, /*finish=*/true);
  // The runtime is a library of its own, found by name: a board has it without this one.
  auto create = ffi::Function::GetGlobal("runtime.ExampleNPUJSONRuntimeCreate");
  if (!create.has_value()) throw Refusal("the runtime library is not loaded");
  // The program holds the constants, so that TVM need not keep them for this module.
  return (*create)(ffi::String(graph.symbol), ffi::String(ToJson(graph)), ffi::Array<ffi::String>(),
                   ffi::Bytes(program))
      .cast<ffi::Module>();
}

ffi::Array<ffi::Module> Compile(const ffi::Array<ffi::ObjectRef>& functions,
                                const OptionMap& options, const ConstantNames& constant_names) {
  ffi::Array<ffi::Module> modules;
  try {
    DriverOptions driver_options = ReadOptions(options);
    for (const ffi::ObjectRef& function : functions) {
      modules.push_back(CompileRegion(function, driver_options, constant_names));
    }
  } catch (const Refusal& refusal) {
    TVM_FFI_THROW(ValueError) << kBackend << " cannot compile " << refusal.what();
  }
  return modules;
}

ffi::String DeclineReason(const ffi::ObjectRef& function, const OptionMap& options, bool finish) {
  try {
    LowerGraph(ReadFunction(function, ConstantNames()), ReadOptions(options), finish);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

ffi::Array<ffi::String> ListLoweredOps() {
  ffi::Array<ffi::String> ops;
  for (const std::string& op : LoweredOps()) ops.push_back(op);
  return ops;
}

ffi::String CheckIRToString() { return CheckIR(); }

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("relax.ext.example_npu", Compile)
      .def("example_npu.codegen.decline_reason", DeclineReason)
      .def("example_npu.codegen.lowered_ops", ListLoweredOps)
      .def("example_npu.codegen.check_ir", CheckIRToString);
}

}  // namespace
}  // namespace tvm_example_npu
