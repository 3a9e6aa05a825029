// SPDX-License-Identifier: Apache-2.0
/*!
 * \file codegen.cc
 * \brief The functions that Python calls to compile a region to an artifact.
 */
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aligned_memory.h"
#include "artifact.h"
#include "graph.h"
#include "ir_adapter.h"
#include "lowering.h"
#include "names.h"
#include "updates.h"
#include "user_error.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;

using ConstantNames = ffi::Map<ffi::ObjectRef, ffi::String>;
using OptionMap = ffi::Map<ffi::String, ffi::String>;
using BoundMap = ffi::Map<ffi::String, int64_t>;
/*! \brief The fields of a Requantization, in their order, the last only if it is 0; none: the
 *  defaults. */
using Rule = ffi::Array<int64_t>;

LoweringOptions ReadOptions(const ffi::String& driver, const OptionMap& driver_options,
                            const BoundMap& symbol_bounds, const Rule& rule) {
  LoweringOptions options;
  options.role = driver;
  for (const auto& [key, value] : driver_options) options.driver.emplace_back(key, value);
  for (const auto& [name, bound] : symbol_bounds) options.symbol_bounds[name] = bound;
  if (!rule.empty()) {
    auto at = [&rule](int64_t field) { return static_cast<int>(rule[field]); };
    options.requantization = {at(0), at(1), at(2), at(3), static_cast<npu_rounding>(at(4))};
    options.requantization.has_reals = rule.size() < 6 || rule[5] != 0;
  }
  return options;
}

constexpr char kAbout[] = " cannot compile ";

/*! \brief A region that was read, for Python to hold. */
class RegionObj : public ffi::Object {
 public:
  explicit RegionObj(Graph graph) : graph(std::move(graph)) {}

  const std::string& Json() const {
    if (json_.empty()) json_ = ToJson(graph);
    return json_;
  }

  const Graph graph;

  // As TVM_FFI_DECLARE_OBJECT_INFO_FINAL, but TVM knows the type by the backend's name.
  static constexpr bool _type_final = true;
  static constexpr int32_t _type_depth = ffi::Object::_type_depth + 1;
  static constexpr const char* _type_key = "Region";
  static int32_t RuntimeTypeIndex() {
    static const std::string name = GlobalName("Region");
    static const TVMFFIByteArray key = {name.data(), name.size()};
    static const int32_t index = TVMFFITypeGetOrAllocIndex(
        &key, -1, _type_depth, 0, 0, ffi::Object::_GetOrAllocRuntimeTypeIndex());
    return index;
  }

 private:
  mutable std::string json_;
};

class Region : public ffi::ObjectRef {
 public:
  explicit Region(Graph graph) : ObjectRef(ffi::make_object<RegionObj>(std::move(graph))) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(Region, ffi::ObjectRef, RegionObj);
};

Region ReadRegion(const ffi::ObjectRef& function, const ConstantNames& constant_names) {
  return Translated<Refusal>(kAbout,
                             [&] { return Region(ReadFunction(function, constant_names)); });
}

/*! \brief The region as data: everything that its program depends on except the options. */
ffi::Map<ffi::String, ffi::Any> DescribeGraph(const Region& region) {
  ffi::Array<ffi::Tensor> constants;
  for (const Node& node : region->graph.nodes) {
    if (node.value.has_value()) constants.push_back(node.value.value());
  }
  const std::vector<ffi::Tensor>& samples = region->graph.samples;
  return {
      {"symbol", ffi::String(region->graph.symbol)},
      {"graph", ffi::String(region->Json())},
      {"constants", constants},
      {"samples", ffi::Array<ffi::Tensor>(samples.begin(), samples.end())},
  };
}

/*! \brief The inputs and outputs of a program, for the runtime; "" if the driver declares no
 *  layouts, and takes no states. */
