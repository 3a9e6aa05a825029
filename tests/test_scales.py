"""Integers by scales on tensors: what the kit makes of them, and a plain driver that has them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import (
    IN_ONE_PROCESS,
    ROOT,
    Workshop,
    attempt,
    build_kit_driver,
    lend_packages,
    run,
    site_packages,
)

INCLUDE = ROOT / "template/engine/backend/include"
DRIVER = ROOT / "tests/scales_driver.cc"

MAKER = (
    DRIVER.read_text()
    + r"""
#include <cstdio>

namespace {

const npu_tensor_desc kImage = {NPU_INT8, 4, {{1, -1}, {2, -1}, {3, -1}, {3, -1}}};
const npu_tensor_desc kWeight = {NPU_INT8, 4, {{4, -1}, {2, -1}, {1, -1}, {1, -1}}};
const npu_tensor_desc kBias = {NPU_INT32, 3, {{4, -1}, {1, -1}, {1, -1}}};
const npu_tensor_desc kResult = {NPU_INT8, 4, {{1, -1}, {4, -1}, {3, -1}, {3, -1}}};
const int8_t kWeights[] = {1, 2, 3, 4, 5, 6, 7, -8};
const int32_t kBiases[] = {10, 20, 30, 40};

struct Maker {
  npu_build_api api = BuildTable<kDriver>();
  npu_builder* builder = nullptr;

  explicit Maker(const char* lacks) {
    const npu_option option = {"lacks", lacks};
    api.create(&option, 1, &builder);
  }
  ~Maker() { api.destroy(builder); }

  void Check(npu_status status) const {
    if (status != NPU_OK) std::printf("declined: %s\n", api.error(builder));
  }
  npu_tensor Input(const npu_tensor_desc& desc) {
    npu_tensor id = -1;
    Check(api.add_input(builder, &desc, &id));
    return id;
  }
  npu_tensor Constant(const npu_tensor_desc& desc, const void* data, size_t size) {
    npu_tensor id = -1;
    Check(api.add_constant(builder, &desc, data, size, &id));
    return id;
  }
  npu_tensor Tensor(const npu_tensor_desc& desc) {
    npu_tensor id = -1;
    Check(api.add_tensor(builder, &desc, &id));
    return id;
  }
  npu_tensor Scaled(npu_tensor id, std::vector<float> scales, std::vector<int32_t> zeros,
                    int32_t axis = 0) {
    const npu_quantization what = {sizeof(what), static_cast<int32_t>(scales.size()), axis,
                                   scales.data(), zeros.data()};
    Check(api.set_quantization(builder, id, &what));
    return id;
  }
  void Print() {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    Check(api.finish(builder, &bytes, &size));
    if (bytes == nullptr) return;
    const Program program = Parse(bytes, size);
    for (const Node& node : program.nodes) {
      std::printf("%s", NameOf(node).c_str());
      const auto value = [&](const char* role, int32_t id) {
        if (id < 0) return;
        std::printf(" %s type %d", role, program.At(id).dtype);
        const Scales* scales = program.ScalesOf(id);
        for (size_t i = 0; scales != nullptr && i < scales->scales.size(); ++i) {
          std::printf("%s%g %d", i == 0 ? " (" : ", ", static_cast<double>(scales->scales[i]),
                      scales->zero_points[i]);
        }
        if (scales != nullptr) std::printf(") axis %d", scales->axis);
      };
      value("a", node.inputs[0]);
      value("b", node.inputs[1]);
      value("c", node.inputs[2]);
      value("->", node.out);
      if (std::isfinite(node.least)) std::printf(" from %g", static_cast<double>(node.least));
      std::puts("");
    }
    // Damaged scales are refused: of no such value, too few, of a value of real numbers.
    for (const char* text : {"99 0 1065353216 0", "0 0 1", "x", "0 9 1 0 1 0"}) {
      Program forged;
      forged.values = program.values;
      if (ReadScales(text, &forged)) std::printf("'%s' is taken\n", text);
    }
  }
};

}  // namespace
"""
)

CONVOLUTIONS = (
    MAKER
    + r"""
