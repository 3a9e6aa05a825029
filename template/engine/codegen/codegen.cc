// SPDX-License-Identifier: Apache-2.0
/*!
 * \file codegen.cc
 * \brief What Python calls to compile a region to an artifact.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "artifact.h"
#include "graph.h"
#include "ir_adapter.h"
#include "lowering.h"
#include "names.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;

using ConstantNames = ffi::Map<ffi::ObjectRef, ffi::String>;
using OptionMap = ffi::Map<ffi::String, ffi::String>;
using BoundMap = ffi::Map<ffi::String, int64_t>;

LoweringOptions ReadOptions(const OptionMap& driver_options, const BoundMap& symbol_bounds) {
  LoweringOptions options;
  for (const auto& [key, value] : driver_options) options.driver.emplace_back(key, value);
  for (const auto& [name, bound] : symbol_bounds) options.symbol_bounds[name] = bound;
  return options;
}

/*! \brief Runs a piece of the API; a refusal becomes an error for the user. */
template <typename Body>
auto Refusable(const Body& body) {
  try {
    return body();
  } catch (const Refusal& refusal) {
    TVM_FFI_THROW(ValueError) << kBackend << " cannot compile " << refusal.what();
  }
  TVM_FFI_UNREACHABLE();
}

/*! \brief The region as data: all that its program depends on, but for options. */
ffi::Map<ffi::String, ffi::Any> DescribeGraph(const ffi::ObjectRef& function,
                                              const ConstantNames& constant_names) {
  return Refusable([&]() -> ffi::Map<ffi::String, ffi::Any> {
    Graph graph = ReadFunction(function, constant_names);
    ffi::Array<ffi::Tensor> constants;
    for (const Node& node : graph.nodes) {
      if (node.value.has_value()) constants.push_back(node.value.value());
    }
    return {
        {"symbol", ffi::String(graph.symbol)},
        {"graph", ffi::String(ToJson(graph))},
        {"constants", constants},
    };
  });
}

ffi::Bytes Compile(const ffi::ObjectRef& function, const ConstantNames& constant_names,
                   const OptionMap& driver_options, const BoundMap& symbol_bounds,
                   const ffi::String& manifest) {
  return Refusable([&] {
    Graph graph = ReadFunction(function, constant_names);
    LoweringOptions options = ReadOptions(driver_options, symbol_bounds);
    LoweredProgram program = LowerGraph(graph, options, LoweringGoal::kProgram);
    std::string graph_json = ToJson(graph);
    std::string_view manifest_json(manifest.data(), manifest.size());
    return ffi::Bytes(WriteArtifact({manifest_json, graph_json, program.bytes}));
  });
}

ffi::String DeclineReason(const ffi::ObjectRef& function, const OptionMap& driver_options,
                          const BoundMap& symbol_bounds, bool finish) {
  try {
    Graph graph = ReadFunction(function, ConstantNames());
    LowerGraph(graph, ReadOptions(driver_options, symbol_bounds),
               finish ? LoweringGoal::kCheck : LoweringGoal::kOps);
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
      .def(BACKEND_NAME ".codegen.graph", DescribeGraph)
      .def(BACKEND_NAME ".codegen.compile", Compile)
      .def(BACKEND_NAME ".codegen.decline_reason", DeclineReason)
      .def(BACKEND_NAME ".codegen.lowered_ops", ListLoweredOps)
      .def(BACKEND_NAME ".codegen.check_ir", CheckIRToString);
}

}  // namespace
}  // namespace npu
