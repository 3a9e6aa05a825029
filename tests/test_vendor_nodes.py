"""Nodes of the driver kit beyond four inputs and beyond the header: those of vendors."""

from __future__ import annotations

import re
from pathlib import Path

from support import ROOT, run

INCLUDE = ROOT / "template/engine/backend/include"
PAGE = ROOT / "docs/driver.md"

HEADER, DRIVER, LOWERING = re.findall(
    r"```cpp\n(.*?)```",
    PAGE.read_text().partition("## Operations of your own")[2].partition("\n## ")[0],
    re.DOTALL,
)

MAIN = r"""
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "driver_kit/build.h"
#include "driver_kit/region_file.h"
#include "driver_kit/run.h"

using namespace npu::kit;

std::string Reason(const Program& program, const Node& node) {
  if (node.kind == Kind::kVendor) {
    const bool is_taken = program.NameOf(node) == "acme.mish" && program.At(node.out).rank == 1;
    return is_taken ? "" : "no " + program.NameOf(node) + " of this rank";
  }
  if (node.kind == Kind::kOrder) {
    return program.At(node.out).dtype == NPU_INT32 ? "" : "its indices are int32";
  }
  const bool is_cast = node.kind == Kind::kStep && node.step == NPU_STEP_CAST;
  return node.kind == Kind::kConcat || is_cast ? "" : "no " + NameOf(node);
}

constexpr Driver kDriver = {"acme", "1", Reason};

#include "driver.cc"

class Graph {
 public:
  Graph(const Program& program, const std::vector<void*>& memory)
      : program_(program), memory_(memory) {}

  void Run() {
    for (const Node& node : program_.nodes) {
      auto* out = static_cast<float*>(memory_[static_cast<size_t>(node.out)]);
      for (int32_t id : program_.InputsOf(node)) {
        const auto* data = static_cast<const float*>(memory_[static_cast<size_t>(id)]);
        for (int64_t i = 0; i < CountOf(program_.At(id)); ++i) {
          const float slope = node.kind == Kind::kVendor ? ReadAttributes<Mish>(node).slope : 1;
          *out++ = slope * data[i];
        }
      }
    }
  }

 private:
  const Program& program_;
  const std::vector<void*> memory_;
};

struct Maker {
  const npu_build_api& api = *npu_driver_build(NPU_DRIVER_API_VERSION);
  npu_builder* builder = nullptr;
  Maker() { api.create(nullptr, 0, &builder); }
  ~Maker() { api.destroy(builder); }

  npu_tensor Tensor(npu_dtype dtype, int64_t size, bool is_input) {
    const npu_tensor_desc desc = {dtype, 1, {{size, -1}}};
    npu_tensor id = -1;
    Check(is_input ? api.add_input(builder, &desc, &id) : api.add_tensor(builder, &desc, &id));
    return id;
  }
  void Check(npu_status status) const {
    if (status != NPU_OK) std::printf("%d: %s\n", status, api.error(builder));
  }
  std::vector<uint8_t> Finish(npu_tensor out) {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Check(api.mark_output(builder, out));
    Check(api.finish(builder, &bytes, &size));
    return {bytes, bytes + size};
  }
};

/*! \brief Six inputs of sizes 1 to 6, one after the other. */
std::vector<uint8_t> Concat() {
  Maker maker;
  std::vector<npu_tensor> inputs;
  for (int64_t i = 1; i <= 6; ++i) inputs.push_back(maker.Tensor(NPU_FLOAT32, i, true));
  npu_concat op = {sizeof(op), maker.Tensor(NPU_FLOAT32, 21, false), inputs.data(), 6, 0};
  maker.Check(maker.api.add_concat(maker.builder, &op));
  return maker.Finish(op.out);
}

std::vector<uint8_t> OfVendor() {
  Maker maker;
  const auto* ops = static_cast<const acme_ops*>(maker.api.extension("acme.ops"));
  std::printf("%d\n", maker.api.extension("other.ops") == nullptr);
  const npu_tensor data = maker.Tensor(NPU_FLOAT32, 3, true);
  const npu_tensor out = maker.Tensor(NPU_FLOAT32, 3, false);
  maker.Check(ops->add_mish(maker.builder, data, out, 2.5f));
  // What `reason` does not take, and what would not be known by its name.
  const npu_tensor_desc matrix = {NPU_FLOAT32, 2, {{1, -1}, {3, -1}}};
  npu_tensor wide = -1, view = -1;
  maker.Check(maker.api.add_tensor(maker.builder, &matrix, &wide));
  maker.Check(maker.api.add_view(maker.builder, data, &matrix, &view));
  maker.Check(ops->add_mish(maker.builder, view, wide, 2.5f));
  maker.Check(Try(&maker.builder->error, [&] {
    maker.builder->AddVendorNode("mish", MakeNode(Kind::kVendor), wide);
  }));
  return maker.Finish(out);
}

/*! \brief Runs a program of float32 whose inputs count up, as a whole and node by node. */
void Run(const std::vector<uint8_t>& bytes) {
  const Program program = Parse(bytes.data(), bytes.size());
  std::printf("%s", Listing(program).c_str());
  const auto fields = RegionFields(program, program.nodes, program.labels, false, true);
  const std::string text = ObjectText(fields);
  std::printf("%s\n", text.substr(text.find("\"op\""), 70).c_str());
  static const npu_run_api run = RunTable<Graph, NodeByNode<Graph>>("acme", "1");
  npu_program* loaded = nullptr;
  npu_request* request = nullptr;
  run.load(nullptr, bytes.data(), bytes.size(), &loaded);
  run.create_request(loaded, &request);
  for (int32_t one_by_one : {0, 1}) {
    run.record_events(request, one_by_one);
    std::vector<std::vector<float>> arrays;
    float number = 0;
    for (const Value& input : program.inputs) {
      for (auto& element : arrays.emplace_back(CountOf(input))) element = ++number;
    }
    for (size_t i = 0; i < arrays.size(); ++i) {
      const int64_t dims[] = {CountOf(program.inputs[i])};
      const npu_buffer buffer = {sizeof(buffer), NPU_FLOAT32, 1, dims, arrays[i].data(),
                                 4 * arrays[i].size(), nullptr};
      run.bind_input(request, i, &buffer);
    }
    const int64_t dims[] = {CountOf(program.outputs[0])};
    std::vector<float> found(static_cast<size_t>(dims[0]));
    const npu_buffer buffer = {sizeof(buffer), NPU_FLOAT32, 1, dims, found.data(),
                               4 * found.size(), nullptr};
    run.bind_output(request, 0, &buffer);
    if (run.execute(request) != NPU_OK) std::printf("%s\n", run.error());
    for (float each : found) std::printf("%g ", static_cast<double>(each));
    std::puts("");
    const npu_event* events = nullptr;
    size_t count = 0;
    double rate = 0;
    run.read_events(request, &events, &count, &rate);
    for (size_t i = 0; i < count; ++i) std::printf("event %s\n", events[i].name);
  }
  run.destroy_request(request);
  run.unload(loaded);
}

/*! \brief Changes a text in a program, and sees that it is refused. */
void Forge(std::vector<uint8_t> bytes, const std::string& from, const std::string& to) {
  const auto at = std::search(bytes.begin(), bytes.end(), from.begin(), from.end());
  if (at == bytes.end()) std::printf("there is no '%s'\n", from.c_str());
  std::copy(to.begin(), to.end(), at);
  ProgramHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  constexpr size_t kHashed = offsetof(ProgramHeader, node_size);
  header.hash = HashOf(bytes.data() + kHashed, bytes.size() - kHashed);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::string why;
  const npu_status status = Try(&why, [&] { Parse(bytes.data(), bytes.size()); });
  std::printf("%s: %d %s\n", to.c_str(), status, why.c_str());
}

int main() {
  Run(Concat());
  Run(OfVendor());

  // Indices of int64, where the SDK has int32.
  Maker maker;
  const npu_tensor data = maker.Tensor(NPU_FLOAT32, 4, true);
  const npu_tensor first = maker.Tensor(NPU_INT64, 1, false);
  const npu_order largest = {sizeof(largest), data, first, 0, 1};
  maker.Check(maker.api.add_order(maker.builder, &largest));
  const std::vector<uint8_t> bytes = maker.Finish(first);
  const Program program = Parse(bytes.data(), bytes.size());
  for (const Node& node : program.nodes) {
    std::printf("%s %d\n", NameOf(node).c_str(), program.At(node.out).dtype);
  }

  // Value 6 is the result; inputs 4 and 5 are behind the first four.
  Forge(Concat(), "inputs 6 4 5", "inputs 6 4 4");
  Forge(Concat(), "inputs 6 4 5", "inputs 6 4 6");
  Forge(Concat(), "inputs 6 4 5", "inputs 6 4 9");
  Forge(Concat(), "inputs 6 4 5", "inputs 1 4 5");
  Forge(Concat(), "inputs 6 4 5", "inputs 6 4 x");
  Forge(OfVendor(), "name 1 acme", "name 0 acme");
  Forge(OfVendor(), "name 1 acme", "none 1 acme");
  return 0;
}
"""

