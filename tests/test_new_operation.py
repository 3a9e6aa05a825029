"""A sample driver operation: what it takes, and that the emulator computes it.

The edits below are the list of files for whoever adds one, as docs/architecture.md shows it.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from support import (
    BUILD_MODEL,
    IN_ONE_PROCESS,
    ROOT,
    Workshop,
    contents,
    copy_template,
    edit,
    render,
    run,
)

ENGINE = "template/engine"
HEADER = f"{ENGINE}/backend/include/npu_driver.h"
KIT = f"{ENGINE}/backend/include/driver_kit"
LOWERINGS = f"{ENGINE}/backend/lowerings/shape.cc"
OPERATION = f"{ENGINE}/workbench/emulator/operations/reverse.cc"
TESTS = f"{ENGINE}/workbench/tests/cpp/driver_test.cc"
MOST_FILES = 10
PAGE = ROOT / "docs/architecture.md"

STRUCT = """
/*! \\brief The elements along an axis in reverse order. Since version 5. */
typedef struct npu_reverse {
  uint32_t size;
  npu_tensor data, out;
  int32_t axis;
} npu_reverse;

/* The list of operations,"""

EMULATED = """// SPDX-License-Identifier: Apache-2.0
/*!
 * \\file reverse.cc
 * \\brief Elements in reverse order along an axis.
 */
#include <cstring>

#include "../rules.h"

namespace npu::emulator {

void OperationRules::Check(const npu_reverse& op) {
  const Desc data = Read(op.data, "data", false);
  const Desc out = Write(op.out);
  CheckAxis(op.axis, op.data, data);
  CheckSameShape(op.data, data, op.out, out);
  if (data.dtype != out.dtype) {
    Invalid("The data of ", Where(), ", ", Describe(op.data), ", and its output, ",
            Describe(op.out), ", must have the same element type.");
  }
}

npu_tensor SameType(const npu_reverse& op) { return op.data; }

int64_t CyclesOf(const npu_reverse&, const Machine& machine, const TensorView&,
                 const TensorView& out) {
  return VectorCycles(machine, ElementCount(out), 1);
}

std::string TextOf(const npu_reverse& op, const std::vector<std::string>& texts) {
  return Join("reverse ", texts[0], " axis ", op.axis);
}

size_t ScratchBytes(const PlainArgs<npu_reverse>&, int) { return 0; }

void Execute(const PlainArgs<npu_reverse>& args, const KernelContext&) {
  const TensorView& data = args.reads[0];
  const int64_t count = data.dims[args.op.axis];
  auto line = static_cast<int64_t>(ElementSize(data.dtype));
  for (int32_t d = args.op.axis + 1; d < data.rank; ++d) line *= data.dims[d];
  const int64_t lines = ElementCount(data) * static_cast<int64_t>(ElementSize(data.dtype)) / line;
  const auto* from = static_cast<const uint8_t*>(data.data);
  auto* to = static_cast<uint8_t*>(args.out.data);
  for (int64_t i = 0; i < lines; ++i) {
    const int64_t first = i / count * count;
    const int64_t place = first + count - 1 - (i - first);
    std::memcpy(to + i * line, from + place * line, static_cast<size_t>(line));
  }
}

}  // namespace npu::emulator
"""

TESTED = """TEST(ReversesAlongAnAxis) {
  Net net;
  npu_tensor data = net.Input({2, 3});
  npu_tensor out = net.Tensor({2, 3});
  net.Add(npu_reverse{0, data, out, 1});
  net.Output(out);
  Machine machine(net.Finish());
  Floats reversed;
  machine.Input(0, {2, 3}, Floats{1, 2, 3, 4, 5, 6});
  machine.Output(0, {2, 3}, &reversed);
  machine.Run();
  CHECK_VALUES(reversed, {3, 2, 1, 6, 5, 4});
}

