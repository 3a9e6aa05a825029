// SPDX-License-Identifier: Apache-2.0
/*!
 * \file run.cc
 * \brief The run half: loads Arm NN's network of a program's nodes, and runs it.
 */
#include <memory>
#include <vector>

#include "driver_kit/run.h"
#include "network.h"

namespace {

using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Source;
using npu::kit::Value;

class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory) {
    npu_armnn::Network network(program, [&](const Value& value) { return program.Data(value); });
    const std::vector<bool> is_read = network.DefineAll();
    for (size_t i = 0; i < program.values.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const Source source = program.values[i].source;
      if (source == Source::kInput && is_read[i]) {
        inputs_.emplace_back(id, armnn::ConstTensor(network.InfoOf(id), memory[i]));
      } else if (source == Source::kNode && memory[i] != nullptr) {
        network.AddOutput(id);
        outputs_.emplace_back(id, armnn::Tensor(network.InfoOf(id), memory[i]));
      }
    }
    if (!program.nodes.empty()) loaded_ = std::make_unique<npu_armnn::Loaded>(network.network());
  }

  void Run() {
    if (loaded_ != nullptr) loaded_->Run(inputs_, outputs_);
  }

 private:
  armnn::InputTensors inputs_;
  armnn::OutputTensors outputs_;
  std::unique_ptr<npu_armnn::Loaded> loaded_;
};

}  // namespace

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api =
      npu::kit::RunTable<Graph, npu::kit::NodeByNode<Graph>>("armnn", "20.08");
  return &api;
}
