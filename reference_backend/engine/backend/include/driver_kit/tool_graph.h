// SPDX-License-Identifier: Apache-2.0
/*!
 * \file driver_kit/tool_graph.h
 * \brief The run half of a driver whose SDK runs programs in a process of its own: because its
 * runtime, or its simulator, is in Python, or does not survive.
 *
 * \code
 * class Graph : public npu::kit::ToolGraph {
 *  public:
 *   Graph(const npu::kit::Program& program, const std::vector<void*>& memory)
 *       : ToolGraph(kTool, program, memory) {}
 * };
 * \endcode
 *
 * The protocol: docs/region-file.md of npu-scaffold, `COMMAND run FOLDER`.
 */
#ifndef DRIVER_KIT_TOOL_GRAPH_H_
#define DRIVER_KIT_TOOL_GRAPH_H_

#include <string>
#include <vector>

#include "driver_kit/program.h"
#include "driver_kit/region_file.h"
#include "driver_kit/run.h"
#include "driver_kit/tool_process.h"

namespace npu::kit {

/*! \brief How long the tool may take to load a program, and to run it. */
constexpr int kRunSeconds = 600;

/*! \brief A program in a process of the tool; one for each request. */
class ToolGraph {
 public:
  ToolGraph(const ModelTool& tool, const Program& program, const std::vector<void*>& memory)
      : program_(program), memory_(memory), worker_(Started(tool)) {
    std::string hello;
    if (!worker_.Receive(&hello, kRunSeconds)) Fail(worker_.WhyNot());
    if (hello != "ready") Fail("cannot load the program: " + OneLine(hello));
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      inputs_.push_back(nullptr);
      for (size_t v = 0; v < program.values.size(); ++v) {
        const Value& value = program.values[v];
        const bool is_it = value.source == Source::kInput && value.place == static_cast<int64_t>(i);
        if (is_it) inputs_.back() = memory[v];
      }
      if (inputs_.back() != nullptr) continue;
      // No node reads it.
      unread_.emplace_back(BytesOf(program.inputs[i]));
      inputs_.back() = unread_.back().data();
    }
  }

  void Run() {
    bool is_sent = true;
    for (size_t i = 0; i < inputs_.size() && is_sent; ++i) {
      is_sent = worker_.Send(inputs_[i], BytesOf(program_.inputs[i]));
    }
    std::string answer;
    if (!is_sent || !worker_.Receive(&answer, kRunSeconds)) Fail(worker_.WhyNot());
    if (answer != "done") Fail("fails: " + OneLine(answer));
    for (const Value& output : program_.outputs) {
      void* to = memory_[static_cast<size_t>(output.place)];
      if (!worker_.Receive(to, BytesOf(output), kRunSeconds)) Fail(worker_.WhyNot());
    }
  }

 private:
  [[noreturn]] static void Fail(const std::string& what) {
    throw Failure{NPU_DEVICE_ERROR, "the SDK's tool " + what};
  }

  /*! \brief Writes the program for the tool, and starts it. */
  ToolWorker Started(const ModelTool& tool) {
    const auto ports = [](const std::vector<Value>& values) {
      std::string text;
      for (const Value& value : values) {
        text +=
            (text.empty() ? "" : ", ") + ObjectText({{"dtype", DtypeText(value.dtype)},
                                                     {"shape", ListText(value.dims, value.rank)}});
      }
      return "[" + text + "]";
    };
    const std::string text =
        ObjectText({{"inputs", ports(program_.inputs)}, {"outputs", ports(program_.outputs)}});
    WriteContents(folder_ / "ports.json", text.data(), text.size());
    WriteContents(folder_ / "program.bin", program_.opaque, program_.opaque_bytes);
    return ToolWorker(CommandOf(tool, program_), {"run", folder_.path().string()}, "");
  }

  const Program& program_;
  const std::vector<void*> memory_;
  ToolFolder folder_{""};
  ToolWorker worker_;
  std::vector<void*> inputs_;
  std::vector<Block> unread_;
};

}  // namespace npu::kit

#endif  // DRIVER_KIT_TOOL_GRAPH_H_