TEST(ScansCollectAlongAnAxis) {"""

EDITS = {
    HEADER: [
        ("\n/* The list of operations,", STRUCT),
        (
            "                                 const npu_quantization* quantization);\n",
            "                                 const npu_quantization* quantization);\n"
            "  /*! \\brief Absent: it is declined. Since version 5. */\n"
            "  npu_status (*add_reverse)(npu_builder* builder, const npu_reverse* op);\n",
        ),
        (
            "  X(lookup, R(lookup, data) R(lookup, table))",
            "  X(lookup, R(lookup, data) R(lookup, table)) \\\n  X(reverse, R(reverse, data))",
        ),
    ],
    LOWERINGS: [
        (
            "  npu_copy copy = op.CopyOf(data, op.Output());\n"
            "  copy.data_offset[axis] = op.FixedSize(data, static_cast<int>(axis)) - 1;\n"
            "  copy.data_step[axis] = -1;\n"
            "  op.Emit(copy);\n",
            "  op.FixedSize(data, static_cast<int>(axis));\n"
            "  op.Emit(npu_reverse{0, data.id, op.Output().id, static_cast<int32_t>(axis)});\n",
        )
    ],
    f"{KIT}/program.h": [
        ("  kUpdate = 18,\n", "  kUpdate = 18,\n  kReverse = 19,\n"),
        ('{"update", 3}', '{"update", 3}, {"reverse", 1}'),
        (
            "    Quantization quantization;\n",
            "    Quantization quantization;\n    npu_reverse reverse;\n",
        ),
        (
            "    case Kind::kReshape:\n",
            "    case Kind::kReverse:\n"
            "      return node.reverse.axis >= 0 && node.reverse.axis < rank && out_rank == rank;\n"
            "    case Kind::kReshape:\n",
        ),
    ],
    f"{KIT}/region_file.h": [
        (
            "    case Kind::kUpdate:\n",
            "    case Kind::kReverse:\n"
            '      add("axis", node.reverse.axis);\n'
            "      break;\n"
            "    case Kind::kUpdate:\n",
        ),
    ],
    f"{KIT}/build.h": [
        (
            "  bool scales = false;\n",
            "  bool scales = false;\n  bool reverse = false;\n",
        ),
        (
            "  // ---- Inputs, outputs, bytes ----\n",
            "  void Add(const npu_reverse* op) {\n"
            "    AddAlone(Kind::kReverse, &Node::reverse, *op, &npu_reverse::data);\n"
            "  }\n\n  // ---- Inputs, outputs, bytes ----\n",
        ),
        (
            "  if (kDriver.integers) {\n",
            "  if (kDriver.reverse) api.add_reverse = AddOp<npu_reverse>;\n"
            "  if (kDriver.integers) {\n",
        ),
    ],
    TESTS: [("TEST(ScansCollectAlongAnAxis) {", TESTED)],
}

SCRIPT = (
    BUILD_MODEL
    + """
import re
import subprocess
import sys

import numpy as np
import tvm
import tvm_try_npu as backend

array = np.arange(6 * 16 * 32, dtype="float32").reshape(6, 16, 32) / 7
for axis in range(3):
    relu = relax.op.nn.relu
    mod = build(lambda x: relu(relax.op.flip(relu(x), axis)), array.shape)
    for settings in ({}, {"scratchpad_bytes": 8192}, {"precision": "float16"}):
        executable = backend.compile_for_try_npu(mod, on_decline="error", **settings)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(array - 9)).numpy()
        want = np.flip(np.maximum(array - 9, 0), axis)
        if "precision" in settings:
            want = want.astype("float16").astype("float32")
        np.testing.assert_array_equal(found, want)
        executable.export_library("model.so")
        inspect = [sys.executable, "-m", "tvm_try_npu", "inspect", "model.so"]
        listing = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout
        tiles = re.findall(f" = reverse scratchpad.* axis {axis}  ; relax.flip", listing)
        print(axis, settings, len(tiles))
        assert len(tiles) > 1 if "scratchpad_bytes" in settings else len(tiles) == 1, listing