std::string PortsToJson(const LoweredProgram& program) {
  namespace json = ffi::json;
  const std::optional<Ports>& ports = program.ports;
  if (!ports.has_value() && program.states.empty()) return "";
  const auto list = [](const auto& numbers) {
    json::Array items;
    for (auto number : numbers) items.push_back(static_cast<int64_t>(number));
    return items;
  };
  json::Object root;
  if (!program.states.empty()) {
    json::Array states;
    for (const auto& [input, output] : program.states) {
      states.push_back(list(std::vector<int64_t>{input, output}));
    }
    root.Set(ffi::String("states"), states);
  }
  if (!ports.has_value()) return std::string(json::Stringify(root));
  for (const char* key : {"inputs", "outputs"}) {
    json::Array items;
    for (const Port& port : *key == 'i' ? ports->inputs : ports->outputs) {
      json::Object item;
      item.Set(ffi::String("argument"), port.argument);
      item.Set(ffi::String("order"), list(port.order));
      if (port.dims.has_value()) item.Set(ffi::String("dims"), list(*port.dims));
      items.push_back(item);
    }
    root.Set(ffi::String(key), items);
  }
  return std::string(json::Stringify(root));
}

/*! \brief Memory of a tensor that holds an artifact. */
class ArtifactMemory {
 public:
  void AllocData(DLTensor* tensor) {
    memory_ = std::make_shared<AlignedMemory>(ffi::GetDataSize(*tensor));
    tensor->data = memory_->data();
  }
  void FreeData(DLTensor*) { memory_.reset(); }

 private:
  std::shared_ptr<AlignedMemory> memory_;
};

/*! \brief A tensor of bytes for an artifact; they have no value yet. */
ffi::Tensor NewArtifact(int64_t size) {
  return ffi::Tensor::FromNDAlloc(ArtifactMemory(), {size}, {kDLUInt, 8, 1}, {kDLCPU, 0});
}

/*! \brief The artifact of a region. */
ffi::Tensor Compile(const Region& region, const ffi::String& driver,
                    const OptionMap& driver_options, const BoundMap& symbol_bounds,
                    const Rule& rule, const ffi::String& manifest) {
  return Translated<Refusal>(kAbout, [&] {
    LoweringOptions options = ReadOptions(driver, driver_options, symbol_bounds, rule);
    LoweredProgram program = LowerGraph(region->graph, options, LoweringGoal::kProgram);
    std::string ports_json = PortsToJson(program);
    std::string_view manifest_json(manifest.data(), manifest.size());
    const Artifact artifact = {manifest_json, region->Json(), {program.bytes}, ports_json};
    ffi::Tensor bytes = NewArtifact(static_cast<int64_t>(SizeOf(artifact)));
    WriteArtifact(artifact, static_cast<char*>(bytes.data_ptr()));
    return bytes;
  });
}

/*! \brief A bundle of artifacts in tensors, which stores equal parts of their programs once; none
 * if hardly any are equal. */
ffi::Optional<ffi::Tensor> MakeBundle(const ffi::Array<ffi::Tensor>& tensors) {
  std::vector<Artifact> artifacts;
  for (const ffi::Tensor& tensor : tensors) {
    auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
    artifacts.push_back(ReadArtifacts(bytes, static_cast<size_t>(tensor.numel())).at(0));
  }
  const Bundle bundle(artifacts);
  constexpr size_t kLeastShare = 16;
  if (bundle.shared_size() * kLeastShare < bundle.program_size()) return std::nullopt;
  ffi::Tensor bytes = NewArtifact(static_cast<int64_t>(bundle.size()));
  bundle.Write(static_cast<char*>(bytes.data_ptr()));
  return bytes;
}

/*! \brief Why a driver declines a region, or a function, or "", behind which is a line for each of
 *  its warnings. */
