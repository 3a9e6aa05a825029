// SPDX-License-Identifier: Apache-2.0
/*!
 * \file library.cc
 * \brief A second driver: a library of ops written by hand, beside an instruction set. It has one,
 *  softmax.
 */
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "driver_kit/build.h"
#include "driver_kit/run.h"

namespace {

using npu::kit::Kind;
using npu::kit::Node;
using npu::kit::Program;
using npu::kit::Value;

constexpr char kName[] = "library";

std::string Reason(const Program& program, const Node& node) {
  if (node.kind != Kind::kSoftmax) return "the library has no " + program.NameOf(node);
  const Value& data = program.At(node.inputs[0]);
  const bool is_last = node.softmax.axis == data.rank - 1;
  if (data.dtype != NPU_FLOAT32 || !is_last || node.softmax.logarithm != 0) {
    return "the library has softmax of float32 along the last axis only";
  }
  return "";
}

void Softmax(const float* data, int64_t columns, float* out) {
  const float most = *std::max_element(data, data + columns);
  float sum = 0;
  for (int64_t i = 0; i < columns; ++i) sum += out[i] = std::exp(data[i] - most);
  for (int64_t i = 0; i < columns; ++i) out[i] /= sum;
}

class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory)
      : program_(program), memory_(memory) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != nullptr) continue;
      blocks_.emplace_back(BytesOf(program.values[i]));
      memory_[i] = blocks_.back().data();
    }
  }

  void Run() {
    for (const Node& node : program_.nodes) {
      const auto* data = static_cast<const float*>(memory_[static_cast<size_t>(node.inputs[0])]);
      auto* out = static_cast<float*>(memory_[static_cast<size_t>(node.out)]);
      const Value& value = program_.At(node.out);
      const int64_t columns = value.dims[value.rank - 1];
      for (int64_t at = 0; at < CountOf(value); at += columns) {
        Softmax(data + at, columns, out + at);
      }
    }
  }

 private:
  const Program& program_;
  std::vector<void*> memory_;
  std::vector<npu::kit::Block> blocks_;
};

constexpr npu::kit::Driver kDriver = {kName, "0.1", Reason};

}  // namespace

const npu_build_api* npu_driver_build(uint32_t) {
  static const npu_build_api api = npu::kit::BuildTable<kDriver>();
  return &api;
}

const npu_run_api* npu_driver_run(uint32_t) {
  static const npu_run_api api =
      npu::kit::RunTable<Graph, npu::kit::NodeByNode<Graph>>(kName, "0.1");
  return &api;
}
