"""Arm NN 20.08 with its reference backend: an SDK with scales at tensors.

The overlay contains everything that a vendor adds to the skeleton. Arm NN itself is asked about
each node. The resulting backend, built without the emulator, passes a sixth of its own tests and
the whole conformance kit, and runs the demo's digits and small networks, real and quantized.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import (
    NEEDS_ARMNN,
    ROOT,
    WITHOUT_SUITES,
    Workshop,
    assert_quantizing_loses_no_macs,
    install_without_emulator,
    lay_over,
    run,
    share_of_tests,
    sources,
)

pytestmark = [pytest.mark.slow, NEEDS_ARMNN]

OVERLAY = ROOT / "tests/overlays/armnn/vendor"
OPS = [
    "abs",
    "adaptive_avg_pool2d",
    "add",
    "avg_pool2d",
    "batch_norm",
    "clip",
    "conv2d",
    "depthwise_conv2d",
    "dequantize",
    "divide",
    "exp",
    "expand_dims",
    "flatten",
    "floor",
    "leakyrelu",
    "matmul",
    "max_pool2d",
    "maximum",
    "mean",
    "minimum",
    "multiply",
    "negative",
    "pad",
    "permute_dims",
    "quantize",
    "relu",
    "reshape",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "square",
    "squeeze",
    "strided_slice",
    "subtract",
    "tanh",
]
QUANTIZED = {
    "adaptive_avg_pool2d",
    "add",
    "avg_pool2d",
    "clip",
    "conv2d",
    "depthwise_conv2d",
    "matmul",
    "mean",
    "multiply",
    "relu",
    "sigmoid",
    "subtract",
    "tanh",
}


@pytest.fixture(scope="module")
def project(render: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Render a backend, and apply the overlay."""
    skeleton = render(backend_name="armnn_npu", op_preset="custom", ops=OPS, driver="graph")
    return lay_over(skeleton, OVERLAY, tmp_path_factory.mktemp("armnn") / "backend")


@pytest.fixture(scope="module")
def python(project: Path, workshop: Workshop) -> Path:
    """Return the Python of an environment with the backend, without an emulator."""
    return install_without_emulator(project, workshop)


def test_the_overlay_is_small() -> None:
    lines = {
        path.relative_to(OVERLAY).as_posix(): path.read_bytes().count(b"\n")
        for path in sources(OVERLAY)
    }
    driver = [count for name, count in lines.items() if name.startswith("driver/")]
    assert sum(driver) <= 650, lines
    assert f"in three files, {sum(driver)} lines in all" in (ROOT / "docs/armnn.md").read_text()
    assert len(driver) == 3


def test_the_page_says_which_nodes_the_ops_became() -> None:
    page = (ROOT / "docs/armnn.md").read_text().split("| ops | layers", 1)[1]
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", page, re.MULTILINE)
    assert sorted(op for row, _ in rows for op in re.findall(r"`(\w+)`", row)) == sorted(OPS)
    driver = (OVERLAY / "driver/network.h").read_text()
    added = set(re.findall(r"Add(\w+)Layer\b", driver)) - {"Input", "Output", "Constant"}
    functions = re.findall(r"(?:Function|Operation)::(\w+)", driver)
    shown = {node for _, row in rows for node in re.findall(r"`(\w+)`", row)}
    assert shown == added - {"Activation", "ElementwiseUnary"} | set(functions)


def test_check_runs_an_op_on_it(python: Path, tmp_path: Path) -> None:
    out = run(python, "-m", "tvm_armnn_npu", "check", cwd=tmp_path)
    assert "emulator library: not installed" in out
    assert "runs on the NPU, with right values" in out


def test_a_sixth_of_the_rendered_tests_pass(python: Path, project: Path) -> None:
    """XNNPACK runs another sixth."""
    tests = share_of_tests(1, 6)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *WITHOUT_SUITES, *tests)
    out = run(python, *command, cwd=project)
    print(out)
    found = re.search(r"(\d+) passed, (\d+) skipped", out)
    assert found and int(found[1]) > int(found[2]), out


PADS = """
import numpy as np
import tvm
from tvm import relax
import tvm_armnn_npu as backend

op = relax.op
x = relax.Var("x", relax.TensorType((1, 2, 5, 6), "float32"))
random = np.random.default_rng(0)
weight = random.standard_normal((4, 2, 3, 3)).astype("float32")
data = random.standard_normal((1, 2, 5, 6)).astype("float32")
for value, padding in ((0.0, 0), (0.0, 1), (2.5, 1)):
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            padded = builder.emit(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 1], pad_value=value))
            result = builder.emit(op.nn.conv2d(padded, relax.const(weight), padding=padding))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    report = backend.offload_report(backend.partition_for_armnn_npu(builder.get()))
    assert (len(report.regions), len(report.on_host)) == (1, 0)
    machine = relax.VirtualMachine(backend.compile_for_armnn_npu(builder.get()), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(data)).numpy()
    image = np.pad(data, [(0, 0), (0, 0), (1, 1), (2, 1)], constant_values=value)
    image = np.pad(image, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weight)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
print("right")
"""


def test_a_pad_is_not_the_padding_of_the_convolution_behind_it(
    python: Path, tmp_path: Path
) -> None:
    """Arm NN's optimizer would make it that, and forget its value and the other padding."""
    script = tmp_path / "pads.py"
    script.write_text(PADS)
    assert run(python, script, cwd=tmp_path).splitlines()[-1] == "right"


