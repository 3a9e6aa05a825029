"""XNNPACK, an SDK that builds graphs, behind the driver interface.

The overlay contains everything that a vendor adds to the skeleton: the supported nodes, how to
create them, build settings, and what the chip can do. The resulting backend, built without the
emulator, passes a sixth of its own tests and the conformance kit, and runs the demo's digits
and whole models.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support import (
    NEEDS_XNNPACK,
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

pytestmark = [pytest.mark.slow, NEEDS_XNNPACK]

OVERLAY = ROOT / "tests/overlays/xnnpack/vendor"
OPS = [
    "abs",
    "adaptive_avg_pool2d",
    "add",
    "avg_pool2d",
    "batch_norm",
    "ceil",
    "clip",
    "concat",
    "conv2d",
    "depthwise_conv2d",
    "dequantize",
    "divide",
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
    "prelu",
    "quantize",
    "relu",
    "reshape",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "square",
    "squeeze",
    "subtract",
]
TAKEN = set(OPS) - {"concat", "prelu", "softmax"}


@pytest.fixture(scope="module")
def project(render: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Render a backend, and apply the overlay."""
    skeleton = render(backend_name="xnnpack_npu", op_preset="custom", ops=OPS, driver="graph")
    project = lay_over(skeleton, OVERLAY, tmp_path_factory.mktemp("xnnpack") / "backend")
    # The list of ops that must work.
    test = project / "vendor/tests/test_driver.py"
    text = test.read_text()
    assert "WRITTEN = ()\n" in text
    test.write_text(text.replace("WRITTEN = ()\n", f"WRITTEN = {[*TAKEN]!r}\n"))
    return project


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
    assert len(driver) == 2
    assert f"in two files, {sum(driver)} lines in all" in (ROOT / "docs/driver.md").read_text()
    assert sum(lines.values()) <= 700, lines


def test_the_page_says_which_nodes_the_ops_became() -> None:
    page = (ROOT / "docs/driver.md").read_text()
    section = re.findall(r"^## XNNPACK, op by op\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", section[0], re.MULTILINE)
    ops = [op for row, _ in rows for op in re.findall(r"`(\w+)`", row)]
    # The backend of this test has no round.
    assert sorted(ops) == sorted(TAKEN | {"round"})
    defined = set(re.findall(r"xnn_define_(\w+)", (OVERLAY / "driver/run.cc").read_text()))
    shown = {node for _, row in rows for node in re.findall(r"`(\w+)`", row)}
    values = {"tensor_value", "quantized_tensor_value", "channelwise_quantized_tensor_value"}
    assert shown - {"relu", "clip"} == defined - values


def test_check_runs_an_op_on_it(python: Path, tmp_path: Path) -> None:
    out = run(python, "-m", "tvm_xnnpack_npu", "check", cwd=tmp_path)
    assert "emulator library: not installed" in out
    assert "runs on the NPU, with right values" in out


def test_a_sixth_of_the_rendered_tests_pass(python: Path, project: Path) -> None:
    """Arm NN runs another sixth."""
    tests = share_of_tests(0, 6)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *WITHOUT_SUITES, *tests)
    out = run(python, *command, cwd=project)
    print(out)
    found = re.search(r"(\d+) passed, (\d+) skipped", out)
    assert found, out
    # Tests of what this chip does not support are skipped; most have a case that it supports.
    assert int(found[1]) > int(found[2]), out


def test_the_kit_passes(python: Path, tmp_path: Path) -> None:
    # A second worker would only import everything once more: other tests have the other cores.
    # The node tests of ONNX run on Arm NN.
    suites = ["ops", "composites", "quantized", "contract", "states", "fuzz"]
    suites += ["models"] * any(map(importlib.util.find_spec, ("onnx", "torch")))
    command = ("conformance", "--jobs", "1", "--fuzz-seconds", "5", "--output", tmp_path)
    command += ("--suite", ",".join(suites))
    print(run(python, "-m", "tvm_xnnpack_npu", *command, cwd=tmp_path))
    result = json.loads((tmp_path / "conformance.json").read_text())
    passed = {
        case["op"]
        for case in result["cases"]
        if case["suite"] == "ops"
        and case["status"] == "passed"
        and not case["case"].split("-", 1)[1].startswith("refused")
    }
    assert passed == TAKEN
    for suite in suites:
        assert result["suites"][suite]["passed"] > 0, suite


