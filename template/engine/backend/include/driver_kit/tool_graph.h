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

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver_kit/program.h"
#include "driver_kit/region_file.h"
#include "driver_kit/run.h"
#include "driver_kit/tool_process.h"

namespace npu::kit {

/*! \brief A program in a process of the tool; one for each request. What was cancelled, or failed,
 *  ends the process; the next call starts another one. */
class ToolGraph {
 public:
  ToolGraph(const ModelTool& tool, const Program& program, const std::vector<void*>& memory)
      : tool_(tool), program_(program), memory_(memory), seconds_(SecondsOf(program)) {
    Load();
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
    Submit();
    Wait(-1);
  }

  void Submit() {
    is_cancelled_ = false;
    taken_ = 0;
    if (worker_ == nullptr) Load();
    late_ = worker_->BeginWaiting(seconds_);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!worker_->Send(inputs_[i], BytesOf(program_.inputs[i]))) Fail(worker_->WhyNot());
    }
  }

  bool Wait(int64_t timeout_us) {
    const bool is_long = timeout_us < 0 || timeout_us / 1000000 >= seconds_;
    const Clock::time_point end =
        is_long ? late_ : Clock::now() + std::chrono::microseconds(timeout_us);
    while (!TakeAnswer()) {
      if (is_cancelled_) Fail("was cancelled, and ended", NPU_CANCELLED);
      if (!worker_->ReceiveMore(end) || worker_->IsEndless()) Fail(worker_->WhyNot());
      if (TakeAnswer()) break;
      const Clock::time_point now = Clock::now();
      if (now >= late_) Fail(worker_->WhyNot());
      if (now >= end) return false;
    }
    return true;
  }

  void Cancel() { is_cancelled_ = true; }

 private:
  [[noreturn]] void Fail(const std::string& what, npu_status status = NPU_DEVICE_ERROR) {
    worker_.reset();
    throw Failure{status, "the SDK's tool " + what};
  }

  void Load() {
    worker_ = Started();
    std::string hello;
    if (!worker_->Receive(&hello, seconds_)) Fail(worker_->WhyNot());
    if (hello != "ready") Fail("cannot load the program: " + OneLine(hello));
  }

  /*! \brief Writes the program for the tool, and starts it. */
  std::unique_ptr<ToolWorker> Started() {
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
    const std::vector<std::string> arguments = {"run", folder_.path().string()};
    return std::make_unique<ToolWorker>(CommandOf(tool_, program_), arguments, "");
  }

  /*! \brief Whether the whole answer was read; then the outputs have it. */
  bool TakeAnswer() {
    if (taken_ == 0) {
      std::string line;
      if (!worker_->Take(&line)) return false;
      if (line != "done") Fail("fails: " + OneLine(line));
      ++taken_;
    }
    for (; taken_ <= program_.outputs.size(); ++taken_) {
      const Value& output = program_.outputs[taken_ - 1];
      if (!worker_->Take(memory_[static_cast<size_t>(output.place)], BytesOf(output))) return false;
    }
    return true;
  }

  const ModelTool tool_;
  const Program& program_;
  const std::vector<void*> memory_;
  ToolFolder folder_{"", "run"};
  const int64_t seconds_;
  std::unique_ptr<ToolWorker> worker_;
  /*! \brief When the answer is late. */
  Clock::time_point late_;
  /*! \brief How much of the answer was taken: the line, and then the outputs. */
  size_t taken_ = 0;
  std::atomic<bool> is_cancelled_{false};
  std::vector<void*> inputs_;
  std::vector<Block> unread_;
};

}  // namespace npu::kit

#endif  // DRIVER_KIT_TOOL_GRAPH_H_
