// SPDX-License-Identifier: Apache-2.0
/*!
 * \file build.cc
 * \brief The build half: Arm NN itself says which nodes it has.
 */
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "driver_kit/build.h"
#include "network.h"

namespace {

using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Source;
using npu::kit::Value;

/*! \brief Loads a network of this node alone. Its constants are zeros: only their shapes count. */
std::string Reason(const Program& program, const Node& node) {
  std::vector<uint8_t> zeros;
  for (int32_t id : node.inputs) {
    if (id >= 0) zeros.resize(std::max(zeros.size(), BytesOf(program.At(id))));
  }
  std::string reason;
  npu::kit::Try(&reason, [&] {
    npu_armnn::Network network(program, [&](const Value&) { return zeros.data(); });
    for (int32_t id : std::set<int32_t>(std::begin(node.inputs), std::end(node.inputs))) {
      if (id >= 0 && program.At(id).source != Source::kConstant) network.AddInput(id);
    }
    network.Define(node);
    network.AddOutput(node.out);
    npu_armnn::Loaded loaded(network.network());
  });
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return reason;
}

/*! \brief Loads the whole network: what Arm NN makes of several nodes may be more than it has. */
std::vector<uint8_t> Compile(const Program& program) {
  npu_armnn::Network network(program, [&](const Value& value) { return program.Data(value); });
  const std::vector<bool> is_read = network.DefineAll();
  for (size_t i = 0; i < is_read.size(); ++i) {
    const bool is_last = program.values[i].source == Source::kNode && !is_read[i];
    if (is_last) network.AddOutput(static_cast<int32_t>(i));
  }
  if (!program.nodes.empty()) npu_armnn::Loaded loaded(network.network());
  return npu::kit::Serialize(program);
}

constexpr npu::kit::Driver kDriver = {"armnn",
                                      "20.08",
                                      Reason,
                                      /*options=*/nullptr,
                                      0,
                                      /*channels_last=*/false,
                                      Compile,
                                      /*integers=*/false,
                                      /*quantization=*/false,
                                      /*scales=*/true};

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = npu::kit::BuildTable<kDriver>();
  return &api;
}