namespace {

/*! \brief A convolution with a bias, perhaps a residual, and a relu. */
void Convolve(const char* lacks, bool has_residual, bool is_real) {
  std::printf("-- %s%s\n", lacks, has_residual ? " residual" : is_real ? " real" : "");
  Maker maker(lacks);
  npu_convolution op = {};
  op.size = sizeof(op);
  op.data = maker.Scaled(maker.Input(kImage), {0.5f}, {3});
  op.weight =
      maker.Scaled(maker.Constant(kWeight, kWeights, 8), {1, 2, 4, 8}, {0, 0, 0, 0});
  const npu_tensor bias =
      maker.Scaled(maker.Constant(kBias, kBiases, 16), {0.5f, 1, 2, 4}, {0, 0, 0, 0});
  npu_tensor_desc result = kResult;
  if (is_real) result.dtype = NPU_FLOAT32;
  op.out = maker.Tensor(result);
  if (!is_real) maker.Scaled(op.out, {0.25f}, {-7});
  op.spatial_rank = 2;
  op.strides[0] = op.strides[1] = op.dilations[0] = op.dilations[1] = op.groups = 1;
  std::vector<npu_step> steps = {
      {NPU_STEP_BIAS, 2, {{NPU_OPERAND_ACCUMULATOR, 0, 0}, {NPU_OPERAND_TENSOR, bias, 0}}, ""}};
  if (has_residual) {
    const npu_tensor other = maker.Scaled(maker.Input(kResult), {2}, {1});
    steps.push_back(
        {NPU_STEP_RESIDUAL, 2, {{NPU_OPERAND_STEP, 0, 0}, {NPU_OPERAND_TENSOR, other, 0}}, ""});
  }
  steps.push_back(
      {NPU_STEP_RELU, 1, {{NPU_OPERAND_STEP, static_cast<int32_t>(steps.size()) - 1, 0}}, ""});
  npu_vector_program epilogue = {};
  epilogue.size = sizeof(epilogue);
  epilogue.steps = steps.data();
  epilogue.step_count = static_cast<int32_t>(steps.size());
  op.epilogue = &epilogue;
  maker.Check(maker.api.add_convolution(maker.builder, &op));
  maker.Check(maker.api.mark_output(maker.builder, op.out));
  maker.Print();
}

}  // namespace

int main() {
  Convolve("", false, false);
  Convolve("limits", false, false);
  Convolve("", true, false);
  Convolve("real results", true, false);
  Convolve("integers", false, false);
  Convolve("", false, true);
  // What no tensor can have.
  Maker maker("");
  const npu_tensor image = maker.Input(kImage);
  maker.Scaled(image, {1, 2}, {0, 0}, 0);
  maker.Scaled(image, {0}, {0});
  npu_tensor_desc real = kImage;
  real.dtype = NPU_FLOAT32;
  maker.Scaled(maker.Input(real), {1}, {0});
  return 0;
}
"""
)

STEPS = (
    MAKER
    + r"""
