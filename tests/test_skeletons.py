"""The driver skeletons: they pass all tests from the start, decline the rest, and can grow."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import support
from first_op import FIRST_OP, edit
from support import (
    CPP,
    IN_ONE_PROCESS,
    NEEDS_XNNPACK,
    ROOT,
    Workshop,
    attempt,
    copy_tests,
    run,
    site_packages,
)

OPS = ["add", "astype", "clip", "conv2d", "max_pool2d", "relu", "reshape"]
SKELETONS = ["graph", "commands", "model", "isa"]
DRIVER = {
    "emulator": set[str](),
    "graph": {"build.cc", "run.cc"},
    "commands": {"build.cc", "commands.h", "run.cc"},
    "model": {"build.cc", "run.cc"},
    "isa": {"build.cc", "run.cc"},
}
HEADER = ROOT / "template/engine/backend/include/npu_driver.h"
each_skeleton = pytest.mark.parametrize("driver", SKELETONS)


def _answers(driver: str) -> dict[str, Any]:
    return {"backend_name": f"{driver}_npu", "op_preset": "custom", "ops": OPS, "driver": driver}


@pytest.mark.parametrize("driver", DRIVER)
def test_the_answer_decides_what_is_seeded_in_vendor(
    render: Callable[..., Path], driver: str
) -> None:
    tree = render(**_answers(driver))
    found = {path.name for path in (tree / "vendor").glob("driver/*")}
    assert found == DRIVER[driver]
    assert (tree / "vendor/sdk/compile.py").is_file() == (driver in ("model", "isa"))
    assert (tree / "vendor/isa.py").is_file() == (driver == "isa")
    assert (tree / "vendor/tests/test_driver.py").is_file() == (driver != "emulator")
    cmake = (tree / "vendor/vendor.cmake").read_text()
    assert ("\nset(NPU_VENDOR_DRIVER_SOURCES " in cmake) == (driver != "emulator")
    asks = "DECLINED_BY_SDK: Decline | None = ask_driver\n"
    assert (asks in (tree / "vendor/capabilities.py").read_text()) == (driver != "emulator")
    assert support.answers(tree)["driver"] == driver


@each_skeleton
def test_what_is_seeded_is_short_even_with_all_ops(
    render: Callable[..., Path], driver: str
) -> None:
    tree = render(backend_name="whole", driver=driver)
    files = support.files(tree / "vendor")
    assert sum(path.read_bytes().count(b"\n") for path in files) <= 2000


@each_skeleton
@pytest.mark.parametrize("name", ["x", "a_backend_with_thirty_letters1"])
def test_the_linters_and_formatters_leave_a_skeleton_unchanged(
    render: Callable[..., Path], name: str, driver: str
) -> None:
    tree = render(backend_name=name, driver=driver)
    support.run("ruff", "check", "--no-cache", ".", cwd=tree)
    support.run("ruff", "format", "--no-cache", "--diff", ".", cwd=tree)
    support.run("mypy", "--cache-dir", ROOT / ".mypy_cache/render", cwd=tree)
    sources = [path for path in support.files(tree / "vendor") if path.suffix in CPP]
    assert sources
    support.run("clang-format", "--dry-run", "--Werror", *sources)


# test_isa.py builds the one with an instruction set.
@pytest.mark.parametrize("driver", [driver for driver in SKELETONS if driver != "isa"])
@pytest.mark.slow
def test_a_skeleton_passes_from_the_first_minute(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path, driver: str
) -> None:
    project = render(**_answers(driver))
    python = workshop.environment(workshop.wheel(project))
    package = f"tvm_{driver}_npu"
    assert "All is well." in run(python, "-m", package, "check", cwd=tmp_path)

    # The backend's own driver has no op yet, or those of an SDK's stand-in; check reports that.
    setting = {f"{driver.upper()}_NPU_DRIVER": "vendor"}
    done = attempt(python, "-m", package, "check", cwd=tmp_path, **setting)
    assert "Traceback" not in done.stdout
    if driver == "model":
        assert done.returncode == 0, done.stdout
        taken = f"of the {len(OPS)} ops that have cases, the driver 'vendor' takes at least one "
        assert f"{taken}case of 3: relu, add, reshape\n" in done.stdout, done.stdout
    else:
        assert done.returncode == 1
        views = "ops that have cases, except for views, which need no op of it. "
        assert f"FAILED: The driver 'vendor' declines all {len(OPS)} {views}" in done.stdout
        assert "the driver has no relu yet" in done.stdout
        assert "at least one case" not in done.stdout

    # Options must be those of the driver that the environment variable selects.
    code = f"import sys, {package} as backend\n"
    code += "print(backend.Options.load({'driver': sys.argv[1], 'cores': 2}))"
    chosen = {f"{driver.upper()}_NPU_DRIVER": "emulator"}
    assert "cores=2" in run(python, "-c", code, "vendor", cwd=tmp_path, **chosen)
    done = attempt(python, "-c", code, "emulator", cwd=tmp_path, **setting)
    assert "The option 'cores' is one of the driver 'emulator'" in done.stdout

    _test(python, project, tmp_path)


def _test(python: Path, project: Path, place: Path) -> None:
    """Run the driver's tests against the installed package."""
    copy_tests(project, place)
    tests = ("engine/backend/tests/test_driver_libraries.py", "vendor/tests")
    out = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=place)
    assert f"{len(OPS) + 6} passed" in out, out


UNLINKED = """
extern "C" int acme_open();
extern "C" const void* npu_driver_build(unsigned) { return acme_open() ? "" : nullptr; }
extern "C" const void* npu_driver_run(unsigned) { return acme_open() ? "" : nullptr; }
"""


