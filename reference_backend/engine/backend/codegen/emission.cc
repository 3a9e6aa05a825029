// SPDX-License-Identifier: Apache-2.0
#include "emission.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "updates.h"

namespace npu {

namespace {

npu_builder* NewBuilder(const npu_build_api& api, const LoweringOptions& options,
                        LoweredProgram* program) {
  std::vector<npu_option> pairs;
  for (const auto& [key, value] : options.driver) pairs.push_back({key.c_str(), value.c_str()});
  npu_builder* builder = nullptr;
  npu_status status = api.create(pairs.data(), pairs.size(), &builder);
  program->builder = {builder, {&api}};
  DriverBuilder{api, builder}.Check(status, "the driver's options");
  return builder;
}

}  // namespace

Emission::Emission(const Graph& graph, const LoweringOptions& options,
                   const DeclinedCalls& composed)
    : graph_(graph),
      options_(options),
      composed_(composed),
      driver_{BuildDriver(options.role), NewBuilder(BuildDriver(options.role), options, &result_)},
      sink_(MakeSink(driver_, &result_.constants)) {}

void Emission::AddSymbolsAndInputs() {
  for (const std::string& name : graph_.symbols) {
    auto bound = options_.symbol_bounds.find(name);
    if (bound == options_.symbol_bounds.end()) {
      throw Refusal("the size " + name + ": its largest value, for which memory is planned, is " +
                    "not given; set it in the option symbol_bounds");
    }
    int32_t symbol = 0;
    const std::string who = "the size " + name;
    driver_.Require(driver_.api.add_symbol != nullptr, "add_symbol", who);
    driver_.Check(driver_.api.add_symbol(driver_.handle, name.c_str(), bound->second, &symbol),
                  who);
  }
  for (size_t i = 0; i < graph_.arguments.size(); ++i) {
    const size_t argument = graph_.arguments[i];
    const Node& node = graph_.nodes[argument];
    if (node.outputs.empty()) continue;  // A shape, which drivers read off the tensors.
    const std::string who = "the argument " + node.name;
    const npu_tensor_desc desc = MakeDesc(node.outputs[0], who);
    RequireType(desc, who);
    const npu_tensor id = sink_->AddInput(desc, static_cast<int64_t>(i), who);
    SetScales(id, node.outputs[0].scales);
    if (i < graph_.samples.size()) {
      const tvm::ffi::Tensor& given = graph_.samples[i];
      const int64_t count = given.size(0);
      const size_t bytes = tvm::ffi::GetDataSize(given);
      sink_->SetSamples(id, {given.data_ptr(), count, bytes / static_cast<size_t>(count)});
    }
    Set(EntryRef{argument, 0}, Keep(id, desc));
  }
}

void Emission::AddWeights(const Unit& unit, const std::string& who) {
  const DequantizedMatrix matrix = npu::WeightsOf(graph_, unit, who);
  const EntryRef& stored = unit.inputs.at(1);
  npu_tensor_desc desc = MakeDesc(graph_.Info(stored), who);
  if (driver_.api.integer_weights == 0 || !unit.lowering->takes_integer_weights) {
    if (desc.dtype != NPU_FLOAT32) {
      throw Refusal(who + ": the driver " + driver_.api.name +
                    " does not multiply float16 by integers");
    }
    const std::vector<float> numbers = RealNumbers(matrix);
    Set(stored, NewConstant(desc, numbers.data(), numbers.size() * sizeof(float), who));
    return;
  }
  // Read again when the matmul is lowered.
  if (!ReadWeights(matrix, &weights_[unit.anchor])) {
    throw Refusal(who + ": the scales of its weights change neither by column, nor after equal " +
                  "parts of the summed dimension, of 4 elements or more");
  }
  desc.dtype = matrix.dtype;
  Set(stored, AddConstant(desc, matrix.bytes, who));
}

LoweredProgram Emission::Finish(LoweringGoal goal) {
  for (const EntryRef& head : graph_.heads) sink_->MarkOutput(Get(head).id);
  AddStates();
  result_.ports = sink_->Finish();
  if (goal == LoweringGoal::kOps) {
    if (driver_.api.check_composite != nullptr && !graph_.heads.empty()) {
      driver_.Check(driver_.api.check_composite(driver_.handle),
                    DescribeNode(graph_.nodes[graph_.heads.front().node]));
    }
  } else {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    bool compile = goal == LoweringGoal::kProgram;
    driver_.Check(
        driver_.api.finish(driver_.handle, compile ? &bytes : nullptr, compile ? &size : nullptr),
        "the region " + graph_.symbol);
    result_.bytes = {reinterpret_cast<const char*>(bytes), size};
    const char* warnings =
        driver_.api.warnings == nullptr ? nullptr : driver_.api.warnings(driver_.handle);
    if (warnings != nullptr) result_.warnings = warnings;
  }
  return std::move(result_);
}

void Emission::AddStates() {
  for (size_t i = 0; i < graph_.heads.size(); ++i) {
    const EntryRef& head = graph_.heads[i];
    const Node& node = graph_.nodes[head.node];
    if (!IsUpdate(node)) continue;
    const EntryRef& data = node.inputs[0];
    const auto argument = std::find(graph_.arguments.begin(), graph_.arguments.end(), data.node);
    const bool is_again = std::count(graph_.heads.begin(), graph_.heads.end(), head) > 1;
    if (argument == graph_.arguments.end() || graph_.Uses(data) != 1 || is_again) continue;
    if (sink_->AddState(Get(data).id, Get(head).id)) {
      result_.states.emplace_back(argument - graph_.arguments.begin(), static_cast<int64_t>(i));
    }
  }
}

Tensor Emission::Get(const EntryRef& entry) {
  auto it = tensors_.find({entry.node, entry.index});
  if (it != tensors_.end()) return it->second;
  const Node& node = graph_.nodes[entry.node];
  if (node.kind != Node::Kind::kConstant) {
    throw Refusal(DescribeNode(node) + ": its value is used before it is computed");
  }
  const std::string who = "the constant " + node.name;
  const Tensor tensor = AddConstant(MakeDesc(node.outputs[0], who), BytesOf(node), who);
  SetScales(tensor.id, node.outputs[0].scales);
  Set(entry, tensor);
  return tensor;
}

Tensor Emission::NewTensor(const npu_tensor_desc& desc, const std::string& who) {
  RequireType(desc, who);
  return Keep(sink_->AddTensor(desc), desc);
}

Tensor Emission::NewResult(const TensorInfo& info, const std::string& who) {
  const Tensor tensor = NewTensor(MakeDesc(info, who), who);
  SetScales(tensor.id, info.scales);
  return tensor;
}

Tensor Emission::NewConstant(const npu_tensor_desc& desc, const void* data, size_t bytes,
                             const std::string& who) {
  // Words, so that every element type is aligned.
  std::vector<uint64_t>& kept = result_.constants.emplace_back((bytes + 7) / 8);
  std::memcpy(kept.data(), data, bytes);
  return AddConstant(desc, {reinterpret_cast<const char*>(kept.data()), bytes}, who);
}

Tensor Emission::NewView(const Tensor& tensor, const npu_tensor_desc& desc,
                         const std::string& who) {
  driver_.Require(driver_.api.add_view != nullptr, "add_view", who);
  const auto scales = scales_.find(tensor.id);
  if (scales == scales_.end()) return Keep(sink_->AddView(tensor.id, desc), desc);
  const std::optional<Scales> seen =
      ScalesOfView(scales->second, tensor.dims(), {desc.dims, desc.dims + desc.rank});
  if (!seen.has_value()) {
    throw Refusal(who + ": a dimension with a scale for each index is split or joined");
  }
  const npu_tensor view = sink_->AddView(tensor.id, desc);
  SetScales(view, seen);
  return Keep(view, desc);
}

void Emission::SetScales(npu_tensor id, const std::optional<Scales>& scales) {
  if (scales.has_value() && scales_.emplace(id, *scales).second) sink_->SetScales(id, *scales);
}

const Scales* Emission::Moved(npu_tensor data, npu_tensor out) const {
  const auto found = scales_.find(data);
  return found == scales_.end() || scales_.count(out) != 0 ||
                 DescOf(data).dtype != DescOf(out).dtype
             ? nullptr
             : &found->second;
}

void Emission::KeepScales(const npu_copy& op) {
  const Scales* scales = Moved(op.data, op.out);
  if (scales == nullptr) return;
  SetScales(op.out, Permuted(*scales, op.permutation, static_cast<size_t>(DescOf(op.out).rank)));
}

void Emission::KeepScales(const npu_gather& op) {
  const Scales* scales = Moved(op.data, op.out);
  if (scales != nullptr && scales->is_one()) SetScales(op.out, *scales);
}

const IntegerWeights* Emission::WeightsOf(size_t matmul) const {
  auto it = weights_.find(matmul);
  return it == weights_.end() ? nullptr : &it->second;
}

npu_tensor_desc Emission::DescOf(npu_tensor tensor) const {
  auto it = descs_.find(tensor);
  return it == descs_.end() ? npu_tensor_desc{} : it->second;
}

Tensor Emission::Keep(npu_tensor id, const npu_tensor_desc& desc) {
  descs_[id] = desc;
  return {id, desc};
}

Tensor Emission::AddConstant(const npu_tensor_desc& desc, std::string_view data,
                             const std::string& who) {
  driver_.Require(driver_.api.add_constant != nullptr, "add_constant", who);
  RequireType(desc, who);
  return Keep(sink_->AddConstant(desc, data.data(), data.size(), who), desc);
}

void Emission::RequireType(const npu_tensor_desc& desc, const std::string& who) const {
  if (desc.dtype != NPU_INT16 || driver_.api.version >= 3) return;
  throw Refusal(who + ": the driver " + driver_.api.name +
                " is older than int16, which came with version 3 of the driver interface");
}

}  // namespace npu