namespace {

const npu_tensor_desc kMatrix = {NPU_INT8, 2, {{2, -1}, {4, -1}}};
const npu_tensor_desc kReals = {NPU_FLOAT32, 2, {{2, -1}, {4, -1}}};
const npu_operand kA = {NPU_OPERAND_TENSOR, 0, 0}, kB = {NPU_OPERAND_TENSOR, 1, 0};
const npu_operand kFirst = {NPU_OPERAND_STEP, 0, 0}, kTwo = {NPU_OPERAND_NUMBER, 0, 2};

/*! \brief Steps on two matrices; runs the program, also node by node. */
void Compute(const char* name, npu_dtype from, npu_dtype to, std::vector<npu_step> steps,
             const char* lacks = "") {
  std::printf("-- %s\n", name);
  Maker maker(lacks);
  npu_tensor_desc data = from == NPU_INT8 ? kMatrix : kReals;
  npu_tensor a = maker.Input(data), b = maker.Input(kMatrix);
  if (from == NPU_INT8) maker.Scaled(a, {0.5f, 1, 2, 4}, {1, 2, 3, 4}, 1);
  maker.Scaled(b, {0.25f}, {-2});
  const npu_tensor out = maker.Tensor(to == NPU_INT8 ? kMatrix : kReals);
  if (to == NPU_INT8) maker.Scaled(out, {0.5f}, {3});
  npu_vector_program program = {};
  program.size = sizeof(program);
  program.steps = steps.data();
  program.step_count = static_cast<int32_t>(steps.size());
  npu_elementwise op = {sizeof(op), out, &program};
  maker.Check(maker.api.add_elementwise(maker.builder, &op));
  maker.Check(maker.api.mark_output(maker.builder, out));
  maker.Print();

  const std::vector<uint8_t>& bytes = maker.builder->bytes;
  const npu_run_api* run = npu_driver_run(NPU_DRIVER_API_VERSION);
  npu_program* loaded = nullptr;
  npu_request* request = nullptr;
  if (run->load(nullptr, bytes.data(), bytes.size(), &loaded) != NPU_OK ||
      run->create_request(loaded, &request) != NPU_OK) {
    return;
  }
  const int64_t dims[] = {2, 4};
  int8_t integers[8] = {3, 6, 9, 12, -1, -2, -3, -4}, others[8] = {2, 6, 10, 14, 0, 0, 0, 0};
  float reals[8] = {-10, 0.3f, 0.8f, 1, 2, 3, 4, 100}, found[8];
  int8_t stored[8];
  const auto bind = [&](const auto& function, size_t index, npu_dtype dtype, void* place) {
    const npu_buffer buffer = {sizeof(buffer), dtype, 2, dims, place,
                               dtype == NPU_INT8 ? size_t{8} : sizeof(reals), nullptr};
    function(request, index, &buffer);
  };
  if (from == NPU_INT8) bind(run->bind_input, 0, NPU_INT8, integers);
  if (from != NPU_INT8) bind(run->bind_input, 0, NPU_FLOAT32, reals);
  bind(run->bind_input, 1, NPU_INT8, others);
  if (to == NPU_INT8) bind(run->bind_output, 0, NPU_INT8, stored);
  if (to != NPU_INT8) bind(run->bind_output, 0, NPU_FLOAT32, found);
  for (int32_t one_by_one : {0, 1}) {
    run->record_events(request, one_by_one);
    if (run->execute(request) != NPU_OK) std::printf("%s\n", run->error());
    for (int i = 0; i < 8; ++i) {
      std::printf("%s%g", i == 0 ? "" : " ",
                  to == NPU_INT8 ? stored[i] : static_cast<double>(found[i]));
    }
    std::puts("");
  }
  run->destroy_request(request);
  run->unload(loaded);
}

}  // namespace