@pytest.mark.slow
def test_a_driver_without_its_sdk_is_reported_with_a_remedy(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    python = workshop.environment(workshop.wheel(render(**_answers("graph"))))
    (tmp_path / "driver.cc").write_text(UNLINKED)
    (tmp_path / "sdk.cc").write_text('extern "C" int acme_open() { return 0; }')
    (tmp_path / "drivers").mkdir()
    driver = tmp_path / "drivers/libtvm_graph_npu_driver.so"
    sdk = tmp_path / "libacme.so"
    shared = ("c++", "-shared", "-fPIC", "-o")
    run(*shared, sdk, tmp_path / "sdk.cc")
    setting = {"GRAPH_NPU_DRIVER_DIR": str(driver.parent)}
    for libraries, words in (
        ((), ("undefined symbol: acme_open", "NPU_VENDOR_DRIVER_LIBRARIES", "vendor.cmake")),
        ((sdk,), ("libacme.so: cannot open shared object file", "LD_LIBRARY_PATH")),
    ):
        run(*shared, driver, tmp_path / "driver.cc", *libraries)
        if libraries:
            sdk.unlink()
        done = attempt(python, "-m", "tvm_graph_npu", "check", cwd=tmp_path, **setting)
        assert done.returncode == 1
        *_, line = done.stdout.splitlines()
        assert line.startswith("FAILED: The backend does not load: tvm_graph_npu: the driver ")
        assert all(word in line for word in words), line


ACCUMULATOR = """
#include "driver_kit/build.h"

using namespace npu::kit;

int main() {
  Driver driver = {};
  driver.reason = [](const Program&, const Node&) { return std::string(); };
  Builder builder;
  builder.driver = &driver;
  const npu_tensor_desc matrix = {NPU_FLOAT32, 2, {{2, -1}, {2, -1}}};
  npu_matmul op = {};
  op.size = sizeof(op);
  op.a = builder.AddTensor(&matrix, Source::kInput);
  op.b = builder.AddTensor(&matrix, Source::kInput);
  op.out = builder.AddTensor(&matrix, Source::kNode);
  const npu_operand accumulator = {NPU_OPERAND_ACCUMULATOR, 0, 0};
  const npu_step steps[] = {
      {NPU_STEP_SIGMOID, 1, {accumulator}, "sigmoid"},
      {NPU_STEP_MULTIPLY, 2, {accumulator, {NPU_OPERAND_STEP, 0, 0}}, "multiply"},
  };
  npu_vector_program epilogue = {};
  epilogue.steps = steps;
  epilogue.step_count = 2;
  op.epilogue = &epilogue;
  builder.Add(&op);
  const std::vector<Node>& nodes = builder.program.nodes;
  const bool right = nodes.size() == 3 && nodes[1].inputs[0] == nodes[0].out &&
                     nodes[2].inputs[0] == nodes[0].out && nodes[2].inputs[1] == nodes[1].out;
  return right ? 0 : 1;
}
"""


SUM = """
#include "driver_kit/build.h"

using namespace npu::kit;

int main() {
  Driver driver = {};
  driver.reason = [](const Program&, const Node&) { return std::string(); };
  driver.integers = true;
  Builder builder;
  builder.driver = &driver;
  const npu_tensor_desc data = {NPU_INT8, 2, {{2, -1}, {300, -1}}};
  const npu_tensor_desc out = {NPU_INT8, 2, {{2, -1}, {1, -1}}};
  npu_reduce op = {};
  op.size = sizeof(op);
  op.data = builder.AddTensor(&data, Source::kInput);
  op.out = builder.AddTensor(&out, Source::kNode);
  op.kind = NPU_REDUCE_SUM;
  op.axes = 2;
  const npu_operand accumulator = {NPU_OPERAND_ACCUMULATOR, 0, 0};
  const npu_operand number = {NPU_OPERAND_NUMBER, 0, 300};
  const npu_step steps[] = {{NPU_STEP_DIVIDE, 2, {accumulator, number}, "divide"}};
  npu_vector_program epilogue = {};
  epilogue.steps = steps;
  epilogue.step_count = 1;
  op.epilogue = &epilogue;
  builder.Add(&op);
  const Program& program = builder.program;
  const bool right = program.nodes.size() == 2 &&
                     program.At(program.nodes[0].out).dtype == NPU_INT64 &&
                     program.At(program.nodes[1].out).dtype == NPU_INT8;
  return right ? 0 : 1;
}
"""


ADD_RESULT = """
#include <cstdio>

#include "driver_kit/build.h"

using namespace npu::kit;

// Adds the steps as the output; prints why the kit declines them.
bool AddResult(Builder* builder, const npu_tensor_desc& result,
               const std::vector<npu_step>& steps) {
  npu_vector_program program = {};
  program.steps = steps.data();
  program.step_count = static_cast<int32_t>(steps.size());
  npu_elementwise op = {};
  op.size = sizeof(op);
  op.out = builder->AddTensor(&result, Source::kNode);
  op.program = &program;
  std::string reason;
  if (npu::kit::Try(&reason, [&] { builder->Add(&op); }) != NPU_OK) {
    std::puts(reason.c_str());
    return false;
  }
  builder->MarkOutput(op.out);
  builder->Finish();
  return true;
}
"""

QUANTIZATION = (
    ADD_RESULT
    + """
struct Case {
  npu_dtype from, to;
  int64_t scales;
  bool knows;
  std::vector<npu_step> steps;
};

void Try(const Case& test) {
  Driver driver = {};
  driver.reason = [](const Program&, const Node&) { return std::string(); };
  driver.quantization = test.knows;
  Builder builder;
  builder.driver = &driver;
  const npu_tensor_desc data = {test.from, 2, {{2, -1}, {4, -1}}};
  const npu_tensor_desc result = {test.to, 2, {{2, -1}, {4, -1}}};
  const npu_tensor_desc scales = {NPU_FLOAT32, 1, {{test.scales, -1}}};
  const npu_tensor_desc zero = {NPU_INT8, 0, {}};
  const float factors[4] = {0.5f, 1, 2, 4};
  const int8_t point = -3;
  // Tensors 0 to 2 of the steps.
  builder.AddInput(&data);
  builder.AddConstantTensor(&scales, factors, sizeof(float) * static_cast<size_t>(test.scales));
  builder.AddConstantTensor(&zero, &point, 1);
  if (!AddResult(&builder, result, test.steps)) return;
  const Program parsed = Parse(builder.bytes.data(), builder.bytes.size());
  for (const Node& node : parsed.nodes) {
    std::printf("%s(%d -> %d, %g, %g) ", NameOf(node).c_str(), parsed.At(node.inputs[0]).dtype,
                parsed.At(node.out).dtype, node.numbers[1], node.numbers[2]);
    // A file in which the numbers to quantize are integers.
    if (node.kind != Kind::kQuantize || node.inputs[0] != 0 || test.from != NPU_FLOAT32) continue;
    Program forged = parsed;
    forged.values[0].dtype = forged.inputs[0].dtype = NPU_INT32;
    const std::vector<uint8_t> bytes = Serialize(forged);
    std::string refused;
    const npu_status status =
        npu::kit::Try(&refused, [&] { Parse(bytes.data(), bytes.size()); });
    std::printf("forged: %s", status == NPU_OK ? "taken" : "refused");
  }
  std::puts("");
}

int main() {
  const npu_operand data = {NPU_OPERAND_TENSOR, 0, 0}, scale = {NPU_OPERAND_TENSOR, 1, 0},
                    zero = {NPU_OPERAND_TENSOR, 2, 0};
  const auto step = [](int32_t s) { return npu_operand{NPU_OPERAND_STEP, s, 0}; };
  const std::vector<npu_step> quantize = {{NPU_STEP_DIVIDE, 2, {data, scale}, ""},
                                          {NPU_STEP_ROUND_EVEN, 1, {step(0)}, ""},
                                          {NPU_STEP_ADD, 2, {step(1), zero}, ""}};
  const std::vector<npu_step> dequantize = {{NPU_STEP_SUBTRACT, 2, {data, zero}, ""},
                                            {NPU_STEP_MULTIPLY, 2, {step(0), scale}, ""}};
  const std::vector<npu_step> between = {dequantize[0],
                                         dequantize[1],
                                         {NPU_STEP_TANH, 1, {step(1)}, ""},
                                         {NPU_STEP_DIVIDE, 2, {step(2), scale}, ""},
                                         {NPU_STEP_ROUND_EVEN, 1, {step(3)}, ""},
                                         {NPU_STEP_ADD, 2, {step(4), zero}, ""}};
  // The difference is used twice.
  const std::vector<npu_step> twice = {dequantize[0], dequantize[1],
                                       {NPU_STEP_ADD, 2, {step(1), step(0)}, ""}};
  Try({NPU_FLOAT32, NPU_INT8, 1, true, quantize});
  Try({NPU_INT8, NPU_FLOAT32, 1, true, dequantize});
  Try({NPU_INT8, NPU_INT8, 1, true, between});
  Try({NPU_FLOAT32, NPU_INT8, 1, false, quantize});
  Try({NPU_INT8, NPU_FLOAT32, 1, false, dequantize});
  Try({NPU_INT8, NPU_FLOAT32, 1, true, twice});
  // An integer that is no quantized number.
  Try({NPU_INT32, NPU_FLOAT32, 1, true, dequantize});
}
"""
)


MIXED = (
    ADD_RESULT
    + """
npu_tensor_desc Matrix(npu_dtype dtype, int64_t rows, int64_t columns) {
  return {dtype, 2, {{rows, -1}, {columns, -1}}};
}

void Print(const Builder& builder) {
  const Program parsed = Parse(builder.bytes.data(), builder.bytes.size());
  for (const Node& node : parsed.nodes) {
    std::printf("%s(", NameOf(node).c_str());
    for (int32_t input : parsed.InputsOf(node)) {
      std::printf("%d ", parsed.At(input).dtype);
    }
    const Value& out = parsed.At(node.out);
    std::printf("-> %d[%d, %d]) ", out.dtype, static_cast<int>(out.dims[0]),
                static_cast<int>(out.dims[1]));
  }
  std::puts("");
}

void Steps(const Driver& driver, npu_dtype to, const std::vector<npu_step>& steps) {
  Builder builder;
  builder.driver = &driver;
  const npu_tensor_desc half = Matrix(NPU_FLOAT16, 2, 4), narrow = Matrix(NPU_INT8, 1, 4);
  builder.AddInput(&half);
  builder.AddInput(&narrow);
  if (AddResult(&builder, Matrix(to, 2, 4), steps)) Print(builder);
}

void Product(const Driver& driver, npu_dtype from, npu_dtype to) {
  Builder builder;
  builder.driver = &driver;
  const npu_tensor_desc left = Matrix(from, 2, 3), right = Matrix(from, 3, 4);
  const npu_tensor_desc result = Matrix(to, 2, 4);
  npu_matmul op = {};
  op.size = sizeof(op);
  op.a = builder.AddInput(&left);
  op.b = builder.AddInput(&right);
  op.out = builder.AddTensor(&result, Source::kNode);
  const npu_step steps[] = {{NPU_STEP_RELU, 1, {{NPU_OPERAND_ACCUMULATOR, 0, 0}}, ""},
                            {NPU_STEP_TANH, 1, {{NPU_OPERAND_STEP, 0, 0}}, ""}};
  npu_vector_program epilogue = {};
  epilogue.steps = steps;
  epilogue.step_count = 2;
  op.epilogue = &epilogue;
  std::string reason;
  if (npu::kit::Try(&reason, [&] { builder.Add(&op); }) != NPU_OK) {
    std::puts(reason.c_str());
    return;
  }
  builder.MarkOutput(op.out);
  builder.Finish();
  Print(builder);
}

void Halves(const Driver& driver) {
  Builder builder;
  builder.driver = &driver;
  const npu_tensor_desc half = Matrix(NPU_FLOAT32, 2, 4), whole = Matrix(NPU_FLOAT32, 4, 4);
  const npu_tensor data[] = {builder.AddInput(&half), builder.AddInput(&half)};
  const npu_tensor out = builder.AddTensor(&whole, Source::kNode);
  for (int64_t i : {0, 1}) {
    npu_copy op = {};
    op.size = sizeof(op);
    op.data = data[i];
    op.out = out;
    op.permutation[1] = 1;
    for (int32_t d : {0, 1}) op.data_step[d] = op.out_step[d] = 1;
    op.out_offset[0] = 2 * i;
    std::string reason;
    if (npu::kit::Try(&reason, [&] { builder.Add(&op); }) != NPU_OK) {
      std::puts(reason.c_str());
      return;
    }
  }
  builder.MarkOutput(out);
  builder.Finish();
  Print(builder);
}

int main() {
  const npu_operand half = {NPU_OPERAND_TENSOR, 0, 0}, narrow = {NPU_OPERAND_TENSOR, 1, 0};
  for (bool mixed : {true, false}) {
    Driver driver = {};
    driver.reason = [](const Program&, const Node&) { return std::string(); };
    driver.integers = true;
    driver.mixed = mixed;
    Steps(driver, NPU_FLOAT16,
          {{NPU_STEP_MULTIPLY, 2, {half, narrow}, ""},
           {NPU_STEP_TANH, 1, {{NPU_OPERAND_STEP, 0, 0}}, ""}});
    Steps(driver, NPU_INT8, {{NPU_STEP_CAST, 1, {narrow}, ""}});
    Product(driver, NPU_INT8, NPU_FLOAT32);
    Product(driver, NPU_FLOAT16, NPU_FLOAT16);
    Halves(driver);
  }
}
"""
)


CHANNELS = (
    "#include <cmath>\n"
    + ADD_RESULT
    + """
const std::vector<float> kScales = {0.5f, 1, 2, 4};
const std::vector<int8_t> kZeros = {-3, 0, 5, 7};
const std::vector<int8_t> kSame = {-3, -3, -3, -3};

/*! \\brief What a driver does with a node: its one parameter, or that of the element. */
double ParameterOf(const Program& program, const Node& node, int which, int64_t element) {
  if (node.inputs[which] < 0) return node.numbers[which];
  const Value& each = program.At(node.inputs[which]);
  const Value& data = program.At(node.inputs[0]);
  int64_t inner = 1;
  for (int32_t i = node.quantization.axis + 1; i < data.rank; ++i) inner *= data.dims[i];
  const int64_t channel = element / inner % each.dims[0];
  if (which == 1) return static_cast<const float*>(program.Data(each))[channel];
  return static_cast<const int8_t*>(program.Data(each))[channel];
}

/*! \\brief Quantizes 2 x 4 x 1 numbers i, or dequantizes them. */
void Run(const Program& program, const Node& node) {
  for (int64_t i = 0; i < CountOf(program.At(node.out)); ++i) {
    const double scale = ParameterOf(program, node, 1, i), zero = ParameterOf(program, node, 2, i);
    const bool quantizes = node.kind == Kind::kQuantize;
    std::printf(" %g", quantizes ? std::nearbyint(i / scale) + zero : (i - zero) * scale);
  }
  std::puts("");
}

struct Case {
  bool quantizes;
  Dims scales, zeros;
  const std::vector<int8_t>& points;
  bool constant = true;
};

void Try(const Case& test) {
  Driver driver = {};
  driver.reason = [](const Program&, const Node&) { return std::string(); };
  driver.quantization = true;
  Builder builder;
  builder.driver = &driver;
  const auto desc = [](npu_dtype dtype, const Dims& dims) {
    npu_tensor_desc desc = {dtype, static_cast<int32_t>(dims.size()), {}};
    for (size_t i = 0; i < dims.size(); ++i) desc.dims[i] = {dims[i], -1};
    return desc;
  };
  const npu_dtype from = test.quantizes ? NPU_FLOAT32 : NPU_INT8;
  const npu_dtype to = test.quantizes ? NPU_INT8 : NPU_FLOAT32;
  const npu_tensor_desc data = desc(from, {2, 4, 1}), result = desc(to, {2, 4, 1});
  const npu_tensor_desc scales = desc(NPU_FLOAT32, test.scales), zeros = desc(NPU_INT8, test.zeros);
  builder.AddInput(&data);
  if (test.constant) {
    const int64_t count = CountOf(Builder::MakeValue(Source::kConstant, from, test.scales, 0));
    builder.AddConstantTensor(&scales, kScales.data(), static_cast<size_t>(count) * sizeof(float));
  } else {
    builder.AddInput(&scales);
  }
  const int64_t count = CountOf(Builder::MakeValue(Source::kConstant, from, test.zeros, 0));
  builder.AddConstantTensor(&zeros, test.points.data(), static_cast<size_t>(count));
  const npu_operand x = {NPU_OPERAND_TENSOR, 0, 0}, scale = {NPU_OPERAND_TENSOR, 1, 0},
                    zero = {NPU_OPERAND_TENSOR, 2, 0};
  const auto step = [](int32_t s) { return npu_operand{NPU_OPERAND_STEP, s, 0}; };
  const std::vector<npu_step> quantize = {{NPU_STEP_DIVIDE, 2, {x, scale}, ""},
                                          {NPU_STEP_ROUND_EVEN, 1, {step(0)}, ""},
                                          {NPU_STEP_ADD, 2, {step(1), zero}, ""}};
  const std::vector<npu_step> dequantize = {{NPU_STEP_SUBTRACT, 2, {x, zero}, ""},
                                            {NPU_STEP_MULTIPLY, 2, {step(0), scale}, ""}};
  const std::vector<npu_step>& steps = test.quantizes ? quantize : dequantize;
  if (!AddResult(&builder, result, steps)) return;
  const Program parsed = Parse(builder.bytes.data(), builder.bytes.size());
  const Node& node = parsed.nodes.at(0);
  std::printf("%s by %d %d:", NameOf(node).c_str(), node.inputs[1] >= 0, node.inputs[2] >= 0);
  Run(parsed, node);
  // Files whose parameters do not fit.
  const auto forge = [&](auto change) {
    if (node.inputs[1] < 0) return;
    Program forged = parsed;
    change(&forged.nodes[0], &forged.values[static_cast<size_t>(node.inputs[1])]);
    const std::vector<uint8_t> bytes = Serialize(forged);
    std::string reason;
    if (npu::kit::Try(&reason, [&] { Parse(bytes.data(), bytes.size()); }) == NPU_OK) {
      std::puts("a forged program is taken");
    }
  };
  forge([](Node* forged, Value*) { forged->quantization.axis = 0; });
  forge([](Node* forged, Value*) { forged->quantization.axis = 3; });
  forge([](Node* forged, Value*) { forged->quantization.axis = -1; });
  forge([](Node* forged, Value*) { forged->inputs[1] = forged->inputs[0]; });
  forge([](Node*, Value* each) { each->dtype = NPU_INT32; });
  forge([](Node*, Value* each) { each->dims[0] = 3; });
}

int main() {
  for (bool quantizes : {true, false}) {
    Try({quantizes, {4, 1}, {1, 4, 1}, kZeros});
    Try({quantizes, {4, 1}, {}, kZeros});
    Try({quantizes, {1}, {4, 1}, kZeros});
    // Equal ones are one.
    Try({quantizes, {4, 1}, {4, 1}, kSame});
    Try({quantizes, {1}, {4, 1}, kSame});
    // Along two dimensions; of each element; no constants.
    Try({quantizes, {2, 1, 1}, {4, 1}, kZeros});
    Try({quantizes, {2, 2}, {}, kZeros});
    Try({quantizes, {4, 1}, {}, kZeros, false});
  }
}
"""
)


BUFFERS = """
#include <cstdio>

#include "driver_kit/run.h"

using namespace npu::kit;

int main() {
  const std::vector<Value> ports = {{Source::kInput, NPU_FLOAT32, 2, 0, {2, 3}, 0}};
  const int64_t dims[] = {2, 3}, scalar[] = {0};
  float data[6] = {};
  const npu_buffer right = {sizeof(npu_buffer), NPU_FLOAT32, 2, dims, data, sizeof(data), nullptr};
  npu_buffer buffers[4] = {right, right, right, right};
  buffers[0].dtype = NPU_INT8;
  buffers[1].rank = 0;
  buffers[1].dims = scalar;
  buffers[2].bytes = 12;
  buffers[3].data = nullptr;
  std::string reason;
  for (const npu_buffer& buffer : buffers) {
    const npu_status status = Try(&reason, [&] { CheckedData(ports, 0, &buffer); });
    std::printf("%d %s\\n", status, reason.c_str());
  }
  return Try(&reason, [&] { CheckedData(ports, 0, &right); });
}
"""


TIMES = """
#include <cassert>
#include <cstdio>

#include "driver_kit/build.h"
#include "driver_kit/run.h"

using namespace npu::kit;

int graphs = 0;

/*! \\brief Adds; an internal value has its own memory. */
struct Plain {
  Plain(const Program& p, const std::vector<void*>& m) : program(p), memory(m) {
    ++graphs;
    for (size_t i = 0; i < p.values.size(); ++i) {
      if (memory[i] == nullptr) memory[i] = own.emplace_back(BytesOf(p.values[i])).data();
    }
  }
  ~Plain() { --graphs; }
  void Run() {
    for (const Node& node : program.nodes) {
      const auto at = [&](int32_t id) {
        return static_cast<float*>(memory[static_cast<size_t>(id)]);
      };
      for (int i = 0; i < 4; ++i) {
        at(node.out)[i] = at(node.inputs[0])[i] + at(node.inputs[1])[i];
      }
    }
  }
  const Program& program;
  std::vector<void*> memory;
  std::vector<Block> own;
};

/*! \\brief Its SDK runs the nodes at once on two engines. */
struct Timed : Plain {
  using Plain::Plain;
  std::vector<NodeTime> RunTimed() {
    Run();
    return {{0, 0, 30, 0, 0, "left"}, {1, 10, 20, 5, 7, "right"}};
  }
};

constexpr Driver kDriver = {"adder", "1", [](const Program&, const Node&) {
                              return std::string();
                            }};

/*! \\brief (a + a) + b; the second sum has a label of its own, or none. */
std::vector<uint8_t> Compile(bool is_old) {
  const npu_build_api api = BuildTable<kDriver>();
  npu_builder* builder = nullptr;
  assert(api.create(nullptr, 0, &builder) == NPU_OK);
  const npu_tensor_desc desc = {NPU_FLOAT32, 1, {{4, -1}}};
  npu_tensor a, b, twice, sum;
  api.add_input(builder, &desc, &a);
  api.add_input(builder, &desc, &b);
  api.add_tensor(builder, &desc, &twice);
  api.add_tensor(builder, &desc, &sum);
  const auto add = [&](npu_tensor x, npu_tensor y, npu_tensor out) {
    const npu_operand operands[] = {{NPU_OPERAND_TENSOR, x, 0}, {NPU_OPERAND_TENSOR, y, 0}};
    const npu_step step = {NPU_STEP_ADD, 2, {operands[0], operands[1]}, "add"};
    npu_vector_program program = {};
    program.steps = &step;
    program.step_count = 1;
    npu_elementwise op = {};
    op.size = sizeof(op);
    op.out = out;
    op.program = &program;
    assert(api.add_elementwise(builder, &op) == NPU_OK);
  };
  add(a, a, twice);
  api.set_label(builder, "relax.add (second)");
  add(twice, b, sum);
  api.mark_output(builder, sum);
  if (is_old) builder->program.labels.clear();
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  assert(api.finish(builder, &bytes, &size) == NPU_OK);
  const std::vector<uint8_t> result(bytes, bytes + size);
  api.destroy(builder);
  return result;
}

void Print(const npu_run_api& api, npu_request* request) {
  const npu_event* events = nullptr;
  size_t count = 0;
  double rate = 0;
  assert(api.read_events(request, &events, &count, &rate) == NPU_OK && rate == 1000);
  std::printf("%d graphs, %d events\\n", graphs, static_cast<int>(count));
  int64_t before = 0;
  for (size_t i = 0; i < count; ++i) {
    const npu_event& event = events[i];
    const bool in_order = event.begin >= before && event.busy == event.end - event.begin;
    before = event.begin;
    std::printf("%s of %s on %s%s", event.name, event.label == nullptr ? "nothing" : event.label,
                event.engine, in_order ? "" : ", not in order");
    for (size_t k = 0; k < event.traffic_count; ++k) {
      std::printf(", %d + %d", static_cast<int>(event.traffic[k].bytes_read),
                  static_cast<int>(event.traffic[k].bytes_written));
    }
    std::puts("");
  }
}

template <typename Recorder>
void Profile(bool is_old) {
  const std::vector<uint8_t> bytes = Compile(is_old);
  const npu_run_api api = RunTable<Plain, Recorder>("adder", "1");
  npu_program* program = nullptr;
  npu_request* request = nullptr;
  assert(api.load(nullptr, bytes.data(), bytes.size(), &program) == NPU_OK);
  assert(api.create_request(program, &request) == NPU_OK);
  const int64_t dims[] = {4};
  float a[] = {1, 2, 3, 4}, b[] = {10, 20, 30, 40}, sum[4];
  npu_buffer buffer = {sizeof(npu_buffer), NPU_FLOAT32, 1, dims, a, sizeof(a), nullptr};
  api.bind_input(request, 0, &buffer);
  buffer.data = b;
  api.bind_input(request, 1, &buffer);
  buffer.data = sum;
  api.bind_output(request, 0, &buffer);
  if (api.read_events == nullptr) {
    const bool is_absent = api.record_events == nullptr && api.event_unit == nullptr;
    std::puts(is_absent ? "absent" : "half of it");
  } else {
    for (int32_t on : {0, 1, 0}) {
      assert(api.record_events(request, on) == NPU_OK);
      a[0] += 1;
      assert(api.execute(request) == NPU_OK);
      assert(sum[0] == 2 * a[0] + 10 && sum[3] == 48);
      Print(api, request);
    }
  }
  api.destroy_request(request);
  api.unload(program);
  assert(graphs == 0);
}

int main() {
  Profile<Plain>(false);
  Profile<Timed>(false);
  Profile<NodeByNode<Plain>>(false);
  Profile<Timed>(true);
}
"""


EXCEPTIONS = """
#include <cassert>
#include <cstdio>
#include <stdexcept>

#include "driver_kit/build.h"
#include "driver_kit/run.h"

using namespace npu::kit;

bool is_reached = false;

constexpr Driver kDriver = {"broken", "1", [](const Program&, const Node&) {
                              if (!is_reached) throw std::runtime_error("no licence server");
                              return std::string();
                            }};

struct Graph {
  Graph(const Program&, const std::vector<void*>&) {}
  void Run() {
    if (is_reached) throw std::out_of_range("sdk broke");
    throw 1;
  }
};

int main() {
  const npu_build_api build = BuildTable<kDriver>();
  const npu_run_api api = RunTable<Graph>("broken", "1");
  npu_builder* builder = nullptr;
  assert(build.create(nullptr, 0, &builder) == NPU_OK);
  const npu_tensor_desc desc = {NPU_FLOAT32, 1, {{4, -1}}};
  npu_tensor data, out;
  build.add_input(builder, &desc, &data);
  build.add_tensor(builder, &desc, &out);
  const npu_step step = {NPU_STEP_RELU, 1, {{NPU_OPERAND_TENSOR, data, 0}}, "relu"};
  npu_vector_program program = {};
  program.steps = &step;
  program.step_count = 1;
  npu_elementwise op = {};
  op.size = sizeof(op);
  op.out = out;
  op.program = &program;
  npu_status status = build.add_elementwise(builder, &op);
  std::printf("%d %s\\n", status, build.error(builder));
  is_reached = true;
  assert(build.add_elementwise(builder, &op) == NPU_OK);
  build.mark_output(builder, out);
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  assert(build.finish(builder, &bytes, &size) == NPU_OK);
  npu_program* loaded = nullptr;
  npu_request* request = nullptr;
  assert(api.load(nullptr, bytes, size, &loaded) == NPU_OK);
  assert(api.create_request(loaded, &request) == NPU_OK);
  const int64_t dims[] = {4};
  float elements[8] = {};
  npu_buffer buffer = {sizeof(npu_buffer), NPU_FLOAT32, 1, dims, elements, sizeof(elements) / 2,
                       nullptr};
  api.bind_input(request, 0, &buffer);
  buffer.data = elements + 4;
  api.bind_output(request, 0, &buffer);
  for (bool reached : {true, false}) {
    is_reached = reached;
    status = api.execute(request);
    std::printf("%d %s\\n", status, api.error());
  }
  api.destroy_request(request);
  api.unload(loaded);
  build.destroy(builder);
}
"""


def _run_with_the_kit(source: str, tmp_path: Path) -> str:
    (tmp_path / "main.cc").write_text(source)
    include = ROOT / "template/engine/backend/include"
    run("c++", "-std=c++17", "-I", include, "-o", tmp_path / "main", tmp_path / "main.cc")
    return run(tmp_path / "main")


def test_a_later_step_of_an_epilogue_can_read_the_accumulator(tmp_path: Path) -> None:
    _run_with_the_kit(ACCUMULATOR, tmp_path)


def test_a_sum_of_integers_is_wide_until_the_last_step(tmp_path: Path) -> None:
    _run_with_the_kit(SUM, tmp_path)


def test_a_buffer_that_does_not_fit_is_refused_with_the_expected_size(tmp_path: Path) -> None:
    assert _run_with_the_kit(BUFFERS, tmp_path).splitlines() == [
        "2 it is int8[2, 3], but the program was compiled for float32[2, 3]",
        "2 it is float32[], but the program was compiled for float32[2, 3]",
        "2 it has 12 bytes, but float32[2, 3] has 24",
        "2 it has no memory",
    ]


def test_an_exception_of_the_sdk_is_an_error_of_the_device(tmp_path: Path) -> None:
    error = re.search(r"NPU_DEVICE_ERROR = (\d+)", HEADER.read_text())
    assert error is not None
    assert _run_with_the_kit(EXCEPTIONS, tmp_path).splitlines() == [
        f"{error[1]} no licence server",
        f"{error[1]} sdk broke",
        f"{error[1]} the SDK threw an exception that is no std::exception",
    ]


def test_quantize_and_dequantize_are_nodes_of_drivers_that_know_them(tmp_path: Path) -> None:
    """Element types are 0 for float32, 2 for int8; numbers are the scale and the zero point."""
    quantize, dequantize = "quantize(0 -> 2, 0.5, -3) ", "dequantize(2 -> 0, 0.5, -3) "
    mixed = "the driver kit has no nodes that mix element types"
    assert _run_with_the_kit(QUANTIZATION, tmp_path).splitlines() == [
        f"{quantize}forged: refused",
        dequantize,
        f"{dequantize}tanh(0 -> 0, 0, 0) {quantize}",
        *[mixed] * 4,
    ]


def test_mixed_nodes_are_for_drivers_that_say_so(tmp_path: Path) -> None:
    """Element types are 0 for float32, 1 for float16, 2 for int8, 4 for int32."""
    assert _run_with_the_kit(MIXED, tmp_path).splitlines() == [
        # Steps of real numbers are float32 until the last one.
        "multiply(1 2 -> 0[2, 4]) tanh(0 -> 1[2, 4]) ",
        "cast(2 -> 2[2, 4]) ",
        "matmul(2 2 -> 4[2, 4]) relu(4 -> 0[2, 4]) tanh(0 -> 0[2, 4]) ",
        "matmul(1 1 -> 0[2, 4]) tanh(0 -> 1[2, 4]) ",
        # The second copy also reads what the first one wrote.
        "copy(0 -> 0[4, 4]) copy(0 0 -> 0[4, 4]) ",
        "the driver kit has no nodes that mix element types",
        "a result is broadcast, for which there is no node",
        "the driver kit has no nodes that mix element types",
        "matmul(1 1 -> 1[2, 4]) tanh(1 -> 1[2, 4]) ",
        "there is no node that writes a part of a tensor",
    ]


def test_scales_and_zero_points_by_channel_are_constants_of_a_node(tmp_path: Path) -> None:
    """The two numbers after "by" say which are by channel; the driver's results follow."""
    numbers = range(8)
    scales, zeros = [0.5, 1, 2, 4] * 2, [-3, 0, 5, 7] * 2
    mixed = "the driver kit has no nodes that mix element types"
    expected = []
    for name in ("quantize", "dequantize"):

        def line(by: str, scales: list[float], zeros: list[int], name: str = name) -> str:
            triples = zip(numbers, scales, zeros, strict=True)
            if name == "quantize":
                results = [round(i / scale) + zero for i, scale, zero in triples]
            else:
                results = [(i - zero) * scale for i, scale, zero in triples]
            return f"{name} by {by}: {' '.join(f'{result:g}' for result in results)}"

        expected += [
            line("1 1", scales, zeros),
            line("1 0", scales, [-3] * 8),
            line("0 1", [0.5] * 8, zeros),
            line("1 0", scales, [-3] * 8),
            line("0 0", [0.5] * 8, [-3] * 8),
            *[mixed] * 3,
        ]
    assert _run_with_the_kit(CHANNELS, tmp_path).splitlines() == expected


def test_events_are_those_of_the_sdk_or_of_nodes_run_one_by_one(tmp_path: Path) -> None:
    """A graph without times has none; the others only while a profile records."""
    off = ["1 graphs, 0 events"]
    second = "add of relax.add (second) on"
    sdk = ["2 graphs, 2 events", "add of nothing on left", f"{second} right, 5 + 7", *off]
    alone = ["3 graphs, 2 events", "add of nothing on npu, 16 + 16", f"{second} npu, 32 + 16", *off]
    unlabelled = [line.replace("relax.add (second)", "nothing") for line in sdk]
    assert _run_with_the_kit(TIMES, tmp_path).splitlines() == [
        *("absent", *off, *sdk, *off, *alone, *off),
        *unlabelled,
    ]


# ---- A first op on an SDK that builds graphs ----------------------------------------------------


@pytest.mark.slow
@NEEDS_XNNPACK
def test_a_first_op_on_a_graph_sdk_takes_three_files_and_sixty_lines(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(render(**_answers("graph")), project)
    lines = {name: edit(project / "vendor" / name, edits) for name, edits in FIRST_OP.items()}
    assert len(lines) <= 3
    assert sum(lines.values()) <= 60, lines
    for page in ("driver.md", "port-guide.md"):
        assert f" {sum(lines.values())} lines" in (ROOT / "docs" / page).read_text(), page
    edit(project / "vendor/tests/test_driver.py", [("WRITTEN = ()", 'WRITTEN = ("relu",)')])
    python = workshop.environment(workshop.build(project))
    setting = {"GRAPH_NPU_DRIVER": "vendor"}
    out = run(python, "-m", "tvm_graph_npu", "check", cwd=tmp_path, **setting)
    assert "relu runs on the NPU, with right values" in out
    place = tmp_path / "tests"
    place.mkdir()
    _test(python, project, place)


# ---- A first op on an SDK that takes commands ---------------------------------------------------

FIRST_COMMAND = {
    "commands.h": [
        ("  kMove = 0,\n", "  kMove = 0,\n  /*! \\brief max(x, 0) of float32. */\n  kRelu = 1,\n"),
        ("kOpcodeCount = 1;", "kOpcodeCount = 2;"),
        ('{"move"}', '{"move", "relu"}'),
        ("    case Opcode::kMove:\n", "    case Opcode::kMove:\n    case Opcode::kRelu:\n"),
    ],
    "build.cc": [
        (
            "  switch (node.step) {\n",
            '  switch (node.step) {\n    case NPU_STEP_RELU:\n      return "";\n',
        ),
        (
            "    // Here: one case",
            """    case Kind::kStep:
      command.opcode = Opcode::kRelu;
      break;
    // Here: one case""",
        ),
    ],
    "run.cc": [
        (
            "        break;\n    }\n    ++counters",
            """        break;
      case Opcode::kRelu: {
        const auto* from = reinterpret_cast<const float*>(At(command.inputs[0]));
        auto* to = reinterpret_cast<float*>(At(command.out));
        for (uint64_t i = 0; i < command.out.bytes / sizeof(float); ++i) {
          to[i] = from[i] < 0 ? 0 : from[i];
        }
        break;
      }
    }
    ++counters""",
        ),
    ],
}

FOR_ONE_OP = ("artifact", "corner_cases", "deploy", "fusion", "inspect", "overlap", "partition")

CHAIN = """
import numpy as np
import tvm
from tvm import relax

import tvm_commands_npu as backend

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((4, 100), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        y = x
        for _ in range(6):
            y = builder.emit(relax.op.nn.relu(y))
        y = builder.emit_output((y, y, x))
    builder.emit_func_output(y)
options = {"driver": "vendor", "timeout_ms": 10_000}
mod = builder.get()
report = backend.offload_report(backend.partition_for_commands_npu(mod, **options))
assert len(report.offloaded) == 6 and len(report.regions) == 1, report
executable = backend.compile_for_commands_npu(mod, options=options)
executable.export_library("model.so")
given = np.random.default_rng(0).standard_normal((4, 100), dtype="float32")
machine = relax.VirtualMachine(executable, tvm.cpu())
for _ in range(50):
    found = machine["main"](tvm.runtime.tensor(given))
    np.testing.assert_array_equal(found[0].numpy(), np.maximum(given, 0))
    np.testing.assert_array_equal(found[1].numpy(), np.maximum(given, 0))
"""


@pytest.mark.slow
def test_a_first_op_on_a_command_sdk(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(render(**_answers("commands")), project)
    lines = [edit(project / "vendor/driver" / name, edits) for name, edits in FIRST_COMMAND.items()]
    assert sum(lines) <= 60, lines
    assert f"For relu these are {sum(lines)} lines." in (ROOT / "docs/driver.md").read_text()
    edit(project / "vendor/tests/test_driver.py", [("WRITTEN = ()", 'WRITTEN = ("relu",)')])
    # The unchanged backend, with the changed driver beside it.
    python = workshop.environment(workshop.wheel(render(**_answers("commands"))))
    package = site_packages(python) / "tvm_commands_npu"
    run(
        *("c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
        *("-I", project / "engine/backend/include", *(project / "vendor/driver").glob("*.cc")),
        *("-o", package / "libtvm_commands_npu_driver.so", "-lpthread"),
    )
    script = tmp_path / "chain.py"
    script.write_text(CHAIN)
    run(python, script, cwd=tmp_path)
    listing = run(python, "-m", "tvm_commands_npu", "inspect", "model.so", cwd=tmp_path)
    # In a chain of six results, two of 1600 bytes are live at a time.
    assert "arena: 3200 bytes" in listing, listing
    assert listing.count("relu ") >= 6
    place = tmp_path / "tests"
    place.mkdir()
    _test(python, project, place)
    # Tests that need another op, symbols or a second device are skipped with a reason.
    setting = {"COMMANDS_NPU_DRIVER": "vendor"}
    tests = support.engine_tests(*FOR_ONE_OP)
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=place, **setting)


# ---- An SDK that takes a model file -------------------------------------------------------------

TOOL_MODEL = """
import sys

import numpy as np
import tvm
from tvm import relax

import tvm_model_npu as backend

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((4, 100), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        y = builder.emit(relax.op.nn.relu(x))
        for _ in range(3):
            y = builder.emit(relax.op.add(y, x))
        y = builder.emit_output(relax.op.clip(y, -1, 1))
    builder.emit_func_output(y)
options = {"driver": "vendor", "sdk_folder": sys.argv[1]}
if len(sys.argv) > 2:
    options["sdk_command"] = " ".join(sys.argv[2:])
report = backend.offload_report(backend.partition_for_model_npu(builder.get(), **options))
print(len(report.offloaded), "ops in", len(report.regions), "regions")
for op in report.ops:
    if op.reason:
        print(op.op, op.reason)
executable = backend.compile_for_model_npu(builder.get(), options=options)
executable.export_library("model.so")
machine = relax.VirtualMachine(tvm.runtime.load_module("model.so"), tvm.cpu())
given = np.random.default_rng(0).standard_normal((4, 100), dtype="float32")
found = machine["main"](tvm.runtime.tensor(given)).numpy()
np.testing.assert_allclose(found, np.clip(np.maximum(given, 0) + 3 * given, -1, 1), rtol=1e-6)
"""

CRASHING = """
import os
import sys
from pathlib import Path

# As the compiler of the SDK, but it crashes at a sum.
sys.path.append(str(Path(sys.argv.pop(1))))
import compile
from npu_region import run_tool


def compile_region(region):
    for node in region.nodes:
        region.at(node)
        if node.op == "add":
            os.abort()
    return compile.compile_region(region)


sys.exit(run_tool("crashing 1", compile.reason, compile_region))
"""


@pytest.mark.slow
def test_an_sdk_that_takes_a_model_file(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = render(**_answers("model"))
    python = workshop.environment(workshop.wheel(project))
    script, crashing = tmp_path / "model.py", tmp_path / "crashing.py"
    script.write_text(TOOL_MODEL)
    crashing.write_text(CRASHING)
    folder = tmp_path / "kept"
    lines = run(python, script, folder, cwd=tmp_path).splitlines()
    assert lines[0] == "4 ops in 1 regions"
    assert "clip" in lines[1] and lines[1].endswith("the driver has no clip yet")
    # The region is tried, and then compiled: the tool has seen it once.
    assert len(list(folder.glob("*/program.bin"))) == 1
    listing = run(python, "-m", "tvm_model_npu", "inspect", "model.so", cwd=tmp_path)
    assert listing.count("add -> 4 x 100") == 3, listing

    # A crash of the tool is no crash of the compiler: the ops at which it crashes are on the host.
    sdk = site_packages(python) / "tvm_model_npu/vendor/sdk"
    words = (python, crashing, sdk)
    lines = run(python, script, tmp_path / "crashed", *words, cwd=tmp_path).splitlines()
    assert lines[0] == "1 ops in 1 regions"
    crashes = [line for line in lines if "the SDK's tool crashed (signal 6, Aborted)" in line]
    assert len(crashes) == 3, lines

    # Another tool, which no Python can run.
    lines = run(python, script, folder, "/no/such/tool", cwd=tmp_path).splitlines()
    assert lines[0] == "0 ops in 0 regions"
    assert "the SDK's tool cannot be started: there is no /no/such/tool" in lines[1]
    setting = {"MODEL_NPU_DRIVER": "vendor", "MODEL_NPU_SDK_COMMAND": "/no/such/tool"}
    done = attempt(python, "-m", "tvm_model_npu", "check", cwd=tmp_path, **setting)
    absent = "The SDK's tool cannot be started: there is no /no/such/tool. Name the SDK's Python: "
    assert done.returncode == 1 and done.stdout.count("there is no /no/such/tool") == 1, done.stdout
    assert f"{absent}export MODEL_NPU_SDK_COMMAND=" in done.stdout
    assert "narrow capabilities.py" not in done.stdout


ONNX_OVERLAY = ROOT / "tests/overlays/onnxruntime/vendor"
ONNX_MODEL = """
import sys

import numpy as np
import tvm
from tvm import relax

import tvm_acme_npu as backend

random = np.random.default_rng(0)
weight = random.standard_normal((6, 3, 3, 3), dtype="float32")
bias = random.standard_normal((1, 6, 1, 1), dtype="float32")
scales = (np.abs(weight).max(axis=(1, 2, 3)) / 127).astype("float32")
integers = np.round(weight / scales[:, None, None, None]).astype("int8")


def scaled(op, data, scale, zero, axis=-1):
    kind = {"out_dtype": "int8"} if op is relax.op.quantize else {}
    return op(data, relax.const(scale), relax.const(np.int8(zero)), axis=axis, **kind)


def model(quantized):
    # A convolution network, perhaps one of int8 as importers give it.
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 9, 8), "float32"))

    def rounded(y, scale, zero):
        if quantized:
            y = builder.emit(scaled(relax.op.quantize, y, np.float32(scale), zero))
            y = builder.emit(scaled(relax.op.dequantize, y, np.float32(scale), zero))
        return y

    with builder.function("main", [x]):
        with builder.dataflow():
            y, w = rounded(x, 0.03, 5), relax.const(weight)
            if quantized:
                zeros = relax.const(np.zeros(6, "int8"))
                w = relax.op.dequantize(relax.const(integers), relax.const(scales), zeros, axis=0)
                w = builder.emit(w)
            y = builder.emit(relax.op.nn.conv2d(y, w, strides=[2, 1], padding=[1, 0, 1, 2]))
            y = builder.emit(relax.op.add(y, relax.const(bias)))
            y = rounded(builder.emit(relax.op.nn.relu(y)), 0.1, -128)
            y = builder.emit(relax.op.nn.max_pool2d(y, [3, 3], [2, 2], ceil_mode=True))
            y = builder.emit(relax.op.reshape(rounded(y, 0.1, -128), (2, -1)))
            y = builder.emit_output(builder.emit(relax.op.clip(y, 0.5, 2)))
        builder.emit_func_output(y)
    return builder.get()


given = random.standard_normal((2, 3, 9, 8), dtype="float32")
"""
ONNX_VALUES = """
for quantized, atol in ((False, 1e-6), (True, 0.1001)):
    mod = model(quantized)
    options = {"driver": "vendor", "sdk_folder": f"kept{int(quantized)}"}
    report = backend.offload_report(backend.partition_for_acme_npu(mod, **options))
    assert len(report.offloaded) == len(report.ops) and len(report.regions) == 1, report
    npu = relax.VirtualMachine(backend.compile_for_acme_npu(mod, options=options), tvm.cpu())
    host = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    found, expected = (it["main"](tvm.runtime.tensor(given)).numpy() for it in (npu, host))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)
    # Of integers, few are a step off.
    assert (np.abs(found - expected) > 1e-5).mean() < 0.05
"""


@pytest.fixture(scope="module")
def onnx_backend(
    render: Callable[..., Path], workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Return a backend that has ONNX Runtime as its SDK, and the Python that has it installed."""
    pytest.importorskip("onnxruntime")
    project = tmp_path_factory.mktemp("onnx") / "project"
    whole = ["concat", "conv2d_transpose", "softmax"]
    ops = sorted([*OPS, *whole, "dequantize", "quantize"])
    answers = {"backend_name": "acme_npu", "ops": ops}
    shutil.copytree(render(**(_answers("model") | answers)), project)
    shutil.copytree(ONNX_OVERLAY, project / "vendor", dirs_exist_ok=True)
    return project, workshop.environment(workshop.wheel(project))


@pytest.mark.slow
def test_onnx_runtime_as_an_sdk_in_an_interpreter_of_its_own(
    onnx_backend: tuple[Path, Path], tmp_path: Path
) -> None:
    """As docs/model-file.md does it."""
    _, python = onnx_backend
    package = site_packages(python) / "tvm_acme_npu"
    script = tmp_path / "model.py"
    script.write_text(ONNX_MODEL + ONNX_VALUES)
    command = f"{sys.executable} {package / 'vendor/sdk/compile.py'}"
    setting = {"ACME_NPU_SDK_COMMAND": command, "ACME_NPU_DRIVER": "vendor"}
    run(python, script, cwd=tmp_path, **setting)
    for kept in ("kept0", "kept1"):
        assert len(list(tmp_path.glob(f"{kept}/*/program.bin"))) == 1
    (region,) = tmp_path.glob("kept1/*/region.json")
    data = json.loads(region.read_text())
    values = {value["name"]: value for value in data["values"]}
    (node,) = (node for node in data["nodes"] if node["op"] == "convolution")
    types = [values[name]["dtype"] for name in (*node["inputs"], node["output"])]
    assert types == ["int8", "int8", "int32", "int8"]
    assert len(values[node["inputs"][1]]["quantization"]["scale"]) == 6
    # Each case starts the tool twice.
    chosen = ["ops/conv2d_transpose-", "ops/concat-", "ops/softmax-", "composites/conv2d-"]
    suites = ["--suite", "ops,composites", *(f"--filter={name}" for name in chosen)]
    suites += IN_ONE_PROCESS
    out = run(python, "-m", "tvm_acme_npu", "conformance", *suites, cwd=tmp_path, **setting)
    assert re.search(r"PASSED: [1-9]\d* passed, 0 failed", out), out


QUANTIZING = """
import sys
import tempfile
from pathlib import Path

from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

# As the SDK of the overlay, but it computes with int8 alone.
sys.path.append(sys.argv.pop(1))
import compile
from npu_region import Declined, run_tool, to_onnx


class Samples(CalibrationDataReader):
    def __init__(self, region):
        self.rest = iter(region.calibration)
        self.read = [value.input for value in region.values.values() if value.source == "input"]

    def get_next(self):
        sample = next(self.rest, None)
        return None if sample is None else {f"input{i}": sample[i] for i in self.read}


def compile_region(region):
    if not region.calibration:
        raise Declined("the SDK computes with int8: give calibration_data")
    for node in region.nodes:
        if node.op == "convolution":
            region.warn("its weights get a scale for each channel", node)
    with tempfile.TemporaryDirectory() as folder:
        source, result = (Path(folder) / name for name in ("float.onnx", "int8.onnx"))
        source.write_bytes(to_onnx(region))
        types = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
        quantize_static(source, result, Samples(region), per_channel=True, **types)
        return result.read_bytes()


sys.exit(run_tool("quantizing 1", compile.reason, compile_region, compile.load))
"""

CALIBRATED = """
mod = model(False)
options = {"driver": "vendor", "sdk_folder": "kept"}
report = backend.offload_report(backend.partition_for_acme_npu(mod, **options))
# A view needs no SDK.
assert {op.op for op in report.offloaded} <= {"relax.reshape"}, report
assert all("int8: give calibration_data" in op.reason for op in report.on_host)

data = [random.standard_normal((2, 3, 9, 8), dtype="float32") for _ in range(8)]
np.savez("data.npz", x=np.stack(data))
with open("model.json", "w") as file:
    file.write(tvm.ir.save_json(mod))
partitioned = backend.partition_for_acme_npu(mod, calibration_data=data, **options)
report = backend.offload_report(partitioned)
assert len(report.offloaded) == len(report.ops) and len(report.regions) == 1, report
(warning,) = report.regions[0].warnings
assert warning.startswith("relax.nn.conv2d (lv") and warning.endswith("a scale for each channel")
host = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
expected = host["main"](tvm.runtime.tensor(given)).numpy()
for sizes in (1, 1, 3):
    found = backend.compile_for_acme_npu(
        mod, calibration_data=[x / sizes for x in data], cache_dir=sys.argv[1], options=options
    )
    found = relax.VirtualMachine(found, tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy()
    # Its quantizer leaves out clips, as if they were at 0.
    errors = np.abs(np.maximum(found, 0.5) - expected)
    # Near the real numbers, but no longer them; data of a third of the size cut off.
    assert (1e-4 < errors.max() < 0.15) == (sizes == 1), errors.max()
"""


@pytest.mark.slow
def test_an_sdk_that_quantizes_by_itself_is_calibrated_by_what_enters_a_region(
    onnx_backend: tuple[Path, Path], tmp_path: Path
) -> None:
    project, python = onnx_backend
    tool, script = tmp_path / "quantizing.py", tmp_path / "model.py"
    tool.write_text(QUANTIZING)
    script.write_text(ONNX_MODEL + CALIBRATED)
    command = f"{sys.executable} {tool} {site_packages(python) / 'tvm_acme_npu/vendor/sdk'}"
    setting = {"ACME_NPU_SDK_COMMAND": command, "ACME_NPU_DRIVER": "vendor"}
    run(python, script, "cache", cwd=tmp_path, **setting)
    programs = sorted(tmp_path.glob("kept/*/program.bin"))
    assert len(programs) == 2 and all(b"QuantizeLinear" in it.read_bytes() for it in programs)
    # Other data are another program, and so is another SDK.
    cached = tmp_path / "cache"
    assert len(list(cached.glob("*.artifact"))) == 2
    tool.write_text(QUANTIZING.replace("quantizing 1", "quantizing 2"))
    run(python, script, "cache", cwd=tmp_path, **setting)
    assert len(list(cached.glob("*.artifact"))) == 4

    given = ("--calibration", "data.npz", "--report", "report.json")
    out = run(
        python, "-m", "tvm_acme_npu", "compile", "model.json", *given, cwd=tmp_path, **setting
    )
    assert "regions: 1, warnings of the driver: 1" in out, out
    report = json.loads((tmp_path / "report.json").read_text())
    assert "a scale for each channel" in report["regions"][0]["warnings"][0]

    # A driver with channels last has the samples in its order.
    source = tmp_path / "last/driver/build.cc"
    shutil.copytree(project / "vendor/driver", source.parent)
    edit(source, [("    __FILE__,\n", "    __FILE__,\n    true,\n")])
    edit(source, [("/*channels_last*/ false", "/*channels_last*/ true")])
    run(
        *("c++", "-std=c++17", "-O1", "-shared", "-fPIC", *source.parent.glob("*.cc"), "-I"),
        *(project / "engine/backend/include", "-o", tmp_path / "last/libtvm_acme_npu_driver.so"),
        *("-lpthread", "-ldl"),
    )
    shutil.rmtree(tmp_path / "kept")
    setting["ACME_NPU_DRIVER_DIR"] = str(tmp_path / "last")
    run(python, script, "", cwd=tmp_path, **setting)
    expected = np.load(tmp_path / "data.npz")["x"].transpose(0, 1, 3, 4, 2)
    found = [np.load(path) for path in tmp_path.glob("kept/*/calibration/input0.npy")]
    assert [array.shape for array in found] == [expected.shape] * 2
    assert any(np.array_equal(array, expected) for array in found)


HANGING = """
import ctypes
import os
import sys

# As the SDK of the overlay, but it hangs where it is told to, as a call into a library does.
sys.path.append(sys.argv.pop(1))
import compile
from npu_region import run_tool


def hang(where):
    if os.environ.get("HANG") == where:
        ctypes.PyDLL(None).sleep(600)


def load(program):
    hang("load")
    run = compile.load(program)

    def hanging(inputs):
        hang("run")
        return run(inputs)

    return hanging


sys.exit(run_tool("hanging 1", compile.reason, compile.compile_region, load))
"""

INTERRUPTED = """
import os
import signal
import threading

mod = model(False)


def called(where, interrupts=True, **options):
    # What a call says where the tool hangs, and whether the next one, where it does not, is right.
    options["driver"] = "vendor"
    machine = relax.VirtualMachine(backend.compile_for_acme_npu(mod, options=options), tvm.cpu())
    os.environ["HANG"] = where
    timer = threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT))
    if interrupts:
        timer.start()
    try:
        machine["main"](tvm.runtime.tensor(given))
        said = "nothing"
    except (KeyboardInterrupt, RuntimeError) as error:
        said = f"{type(error).__name__} {error}"
    timer.cancel()
    os.environ["HANG"] = ""
    found = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return said


# A shell starts what runs in the background with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
host = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
expected = host["main"](tvm.runtime.tensor(given)).numpy()
assert called("load").startswith("KeyboardInterrupt")
assert called("run").startswith("KeyboardInterrupt")
late = called("run", False, timeout_ms=1000)
assert "was cancelled: it took longer than the 1000 ms" in late, late
late = called("load", False, sdk_timeout_s=5)
assert "the SDK's tool gave no answer in 5 s" in late, late
"""


@pytest.mark.slow
def test_a_runtime_that_hangs_ends_by_ctrl_c_and_by_both_limits(
    onnx_backend: tuple[Path, Path], tmp_path: Path
) -> None:
    _, python = onnx_backend
    tool, script = tmp_path / "hanging.py", tmp_path / "model.py"
    tool.write_text(HANGING)
    script.write_text(ONNX_MODEL + INTERRUPTED)
    command = f"{sys.executable} {tool} {site_packages(python) / 'tvm_acme_npu/vendor/sdk'}"
    run(python, script, cwd=tmp_path, ACME_NPU_SDK_COMMAND=command)