ffi::String DeclineReason(const ffi::ObjectRef& given, const ffi::String& driver,
                          const OptionMap& driver_options, const BoundMap& symbol_bounds,
                          bool finish, const Rule& rule) {
  try {
    const std::optional<Region> known = given.as<Region>();
    const Region region = known.has_value() ? *known : Region(ReadFunction(given, {}));
    const LoweredProgram program =
        LowerGraph(region->graph, ReadOptions(driver, driver_options, symbol_bounds, rule),
                   finish ? LoweringGoal::kCheck : LoweringGoal::kOps);
    return program.warnings.empty() ? "" : '\n' + program.warnings;
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
}

/*! \brief The axis along which all of a composite replaces slices; -1 if it does something else. */
int64_t UpdateAxis(const ffi::ObjectRef& composite) {
  return Translated<Refusal>(kAbout, [&] { return AxisOfUpdate(ReadFunction(composite, {})); });
}

/*! \brief What decides about a driver's programs besides its library and these options. */
ffi::String Identity(const ffi::String& driver, const OptionMap& driver_options) {
  return Translated<Refusal>(" cannot use the compile cache: ", [&] {
    return IdentityOf(ReadOptions(driver, driver_options, {}, {}));
  });
}

/*! \brief Why a driver refuses options, or "". */
ffi::String CheckOptions(const ffi::String& driver, const OptionMap& driver_options) {
  try {
    CheckDriverOptions(ReadOptions(driver, driver_options, {}, {}));
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

/*! \brief The drivers that compile here and their self-descriptions, the vendor's first. */
ffi::Array<ffi::Map<ffi::String, ffi::Any>> Drivers() {
  auto text = [](const char* given) { return ffi::String(given == nullptr ? "" : given); };
  constexpr const char* kTypes[] = {"bool", "int", "text", "choice"};
  ffi::Array<ffi::Map<ffi::String, ffi::Any>> drivers;
  for (const auto& driver : BuildDrivers()) {
    ffi::Array<ffi::Map<ffi::String, ffi::Any>> options;
    for (size_t i = 0; i < driver.api.option_count; ++i) {
      const npu_option_info& option = driver.api.options[i];
      auto type = static_cast<uint32_t>(option.type);
      if (type > NPU_OPTION_CHOICE) {
        throw DriverError("the option '" + std::string(option.key) + "' of the driver " +
                          driver.api.name + " has an unknown type");
      }
      ffi::Array<ffi::String> choices;
      for (size_t k = 0; k < option.choice_count; ++k) choices.push_back(option.choices[k]);
      options.push_back({{"key", text(option.key)},
                         {"type", ffi::String(kTypes[type])},
                         {"default", text(option.default_value)},
                         {"least", option.least},
                         {"most", option.most},
                         {"choices", choices},
                         {"about", text(option.about)}});
    }
    drivers.push_back({{"role", ffi::String(driver.role)},
                       {"name", text(driver.api.name)},
                       {"release", text(driver.api.release)},
                       {"api_version", static_cast<int64_t>(driver.api.version)},
                       {"takes_samples", driver.api.set_samples != nullptr},
                       {"options", options}});
  }
  return drivers;
}

ffi::Array<ffi::String> ToArray(const std::vector<std::string>& names) {
  ffi::Array<ffi::String> array;
  for (const std::string& name : names) array.push_back(name);
  return array;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def(GlobalName("codegen.read").c_str(), ReadRegion)
      .def(GlobalName("codegen.graph").c_str(), DescribeGraph)
      .def(GlobalName("codegen.compile").c_str(), Compile)
      .def(GlobalName("codegen.new_artifact").c_str(), NewArtifact)
      .def(GlobalName("codegen.bundle").c_str(), MakeBundle)
      .def(GlobalName("codegen.decline_reason").c_str(), DeclineReason)
      .def(GlobalName("codegen.update_axis").c_str(), UpdateAxis)
      .def(GlobalName("codegen.lowered_ops").c_str(), [] { return ToArray(LoweredOps()); })
      .def(GlobalName("codegen.drivers").c_str(), Drivers)
      .def(GlobalName("codegen.check_options").c_str(), CheckOptions)
      .def(GlobalName("codegen.identity").c_str(), Identity)
      .def(GlobalName("codegen.missing_ir").c_str(), [] { return ToArray(MissingIR()); })
      .def(GlobalName("codegen.field_names").c_str(),
           [](const std::string& type_key) { return ToArray(FieldNames(type_key)); });
}

}  // namespace
}  // namespace npu