int main() {
  const npu_step add = {NPU_STEP_ADD, 2, {kA, kB}, ""}, cast = {NPU_STEP_CAST, 1, {kA}, ""};
  const npu_step relu = {NPU_STEP_RELU, 1, {kFirst}, ""};
  const npu_step twice = {NPU_STEP_MULTIPLY, 2, {kFirst, kTwo}, ""};
  Compute("add", NPU_INT8, NPU_INT8, {add});
  Compute("add relu", NPU_INT8, NPU_INT8, {add, relu});
  Compute("add, relu", NPU_INT8, NPU_INT8, {add, relu}, "limits");
  Compute("add multiply", NPU_INT8, NPU_INT8, {add, twice});
  Compute("add to real", NPU_INT8, NPU_FLOAT32, {add});
  Compute("rescale", NPU_INT8, NPU_INT8, {cast});
  Compute("quantize", NPU_FLOAT32, NPU_INT8, {cast});
  Compute("dequantize", NPU_INT8, NPU_FLOAT32, {cast});
  return 0;
}
"""
)

DATA = "a type 2 (0.5 3) axis 0"
WEIGHT = "b type 2 (1 0, 2 0, 4 0, 8 0) axis 0"
BIAS = "c type 4 (0.5 0, 1 0, 2 0, 4 0) axis 0"
RESULT = "-> type 2 (0.25 -7) axis 0"
CONVOLUTION = f"convolution {DATA} {WEIGHT} {BIAS}"
TO_REAL = "-> type 0"
REFUSED = "declined: a tensor cannot have such scales"


def _program(source: str, tmp_path: Path) -> str:
    (tmp_path / "main.cc").write_text(source)
    warnings = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
    run("c++", *warnings, "-I", INCLUDE, "-o", tmp_path / "main", tmp_path / "main.cc")
    return run(tmp_path / "main")


def test_an_operation_on_integers_is_one_node_or_computed_with_real_numbers(
    tmp_path: Path,
) -> None:
    """Element types are 0 for float32, 2 for int8, 4 for int32; pairs are scale and zero point."""
    float_form = [
        f"dequantize {DATA} {TO_REAL}",
        f"convolution a type 0 b type 0 c type 0 {TO_REAL} from 0",
        f"quantize a type 0 {RESULT}",
    ]
    assert _program(CONVOLUTIONS, tmp_path).splitlines() == [
        "-- ",
        f"{CONVOLUTION} {RESULT} from 0",
        "-- limits",
        f"{CONVOLUTION} {RESULT}",
        f"relu a{RESULT[2:]} {RESULT}",
        "--  residual",
        f"{CONVOLUTION} {TO_REAL}",
        f"dequantize a type 2 (2 1) axis 0 {TO_REAL}",
        f"residual a type 0 b type 0 {TO_REAL}",
        f"relu a type 0 {TO_REAL}",
        f"quantize a type 0 {RESULT}",
        "-- real results residual",
        float_form[0],
        f"convolution a type 0 b type 0 c type 0 {TO_REAL}",
        f"dequantize a type 2 (2 1) axis 0 {TO_REAL}",
        f"residual a type 0 b type 0 {TO_REAL}",
        f"relu a type 0 {TO_REAL}",
        f"quantize a type 0 {RESULT}",
        "-- integers",
        *float_form,
        "--  real",
        f"{CONVOLUTION} {TO_REAL} from 0",
        *[REFUSED] * 3,
    ]


def test_steps_on_integers_are_one_node_or_computed_with_real_numbers(tmp_path: Path) -> None:
    """The driver computes each program as a whole, and node by node as for a profile."""
    a, b = "type 2 (0.5 1, 1 2, 2 3, 4 4) axis 1", "type 2 (0.25 -2) axis 0"
    out, real = "-> type 2 (0.5 3) axis 0", TO_REAL
    reals = [
        f"dequantize a {a} b type 0 c type 4 {real}",  # b and c are the scales and zero points.
        f"dequantize a {b} {real}",
        f"add a type 0 b type 0 {real}",
        f"multiply a type 0 b type 0 {real}",
        f"quantize a type 0 {out}",
    ]
    sums = [2, 6, 15, 36, -0.5, -3.5, -11.5, -31.5]
    first = [1, 4, 12, 32, -1, -4, -12, -32]
    given = [-10, 0.3, 0.8, 1, 2, 3, 4, 100]
    expected = []
    for name, nodes, values in (
        ("add", [f"add a {a} b {b} {out}"], sums),
        ("add relu", [f"add a {a} b {b} {out} from 0"], [max(value, 0) for value in sums]),
        (
            "add, relu",
            [f"add a {a} b {b} {out}", f"relu a{out[2:]} {out}"],
            [max(value, 0) for value in sums],
        ),
        ("add multiply", reals, [2 * value for value in sums]),
        ("add to real", [f"add a {a} b {b} {real}"], sums),
        ("rescale", [f"quantize a {a} {out}"], first),
        ("quantize", [f"quantize a type 0 {out}"], given),
        ("dequantize", reals[:1], first),
    ):
        is_real = name in ("add to real", "dequantize")
        results = values if is_real else [min(round(value / 0.5) + 3, 127) for value in values]
        line = " ".join(f"{result:g}" for result in results)
        expected += [f"-- {name}", *nodes, line, line]
    assert _program(STEPS, tmp_path).splitlines() == expected


@pytest.mark.parametrize("layout", [0, 1])
def test_the_plain_driver_compiles(layout: int, tmp_path: Path) -> None:
    build_kit_driver(DRIVER, tmp_path / "driver.so", "-O0", f"-DCHANNELS_LAST={layout}")


OPS = [
    "add",
    "avg_pool2d",
    "clip",
    "concat",
    "conv2d",
    "conv2d_transpose",
    "depthwise_conv2d",
    "dequantize",
    "divide",
    "flatten",
    "hard_swish",
    "matmul",
    "max_pool2d",
    "mean",
    "multiply",
    "pad",
    "permute_dims",
    "quantize",
    "relu",
    "reshape",
    "resize2d",
    "sigmoid",
    "softmax",
    "stack",
    "subtract",
    "tanh",
]

SCRIPT = (ROOT / "tests/run_scales.py").read_text()
BEFORE = "    cancellation=True,"
RULE = '    requantize=Requantize(rounding="float32", steps=1, share=0.01),\n'
FAULTS = {
    "": False,
    "scale": True,
    "axis": True,
    "zero": True,
    "share": False,
    "one too many": True,
    "halves": True,
}
"""What the driver does wrong, and whether the kit must see it: a hundredth of the elements may be a
step off."""


def _driver(place: Path, package: str, layout: int) -> Path:
    """Build the plain driver; return its folder."""
    library = place / f"layout{layout}/lib{package}_driver.so"
    build_kit_driver(DRIVER, library, f"-DCHANNELS_LAST={layout}")
    return library.parent


@pytest.mark.slow
def test_quantized_models_run_on_a_driver_with_scales(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = render(backend_name="scales_npu", op_preset="custom", ops=OPS, driver="graph")
    capabilities = "vendor/capabilities.py"
    copy = tmp_path / "project"
    shutil.copytree(project, copy)
    text = (copy / capabilities).read_text()
    assert "quantized=" in text and text.count(BEFORE) == 1
    (copy / capabilities).write_text(text.replace(BEFORE, RULE + BEFORE))
    python = workshop.environment(workshop.build(copy))
    lend_packages(python)
    for layout in (0, 1):
        folder = _driver(tmp_path, "tvm_scales_npu", layout)
        setting = {"SCALES_NPU_DRIVER_DIR": str(folder), "SCALES_NPU_DRIVER": "vendor"}
        script = tmp_path / "run_scales.py"
        script.write_text(SCRIPT)
        out = run(python, script, "tvm_scales_npu", cwd=tmp_path, **setting)
        assert out.splitlines()[-1] == "right", out
    # The kit takes the right driver, whose rule has a tolerance, and catches each mistake.
    conformance = ("-m", "tvm_scales_npu", "conformance", *IN_ONE_PROCESS, "--suite")
    kit = (*conformance, "quantized")
    kit += ("--filter", "quantized/conv2d-", "--output", tmp_path)
    for fault, is_caught in FAULTS.items():
        done = attempt(python, *kit, cwd=tmp_path, **setting, SCALES_NPU_FAULT=fault)
        assert done.returncode == is_caught, f"{fault}: {done.stdout}"
        end = (
            r"^FAILED: \d+ passed, \d+ failed"
            if is_caught
            else r"^PASSED: [1-9]\d+ passed, 0 failed"
        )
        assert re.search(end, done.stdout, re.MULTILINE), f"{fault}: {done.stdout}"
        if fault == "one too many":
            assert re.search(r"differs in 53 of 5291 elements, NumPy; allowed: 52", done.stdout)
    # A table says that halves go away from zero: then this is right, and the usual driver is wrong.
    table = site_packages(python) / "tvm_scales_npu" / capabilities
    table.write_text(table.read_text().replace(RULE, f'{RULE}    rounds="half_away",\n'))
    kit = (*conformance, "quantized,fuzz", "--fuzz-seconds", "4", "--output", tmp_path)
    for subject in ("quantized/conv2d-", "fuzz/"):
        kit += ("--filter", subject)
    for fault in ("halves", ""):
        done = attempt(python, *kit, cwd=tmp_path, **setting, SCALES_NPU_FAULT=fault)
        result = json.loads((tmp_path / "conformance.json").read_text())
        failed = {case["suite"] for case in result["cases"] if case["status"] == "failed"}
        assert failed == (set() if fault else {"quantized"}), done.stdout
        assert result["suites"]["fuzz"]["passed"] > 0, done.stdout
    # So do random graphs, which have an allowance derived from that tolerance.
    fuzz = (*conformance, "fuzz", "--fuzz-seconds", "4", "--filter", "integer")
    for fault in ("scale", "zero"):
        done = attempt(python, *fuzz, cwd=tmp_path, **setting, SCALES_NPU_FAULT=fault)
        assert done.returncode == 1 and "FAILED fuzz/graph of" in done.stdout, done.stdout
