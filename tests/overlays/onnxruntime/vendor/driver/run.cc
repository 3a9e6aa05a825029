// SPDX-License-Identifier: Apache-2.0
// The run half: the SDK's runtime is in Python, in a process of vendor/sdk/compile.py.
#include "driver_kit/tool_graph.h"

namespace {

constexpr npu::kit::ModelTool kTool = {"acme_npu", "sdk/compile.py", __FILE__};

class Graph : public npu::kit::ToolGraph {
 public:
  Graph(const npu::kit::Program& program, const std::vector<void*>& memory)
      : ToolGraph(kTool, program, memory) {}
};

}  // namespace

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api = npu::kit::RunTable<Graph>("acme_npu", "0.1");
  return &api;
}