VOLUME = """
from tvm import relax
import tvm_armnn_npu as backend

for rank in (4, 5):
    x = relax.Var("x", relax.TensorType((2, 3, 4, 5, 6)[:rank], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.mean(x, [1, rank - 1])))
        builder.emit_func_output(result)
    print(backend.offload_report(backend.partition_for_armnn_npu(builder.get())))
"""


def test_a_mean_of_five_dimensions_does_not_end_the_process(python: Path, tmp_path: Path) -> None:
    out = run(python, "-c", VOLUME, cwd=tmp_path)
    four, five = (line for line in out.splitlines() if line.startswith("relax.mean "))
    assert "armnn_npu_main_0" in four
    assert "the driver declines it" in five
    assert "Arm NN: it has means of at most 4 dimensions" in five


def test_the_whole_kit_passes(python: Path, tmp_path: Path) -> None:
    # As in test_xnnpack.py.
    command = ("conformance", "--jobs", "1", "--fuzz-seconds", "5", "--output", tmp_path)
    print(run(python, "-m", "tvm_armnn_npu", *command, cwd=tmp_path))
    result = json.loads((tmp_path / "conformance.json").read_text())
    assert {found["failed"] for found in result["suites"].values()} == {0}
    for suite in ("ops", "composites", "quantized", "contract", "states"):
        found = result["suites"][suite]
        assert found["passed"] > 3 * found["declined"], (suite, found)
    # Graphs of real numbers, and of integers.
    assert result["suites"]["fuzz"]["passed"] == 2
    assert result["rounding"]["quantize"] == "half_away"

    def passed(suite: str) -> set[str]:
        cases = (case for case in result["cases"] if "refused" not in case["case"])
        return {
            case["op"] for case in cases if (case["suite"], case["status"]) == (suite, "passed")
        }

    assert passed("ops") == set(OPS)
    assert passed("quantized") >= QUANTIZED
    # What it declines is said in Arm NN's words.
    reasons = {case["reason"] for case in result["cases"] if case["status"] == "declined"}
    assert any("Pooling2dLayer: TensorShape set on OutputSlot[0]" in text for text in reasons)


def test_the_digits_of_the_demo_are_right(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    demo = (ROOT / "docs/demo/run.py", "armnn_npu", "--fixed-batch")
    out = run(python, *demo, cwd=tmp_path)
    print(out)
    assert re.search(r"18 of 20 ops on the NPU, 100\.0 % of [\d,]+ MACs, regions: 1", out)
    assert re.findall(r"(\S+ \(.*\)) +accuracy 98\.61%", out) == [
        "armnn_npu (vendor)",
        "host (TVM llvm)",
    ]
    if importlib.util.find_spec("onnxruntime"):
        # Quantized by the demo with the backend's quantize_for.
        assert re.search(r"int8 +98\.61%", out)


NETWORKS = """
import json
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
import tvm_armnn_npu as backend
from tvm_armnn_npu.engine.backend.api import from_onnx, original_of
from tvm_armnn_npu.engine.workbench.conformance import onnx_networks, quantized_networks


def read(name, form):
    if form == "qdq":
        return quantized_networks.read(name, form)
    model, inputs = onnx_networks.SMALL[name]()
    return from_onnx(model), list(inputs), original_of(model).run(list(inputs))


results = {}
for name in ("resnet", "mobilenet"):
    for form in ("float", "qdq"):
        module, arguments, (expected,) = read(name, form)
        report = backend.offload_report(backend.partition_for_armnn_npu(module))
        with tempfile.TemporaryDirectory() as folder:
            executable = backend.compile_for_armnn_npu(module, dump="program", dump_dir=folder)
            (listing,) = [path.read_text() for path in Path(folder).glob("*.txt")]
        machine = relax.VirtualMachine(executable, tvm.cpu())
        found = machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()
        products = [line for line in listing.splitlines() if line.startswith(("conv", "matmul"))]
        results[f"{name} {form}"] = {
            "on_host": [f"{op.op}: {op.reason}" for op in report.on_host if not op.bookkeeping],
            "summary": report.summary,
            "products": len(products),
            "of_integers": sum(", scale " in line for line in products),
            "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
        }
print(json.dumps(results))
"""


def test_networks_are_entirely_on_it(python: Path, tmp_path: Path) -> None:
    """They are as ResNet-18 and MobileNetV2, but smaller: CpuRef is a reference, and slow."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    script = tmp_path / "networks.py"
    script.write_text(NETWORKS)
    found: dict[str, Any] = json.loads(run(python, script, cwd=tmp_path).splitlines()[-1])
    print(json.dumps(found, indent=1))
    assert list(found) == ["resnet float", "resnet qdq", "mobilenet float", "mobilenet qdq"]
    for name, network in found.items():
        assert network["on_host"] == [], name
        assert "100.0 % of" in network["summary"] and "regions: 1" in network["summary"], name
        if name.endswith("float"):
            assert network["error"] < 1e-5 and network["of_integers"] == 0, name
        else:
            # A step of the result is a hundredth of its range.
            assert network["error"] < 0.02, name
            assert network["of_integers"] == network["products"] > 10, name


@pytest.mark.parametrize("models", ["small", "large"])
def test_no_model_loses_the_npu_when_it_is_quantized(
    models: str, python: Path, tmp_path: Path
) -> None:
    """Nothing runs but the driver's answers."""
    for package in ("onnx", "onnxruntime", "torch", "torchao"):
        pytest.importorskip(package)
    assert_quantizing_loses_no_macs(python, "tvm_armnn_npu", models, tmp_path)