def test_the_digits_of_the_demo_are_right(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    demo = (ROOT / "docs/demo/run.py", "xnnpack_npu", "--fixed-batch")
    out = run(python, *demo, cwd=tmp_path)
    print(out)
    assert re.search(r"18 of 20 ops on the NPU, 100\.0 % of [\d,]+ MACs, regions: 1", out)
    assert re.findall(r"(\S+ \(.*\)) +accuracy 98\.61%", out) == [
        "xnnpack_npu (vendor)",
        "host (TVM llvm)",
    ]


PROFILE = """
import json
import sys

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
import tvm_xnnpack_npu as backend

module = from_onnx(onnx.load(sys.argv[1]), shape_dict={"images": [8, 1, 8, 8]})
report = backend.offload_report(backend.partition_for_xnnpack_npu(module))
executable = backend.compile_for_xnnpack_npu(module)
machine = relax.VirtualMachine(executable, tvm.cpu())
images = np.random.default_rng(0).random((8, 1, 8, 8), dtype="float32")

def results():
    outputs = machine["main"](tvm.runtime.tensor(images))
    return [outputs[i].numpy().tolist() for i in range(len(outputs))]

before = results()
profile = backend.profile(executable, images, calls=3, report=report)
print(json.dumps(profile.to_dict() | {
    "same": results() == before,
}))
"""


def test_a_profile_has_the_time_of_each_op(python: Path, tmp_path: Path) -> None:
    """This XNNPACK reports no times: the kit runs its nodes one by one."""
    pytest.importorskip("onnx")
    script = tmp_path / "profile.py"
    script.write_text(PROFILE)
    out = run(python, script, ROOT / "docs/demo/digits.onnx", cwd=tmp_path)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert (found["unit"], found["ticks_per_us"]) == ("ns", 1000)
    (region,) = found["regions"]
    assert region["calls"] == 3
    # Measured one after the other inside of the region.
    took = sum(event["end"] - event["begin"] for event in found["events"]) / 1000
    assert 0 < took <= region["wall_us"]
    print(found["summary"], [(op["composite"], op["span"]) for op in found["ops"]])
    assert sorted(op["composite"] for op in found["ops"]) == [
        "conv2d_bias_relu",
        "conv2d_bias_relu",
        "conv2d_bias_residual_relu",
        "depthwise_conv2d_bias_relu",
        "matmul_bias",
        "max_pool2d",
        "mean",
    ]
    assert all(op["span"] > 0 and op["traffic"]["dram"][1] > 0 for op in found["ops"])
    for call in range(3):
        times = [(e["begin"], e["end"]) for e in found["events"] if e["call"] == call]
        assert times == sorted(times)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(times))
    # Twice the products that the report counts.
    assert found["totals"]["operations"] == 3 * 2 * 3_688_960
    assert found["same"]


MODEL = """
import io
import json
import sys
import time
import warnings

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program
import tvm_xnnpack_npu as backend
from tvm_xnnpack_npu.engine.workbench.conformance.networks import MOBILENET_V2
from tvm_xnnpack_npu.engine.workbench.conformance.torch_networks import MobileNetV2, ResNet, make

NETWORKS = {
    "resnet18": lambda: ResNet((64, 128, 256, 512), 1000),
    "mobilenet_v2": lambda: MobileNetV2(MOBILENET_V2, 32, 1280, 1000),
}
warnings.simplefilter("ignore")
network, (x,) = make(NETWORKS[sys.argv[1]], lambda: [torch.randn(1, 3, 224, 224)])
with torch.no_grad():
    expected = network(x).numpy()
module = from_exported_program(torch.export.export(network, (x,)), unwrap_unit_return_tuple=True)
report = backend.offload_report(backend.partition_for_xnnpack_npu(module))
machine = relax.VirtualMachine(backend.compile_for_xnnpack_npu(module), tvm.cpu())
argument = tvm.runtime.tensor(x.numpy())
found = machine["main"](argument).numpy()

def median(call):
    times = []
    for _ in range(9):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[4]

ratio = None
try:
    import onnxruntime
    file = io.BytesIO()
    torch.onnx.export(network, (x,), file, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        file.getvalue(), options, providers=["CPUExecutionProvider"]
    )
    feed = {session.get_inputs()[0].name: x.numpy()}
    ratio = median(lambda: session.run(None, feed)) / median(lambda: machine["main"](argument))
except ImportError:
    pass
print(json.dumps({
    "on_host": [f"{op.op}: {op.reason}" for op in report.on_host if not op.bookkeeping],
    "on_npu": len(report.offloaded),
    "regions": len(report.regions),
    "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
    "speed_of_onnxruntime": ratio,
}))
"""


