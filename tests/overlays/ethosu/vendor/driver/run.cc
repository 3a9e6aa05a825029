// SPDX-License-Identifier: Apache-2.0
/*!
 * \file run.cc
 * \brief The run half: computes with TOSA's reference model, since there is no Ethos-U here.
 *
 * A program has the command stream of Vela, which a driver of the chip would run, what Vela expects
 * of it, and the TOSA file that it was compiled from, which is what runs here.
 */
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "driver_kit/run.h"
#include "model_runner.h"

namespace {

using npu::kit::BytesOf;
using npu::kit::Program;
using npu::kit::Source;
using npu::kit::Value;

/*! \brief How a program begins, as vendor/sdk/compile.py packs it. */
struct Header {
  char magic[8];
  uint64_t tosa_bytes, stream_bytes;
  /*! \brief What Vela expects: the cycles, their number in a second, and the bytes that are read
   * and written. */
  uint64_t cycles, frequency, bytes_read, bytes_written;
};

class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory) {
    if (program.opaque_bytes < sizeof(header_)) Corrupt();
    std::memcpy(&header_, program.opaque, sizeof(header_));
    const size_t rest = program.opaque_bytes - sizeof(header_);
    if (std::memcmp(header_.magic, "ethos-u1", 8) != 0 || header_.tosa_bytes > rest ||
        header_.stream_bytes != rest - header_.tosa_bytes || header_.frequency == 0) {
      Corrupt();
    }
    if (file_.LoadFileTosaFlatbuffer(program.opaque + sizeof(header_), header_.tosa_bytes) !=
            tosa::TOSA_OK ||
        file_.GetMainRegion() == nullptr || file_.GetMainRegion()->GetBlocks().size() != 1) {
      Corrupt();
    }
    const auto& block = file_.GetMainRegion()->GetBlocks()[0];
    if (block->GetInputs().size() != program.inputs.size() ||
        block->GetOutputs().size() != program.outputs.size()) {
      Corrupt();
    }
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      inputs_.push_back({block->GetInputs()[i], nullptr, BytesOf(program.inputs[i])});
      for (size_t v = 0; v < program.values.size(); ++v) {
        const Value& value = program.values[v];
        if (value.source == Source::kInput && static_cast<size_t>(value.place) == i) {
          inputs_.back().data = memory[v];
        }
      }
      if (inputs_.back().data == nullptr) {
        unread_.emplace_back(inputs_.back().bytes);
        inputs_.back().data = unread_.back().data();
      }
    }
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const Value& output = program.outputs[i];
      outputs_.push_back(
          {block->GetOutputs()[i], memory[static_cast<size_t>(output.place)], BytesOf(output)});
    }
  }

  void Run() {
    // A runner runs once.
    TosaReference::IModelRunner runner;
    if (runner.initialize(file_) != GraphStatus::TOSA_VALID) Corrupt();
    for (const Port& input : inputs_) {
      if (runner.setInput(input.name, static_cast<uint8_t*>(input.data), input.bytes) != 0) {
        npu::kit::Refuse("TOSA's reference model does not take " + input.name);
      }
    }
    if (runner.run() != GraphStatus::TOSA_VALID) {
      npu::kit::Refuse("TOSA does not define these results");
    }
    for (const Port& output : outputs_) {
      if (runner.getOutput(output.name, static_cast<uint8_t*>(output.data), output.bytes) != 0) {
        npu::kit::Refuse("TOSA's reference model does not give " + output.name);
      }
    }
  }

  /*! \brief Not measured: what Vela expects of the chip, for the program as one. */
  std::vector<npu::kit::NodeTime> RunTimed() {
    Run();
    npu::kit::NodeTime time;
    time.end = static_cast<int64_t>(static_cast<double>(header_.cycles) * 1e9 /
                                    static_cast<double>(header_.frequency));
    time.bytes_read = header_.bytes_read;
    time.bytes_written = header_.bytes_written;
    time.engine = "Vela's estimate";
    return {time};
  }

 private:
  struct Port {
    std::string name;
    void* data;
    size_t bytes;
  };

  [[noreturn]] static void Corrupt() { npu::kit::Refuse("the SDK's program is corrupt"); }

  Header header_ = {};
  tosa::TosaSerializationHandler file_;
  std::vector<npu::kit::Block> unread_;
  std::vector<Port> inputs_, outputs_;
};

}  // namespace

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api = npu::kit::RunTable<Graph>("ethosu_npu", "0.1");
  return &api;
}
