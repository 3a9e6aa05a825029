// SPDX-License-Identifier: Apache-2.0
/*!
 * \file scales_test.cc
 * \brief Graphs whose quantized tensors get scales.
 */
#include "codegen/scales.h"

#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "codegen/call_view.h"
#include "codegen/graph.h"

namespace npu {
namespace {

namespace ffi = tvm::ffi;
using Kind = Node::Kind;

/*! \brief Memory of a constant. */
class Words {
 public:
  explicit Words(const void* data, size_t bytes)
      : words_(std::make_shared<std::vector<uint64_t>>((bytes + 7) / 8)) {
    std::memcpy(words_->data(), data, bytes);
  }
  void AllocData(DLTensor* tensor) { tensor->data = words_->data(); }
  void FreeData(DLTensor*) {}

 private:
  std::shared_ptr<std::vector<uint64_t>> words_;
};

/*! \brief Builds a graph. */
class Maker {
 public:
  Graph graph;

  EntryRef Input(const std::string& dtype, const std::vector<int64_t>& shape) {
    graph.arguments.push_back(graph.nodes.size());
    return Add(Kind::kInput, dtype, shape);
  }

  template <typename T>
  EntryRef Constant(const std::string& dtype, const std::vector<int64_t>& shape,
                    const std::vector<T>& values, uint8_t code = kDLInt) {
    const EntryRef entry = Add(Kind::kConstant, dtype, shape);
    graph.nodes.back().value = ffi::Tensor::FromNDAlloc(
        Words(values.data(), values.size() * sizeof(T)), ffi::Shape(shape.begin(), shape.end()),
        {code, static_cast<uint8_t>(8 * sizeof(T)), 1}, {kDLCPU, 0});
    return entry;
  }

  EntryRef Call(const std::string& op, const std::vector<EntryRef>& inputs,
                const std::string& dtype, const std::vector<int64_t>& shape, int composite,
                int64_t axis = 0) {
    const EntryRef entry = Add(Kind::kCall, dtype, shape);
    Node& node = graph.nodes.back();
    node.op = "relax." + op;
    node.inputs = inputs;
    node.composite = composite;
    node.attributes.Set(ffi::String("axis"), axis);
    return entry;
  }

  /*! \brief A quantize or dequantize with these parameters. */
  EntryRef Convert(const std::string& op, const EntryRef& data, const std::string& dtype,
                   const std::vector<int64_t>& shape, const std::vector<float>& scales,
                   const std::vector<int8_t>& zeros, int composite, int64_t axis = 0) {
    const auto count = static_cast<int64_t>(scales.size());
    const std::vector<int64_t> dims = count == 1 ? std::vector<int64_t>{} : std::vector{count};
    const EntryRef scale = Constant("float32", dims, scales, kDLFloat);
    const EntryRef zero = Constant("int8", dims, zeros);
    return Call(op, {data, scale, zero}, dtype, shape, composite, axis);
  }

  /*! \brief The graph with scales. */
  Graph Finish(const EntryRef& head) {
    graph.heads = {head};
    for (Node& node : graph.nodes) node.uses.assign(node.outputs.size(), 0);
    for (const Node& node : graph.nodes) {
      for (const EntryRef& input : node.inputs) ++graph.nodes[input.node].uses[input.index];
    }
    ++graph.nodes[head.node].uses[head.index];
    return WithScales(graph);
  }