@pytest.mark.parametrize(("model", "ops"), [("resnet18", 70), ("mobilenet_v2", 152)])
def test_a_model_is_entirely_on_it(
    model: str,
    ops: int,
    python: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "model.py"
    script.write_text(MODEL)
    found: dict[str, Any] = json.loads(run(python, script, model, cwd=tmp_path).splitlines()[-1])
    if (speed := found["speed_of_onnxruntime"]) is not None:
        record_property("measured", f"{model} on XNNPACK: {speed:.2f}x of ONNX Runtime's speed")
    assert found["on_host"] == []
    assert (found["on_npu"], found["regions"]) == (ops, 1)
    assert found["error"] < 1e-5


INTEGERS = """
import numpy as np
import tvm
from tvm import relax
import tvm_xnnpack_npu as backend

op = relax.op

def quantize(x, scale, zero, dtype="int8"):
    return op.quantize(x, relax.const(scale, "float32"), relax.const(zero, dtype), 1, dtype)

def dequantize(x, scale, zero, dtype="int8"):
    return op.dequantize(x, relax.const(scale, "float32"), relax.const(zero, dtype), 1)

def run(x, *calls):
    # Calls one after the other; each but the first reads the result of the one before it.
    builder = relax.BlockBuilder()
    value = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [value]):
        with builder.dataflow():
            for call in calls:
                value = builder.emit(call(value))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    module = builder.get()
    report = backend.offload_report(backend.partition_for_xnnpack_npu(module))
    machine = relax.VirtualMachine(backend.compile_for_xnnpack_npu(module), tvm.cpu())
    on_host = [item.reason for item in report.on_host if not item.bookkeeping]
    return machine["main"](tvm.runtime.tensor(x)).numpy(), len(report.regions), on_host

random = np.random.default_rng(0)
image = (40 * random.standard_normal((1, 3, 6, 8))).astype("float32")
window, before = (2, 2), [0, 0, 0, 0, 1, 1, 2, 0]
integers = np.clip(np.rint(image / 0.5) - 7, -128, 127).reshape(1, 3, 3, 2, 4, 2).max((3, 5))
integers = np.pad(integers, [(0, 0), (0, 0), (1, 1), (2, 0)], constant_values=-7).astype("int8")
moved = run(
    image,
    lambda x: quantize(x, 0.5, -7),
    lambda x: op.nn.max_pool2d(x, window, window),
    lambda x: op.nn.pad(x, before, pad_value=-7),
    lambda x: dequantize(x, 0.5, -7),
)
assert np.array_equal(moved[0], (integers + 7.0) * 0.5)
assert moved[1:] == (1, [])

large = random.integers(0, 256, (4, 5)).astype("uint8")
rescaled = run(
    large,
    lambda x: op.reshape(x, (2, 10)),
    lambda x: dequantize(x, 0.25, 130, "uint8"),
    lambda x: quantize(x, 0.125, 5, "uint8"),
)
expected = np.clip((large.reshape(2, 10).astype(int) - 130) * 2 + 5, 0, 255)
assert np.array_equal(rescaled[0], expected) and rescaled[0].dtype == "uint8"
assert rescaled[1:] == (1, [])

# The integers cannot have both.
matrix = random.standard_normal((2, 5)).astype("float32")
two = run(matrix, lambda x: quantize(x, 0.5, 3), lambda x: dequantize(x, 0.25, 4))
assert np.array_equal(two[0], (np.rint(matrix / 0.5) - 1) * 0.25)
assert two[1] == 1 and len(two[2]) == 1
assert "at this driver the integers of a tensor have one meaning" in two[2][0]
each = run(integers, lambda x: dequantize(x, np.array([1, 2, 4]), 3))
assert np.array_equal(each[0], (integers - 3.0) * np.array([[[1]], [[2]], [[4]]]))
assert each[1] == 0 and "a tensor of integers has one scale and one zero point" in each[2][0]
alike = run(integers, lambda x: dequantize(x, np.array([2, 2, 2]), 3))
assert np.array_equal(alike[0], (integers - 3.0) * 2) and alike[1:] == (1, [])
# XNNPACK refuses such a scale when it makes the graph.
tiny = run(matrix, lambda x: quantize(x, 1e-40, 0))
assert tiny[1] == 0 and "a scale is normal" in tiny[2][0]
print("right")
"""


def test_integers_have_one_scale_and_are_moved(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "integers.py"
    script.write_text(INTEGERS)
    assert run(python, script, cwd=tmp_path).splitlines()[-1] == "right"


QUANTIZED = """
import json

import numpy as np
import tvm
from tvm import relax
import tvm_xnnpack_npu as backend
from tvm_xnnpack_npu.engine.workbench.conformance.quantized_networks import read

module, arguments, (expected,) = read("resnet", "qdq")
report = backend.offload_report(backend.partition_for_xnnpack_npu(module))
machine = relax.VirtualMachine(backend.compile_for_xnnpack_npu(module), tvm.cpu())
found = machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()
print(json.dumps({
    "on_host": [f"{op.op}: {op.reason}" for op in report.on_host if not op.bookkeeping],
    "integers": sum(op.op in ("relax.quantize", "relax.dequantize") for op in report.offloaded),
    "regions": len(report.regions),
    "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
}))
"""


def test_a_quantized_model_is_entirely_on_it(python: Path, tmp_path: Path) -> None:
    """Its products are those of integers."""
    pytest.importorskip("onnxruntime")
    script = tmp_path / "quantized.py"
    script.write_text(QUANTIZED)
    found: dict[str, Any] = json.loads(run(python, script, cwd=tmp_path).splitlines()[-1])
    print(found)
    assert found["on_host"] == []
    assert found["regions"] == 1 and found["integers"] > 20
    # A step of the result is a hundredth of its range.
    assert found["error"] < 0.02


@pytest.mark.parametrize("models", ["small", "large"])
def test_no_model_loses_the_npu_when_it_is_quantized(
    models: str, python: Path, tmp_path: Path
) -> None:
    """Nothing runs but the driver's answers."""
    for package in ("onnx", "onnxruntime", "torch", "torchao"):
        pytest.importorskip(package)
    assert_quantizing_loses_no_macs(python, "tvm_xnnpack_npu", models, tmp_path)