print("right")
"""
)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the template, and add the operation."""
    copy = tmp_path_factory.mktemp("extended")
    copy_template(copy)
    for path, edits in EDITS.items():
        for old, new in edits:
            edit(copy / path, old, new)
    (copy / OPERATION).write_text(EMULATED)
    return copy


def test_it_takes_few_files(extended: Path) -> None:
    before, after = contents(ROOT / ENGINE), contents(extended / ENGINE)
    changed = sorted(path for path in after if after[path] != before.get(path))
    print(f"a new driver operation: {len(changed)} files: {', '.join(changed)}")
    assert sorted(f"{ENGINE}/{path}" for path in changed) == sorted([*EDITS, OPERATION])
    # Beside these, a page shows its cycles, another its number, and the change log has a line.
    assert len(changed) + 3 <= MOST_FILES
    (row,) = re.findall(r"^\| an operation of the driver: .*$", PAGE.read_text(), re.MULTILINE)
    assert f"driver: {len(changed) + 3} files for a new one" in row
    for path in changed:
        assert Path(path).name.replace("reverse", "<name>").replace("shape", "<family>") in row


@pytest.mark.slow
def test_codegen_emits_it_and_the_emulator_computes_it(
    extended: Path, workshop: Workshop, tmp_path: Path
) -> None:
    project = render(
        extended,
        tmp_path / "backend",
        backend_name="try_npu",
        op_preset="custom",
        ops=["flip", "relu"],
    )
    began = time.monotonic()
    # Not for its speed.
    wheel = workshop.build(project, CMAKE_CXX_FLAGS_RELEASE="-O0")
    print(f"built in {time.monotonic() - began:.0f} seconds")
    python = workshop.environment(wheel)
    script = tmp_path / "reversed.py"
    script.write_text(SCRIPT)
    assert run(python, script, cwd=tmp_path).endswith("right\n")
    kit = ("conformance", *IN_ONE_PROCESS, "--suite", "ops", "--filter", "ops/flip-")
    run(python, "-m", "tvm_try_npu", *kit)


USES = """
#include "driver_kit/build.h"
#include "driver_kit/region_file.h"
#include "driver_kit/run.h"
using npu::kit::Kind;
std::string Reason(const npu::kit::Program&, const npu::kit::Node& node) {
  return node.kind == Kind::kReverse && node.reverse.axis == 1 ? "" : "another axis";
}
constexpr npu::kit::Driver kWith = {
    "acme", "1", Reason, nullptr, 0, false, nullptr, false, false, false, true};
constexpr npu::kit::Driver kWithout = {"acme", "1", Reason};
int main() {
  const npu_build_api api = npu::kit::BuildTable<kWith>();
  npu_builder* builder = nullptr;
  api.create(nullptr, 0, &builder);
  const npu_tensor_desc desc = {NPU_FLOAT32, 2, {{2, -1}, {3, -1}}};
  npu_tensor data = -1, first = -1, second = -1;
  api.add_input(builder, &desc, &data);
  api.add_tensor(builder, &desc, &first);
  api.add_tensor(builder, &desc, &second);
  const npu_reverse columns = {sizeof(columns), data, first, 1};
  const npu_reverse rows = {sizeof(rows), first, second, 0};
  const bool taken = api.add_reverse(builder, &columns) == NPU_OK;
  const std::string listing = npu::kit::Listing(builder->program);
  const bool declined = api.add_reverse(builder, &rows) == NPU_DECLINED;
  api.destroy(builder);
  const bool absent = npu::kit::BuildTable<kWithout>().add_reverse == nullptr;
  return taken && declined && absent && listing == "reverse -> 2 x 3\\n" ? 0 : 1;
}
"""


def test_drivers_on_the_kit_may_have_it(extended: Path, tmp_path: Path) -> None:
    source = tmp_path / "uses.cc"
    source.write_text(USES)
    warnings = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
    run("c++", *warnings, "-I", (extended / KIT).parent, "-o", tmp_path / "uses", source)
    run(tmp_path / "uses")