 private:
  EntryRef Add(Kind kind, const std::string& dtype, const std::vector<int64_t>& shape) {
    Node node;
    node.kind = kind;
    node.name = "v" + std::to_string(graph.nodes.size());
    TensorInfo info;
    info.dtype = dtype;
    for (int64_t size : shape) info.shape.push_back(Dim{size, -1});
    node.outputs = {info};
    graph.nodes.push_back(node);
    return {graph.nodes.size() - 1, 0};
  }
};

std::string TextOf(const TensorInfo& info) {
  std::ostringstream text;
  text << info.dtype;
  if (!info.scales.has_value()) return text.str();
  text << '(';
  for (size_t i = 0; i < info.scales->scales.size(); ++i) {
    text << (i == 0 ? "" : ", ") << info.scales->scales[i] << ' ' << info.scales->zero_points[i];
  }
  if (!info.scales->is_one()) text << " along " << info.scales->axis;
  text << ')';
  return text.str();
}

/*! \brief The calls, one a line. */
std::string TextOf(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes) {
    if (node.kind != Kind::kCall) continue;
    text += node.op.substr(6);
    for (const EntryRef& input : node.inputs) text += ' ' + TextOf(graph.Info(input));
    text += " -> " + TextOf(node.outputs[0]) + '\n';
  }
  return text;
}

std::string RefusalOf(Maker* maker, const EntryRef& head) {
  try {
    maker->Finish(head);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

const std::vector<int64_t> kImage = {1, 2, 4, 4}, kFilter = {3, 2, 1, 1}, kResult = {1, 3, 4, 4};

/*! \brief A convolution in composite 0, before its quantize. */
EntryRef Convolve(Maker* maker, const EntryRef& data) {
  const EntryRef real = maker->Convert("dequantize", data, "float32", kImage, {0.5f}, {3}, 0);
  const EntryRef filter = maker->Constant("int8", kFilter, std::vector<int8_t>(6, 1));
  const EntryRef weight =
      maker->Convert("dequantize", filter, "float32", kFilter, {1, 2, 4}, {0, 0, 0}, 0);
  return maker->Call("nn.conv2d", {real, weight}, "float32", kResult, 0);
}

TEST(AProductOfIntegersIsThatOfRealNumbers) {
  Maker maker;
  const EntryRef sum = Convolve(&maker, maker.Input("int8", kImage));
  const EntryRef bias =
      maker.Constant("float32", {3, 1, 1}, std::vector<float>{1.5f, 10, -20}, kDLFloat);
  const EntryRef added = maker.Call("add", {sum, bias}, "float32", kResult, 0);
  const EntryRef limited = maker.Call("nn.relu", {added}, "float32", kResult, 0);
  const EntryRef stored = maker.Convert("quantize", limited, "int8", kResult, {0.25f}, {-7}, 0);
  const Graph graph = maker.Finish(stored);
  CHECK_EQ(TextOf(graph),
           "nn.conv2d int8(0.5 3) int8(1 0, 2 0, 4 0 along 0) -> float32\n"
           "add float32 int32(0.5 0, 1 0, 2 0 along 0) -> float32\n"
           "nn.relu float32 -> int8(0.25 -7)\n");
  // In steps of data times weight.
  const Node& relu = graph.nodes[graph.heads[0].node];
  const Node& add = graph.nodes[relu.inputs[0].node];
  CHECK(Numbers(graph.nodes[add.inputs[1].node]) == (std::vector<double>{3, 10, -10}));
  CHECK(graph.Uses(graph.heads[0]) == 1 && graph.Uses(relu.inputs[0]) == 1);
  CHECK_EQ(relu.op, "relax.nn.relu");
}

TEST(AResidualKeepsItsOwnScale) {
  Maker maker;
  const EntryRef sum = Convolve(&maker, maker.Input("int8", kImage));
  const EntryRef other =
      maker.Convert("dequantize", maker.Input("int8", kResult), "float32", kResult, {2}, {1}, 0);
  const EntryRef added = maker.Call("add", {other, sum}, "float32", kResult, 0);
  const EntryRef stored = maker.Convert("quantize", added, "int8", kResult, {0.25f}, {0}, 0);
  CHECK_EQ(TextOf(maker.Finish(stored)),
           "nn.conv2d int8(0.5 3) int8(1 0, 2 0, 4 0 along 0) -> float32\n"
           "add int8(2 1) float32 -> int8(0.25 0)\n");
}

TEST(WhatIsOnlyMovedHasTheScalesAroundIt) {
  Maker maker;
  const EntryRef data = maker.Input("int8", {1, 2, 4, 4});
  const EntryRef pooled = maker.Call("nn.max_pool2d", {data}, "int8", {1, 2, 2, 2}, 0);
  const EntryRef flat = maker.Call("reshape", {pooled}, "int8", {1, 8}, 1);
  const EntryRef real = maker.Convert("dequantize", flat, "float32", {1, 8}, {0.5f}, {2}, 2);
  CHECK_EQ(TextOf(maker.Finish(real)),
           "nn.max_pool2d int8(0.5 2) -> int8(0.5 2)\n"
           "reshape int8(0.5 2) -> int8(0.5 2)\n"
           "dequantize int8(0.5 2) -> float32\n");
}

TEST(ATransposedWeightHasItsScalesAlongTheOtherDimension) {
  Maker maker;
  const EntryRef real =
      maker.Convert("dequantize", maker.Input("int8", {2, 3}), "float32", {2, 3}, {1}, {0}, 0);
  const EntryRef stored = maker.Constant("int8", {2, 3}, std::vector<int8_t>(6, 1));
  const EntryRef weight = maker.Convert("dequantize", stored, "float32", {2, 3}, {1, 2}, {0, 0}, 0);
  const EntryRef turned = maker.Call("permute_dims", {weight}, "float32", {3, 2}, 0);
  const EntryRef product = maker.Call("matmul", {real, turned}, "float32", {2, 2}, 0);
  const EntryRef result = maker.Convert("quantize", product, "int8", {2, 2}, {1}, {0}, 0);
  CHECK_EQ(TextOf(maker.Finish(result)),
           "permute_dims int8(1 0, 2 0 along 0) -> int8(1 0, 2 0 along 1)\n"
           "matmul int8(1 0) int8(1 0, 2 0 along 1) -> int8(1 0)\n");
}

TEST(AChangeOfScaleAndLoneConversionsRemain) {
  Maker maker;
  const EntryRef stored =
      maker.Convert("quantize", maker.Input("float32", {4}), "int8", {4}, {1}, {0}, 0);
  const EntryRef real = maker.Convert("dequantize", stored, "float32", {4}, {1}, {0}, 1);
  const EntryRef other = maker.Convert("quantize", real, "int8", {4}, {2}, {5}, 1);
  CHECK_EQ(TextOf(maker.Finish(other)),
           "quantize float32 -> int8(1 0)\n"
           "quantize int8(1 0) -> int8(2 5)\n");
}

TEST(WeightsOfRealDataStayAsTheyAre) {
  Maker maker;
  const EntryRef stored = maker.Constant("int8", {3, 2}, std::vector<int8_t>(6, 1));
  const EntryRef weight = maker.Convert("dequantize", stored, "float32", {3, 2}, {1}, {0}, 0);
  const EntryRef product =
      maker.Call("matmul", {maker.Input("float32", {2, 3}), weight}, "float32", {2, 2}, 0);
  CHECK_EQ(TextOf(maker.Finish(product)),
           "dequantize int8 float32 int8 -> float32\nmatmul float32 float32 -> float32\n");
}

TEST(IntegersWithTwoMeaningsAreRefused) {
  Maker maker;
  const EntryRef stored =
      maker.Convert("quantize", maker.Input("float32", {4}), "int8", {4}, {1}, {0}, 0);
  const EntryRef real = maker.Convert("dequantize", stored, "float32", {4}, {1}, {1}, 1);
  CHECK(RefusalOf(&maker, real).find("relax.dequantize (v6): its integers have another scale") ==
        0);
  Maker sums;
  const EntryRef data = sums.Input("int8", {4});
  const EntryRef sum = sums.Call("add", {data, data}, "int8", {4}, 0);
  sums.graph.heads.push_back(sum);
  const EntryRef of_data = sums.Convert("dequantize", data, "float32", {4}, {1}, {0}, 1);
  CHECK(RefusalOf(&sums, of_data).find("relax.add (v1): it computes with the integers") == 0);
}

TEST(AViewKeepsScalesWhereItsDimensionIsWhole) {
  const Scales one = {{2}, {1}, 0}, each = {{1, 2, 3}, {0, 0, 0}, 1};
  const auto dims = [](const std::vector<int64_t>& sizes) {
    std::vector<npu_dim> found;
    for (int64_t size : sizes) found.push_back(npu_dim{size, -1});
    return found;
  };
  CHECK(ScalesOfView(one, dims({2, 3}), dims({6})) == one);
  CHECK(ScalesOfView(each, dims({2, 3, 4}), dims({2, 3, 2, 2})) == each);
  CHECK(ScalesOfView(each, dims({2, 3, 4}), dims({1, 2, 3, 4}))->axis == 2);
  CHECK(!ScalesOfView(each, dims({2, 3, 4}), dims({6, 4})).has_value());
  CHECK(!ScalesOfView(each, dims({2, 3, 2}), dims({3, 2, 2})).has_value());
  const int32_t order[] = {1, 2, 0};
  CHECK(Permuted(each, order, 3).axis == 0);
  CHECK(Permuted(one, order, 3) == one);
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) { return check::RunTests(argc, argv); }