CORRUPT = "2 the program is corrupt, or of another version of the driver"
LISTED = """concat -> 21
"op": "concat", "inputs": ["v0", "v1", "v2", "v3", "v4", "v5"], "outpu
{all}
{all}
event concat
1
1: no acme.mish of this rank
2: the name of a vendor's operation has a dot, as in acme.mish
acme.mish -> 3
"op": "acme.mish", "inputs": ["v0"], "output": "v1", "label": "", "lea
2.5 5 7.5
2.5 5 7.5
event acme.mish
order 4
cast 5
"""


def test_more_inputs_than_four_operations_of_vendors_and_indices_of_int32(tmp_path: Path) -> None:
    (tmp_path / "acme_ops.h").write_text(HEADER)
    (tmp_path / "driver.cc").write_text(DRIVER)
    (tmp_path / "main.cc").write_text(MAIN)
    warnings = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
    run("c++", *warnings, "-I", INCLUDE, "-o", tmp_path / "main", tmp_path / "main.cc")
    found = "\n".join(line.rstrip() for line in run(tmp_path / "main").splitlines())
    listed = LISTED.format(all=" ".join(map(str, range(1, 22))))
    assert found.startswith(listed), found
    lines = [line for line in found[len(listed) :].splitlines() if ": " in line]
    forged = ("inputs 6 4 4", "inputs 6 4 6", "inputs 6 4 9", "inputs 1 4 5", "inputs 6 4 x")
    names = ("name 0 acme", "none 1 acme")
    vendor = ["1: no acme.mish of this rank"]
    vendor += ["2: the name of a vendor's operation has a dot, as in acme.mish"]
    expected = [f"{item}: {CORRUPT}" for item in forged]
    for item in names:
        expected += [*vendor, f"{item}: {CORRUPT}"]
    assert lines == expected, found


def test_the_page_tells_lowering_and_driver_the_same(tmp_path: Path) -> None:
    assert '.NeedsExtension("acme.ops")' in LOWERING and '"acme.ops"' in DRIVER
    (tmp_path / "acme_ops.h").write_text(HEADER)
    (tmp_path / "lowering.cc").write_text(LOWERING)
    engine = ROOT / "template/engine/backend"
    folders = [flag for room in ("codegen", "common", "include") for flag in ("-I", engine / room)]
    run(
        "c++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        *folders,
        tmp_path / "lowering.cc",
    )
