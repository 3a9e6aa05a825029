"""Arm's Ethos-U behind the driver interface: TOSA and Vela, an SDK that takes a model file.

There is no Ethos-U here: Vela compiles each region for it, and TOSA's reference model computes.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import (
    IN_ONE_PROCESS,
    ROOT,
    TOSA_TOOLS,
    Workshop,
    install_apart,
    install_without_emulator,
    lay_over,
    run,
    sources,
)
from test_npu_region import Build, numbers

pytestmark = pytest.mark.slow

npu_region: Any = importlib.import_module("npu_region")

OVERLAY = ROOT / "tests/overlays/ethosu/vendor"
OPS = [
    *("adaptive_avg_pool2d", "add", "avg_pool2d", "clip", "conv2d", "depthwise_conv2d"),
    *("dequantize", "flatten", "matmul", "max_pool2d", "mean", "multiply", "pad", "permute_dims"),
    *("quantize", "relu", "reshape", "sigmoid", "squeeze", "subtract", "tanh"),
]


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the SDK into an environment of its own: its NumPy is older than TVM's."""
    folder = tmp_path_factory.mktemp("ethosu") / "sdk"
    return install_apart(folder, "ethos-u-vela==5.2.0", TOSA_TOOLS)


@pytest.fixture(scope="module")
def project(render: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Render a backend, and apply the overlay, with the list of ops that the page has."""
    skeleton = render(backend_name="ethosu_npu", op_preset="custom", ops=OPS, driver="model")
    project = lay_over(skeleton, OVERLAY, tmp_path_factory.mktemp("backend") / "backend")
    page = (ROOT / "docs/ethos-u.md").read_text()
    (written,) = re.findall(r"s/\^WRITTEN = \.\*/(.*)/'", page)
    test = project / "vendor/tests/test_driver.py"
    text, count = re.subn(r"^WRITTEN = .*", written, test.read_text(), flags=re.MULTILINE)
    assert count == 1
    test.write_text(text)
    return project


@pytest.fixture(scope="module")
def python(project: Path, workshop: Workshop, sdk: Path) -> Path:
    """Return the Python of an environment with the backend, without an emulator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ETHOSU_SDK", str(sdk))
        return install_without_emulator(project, workshop)


@pytest.fixture(scope="module")
def call(python: Path, sdk: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs Python with the backend, which finds the SDK."""
    (package,) = (python.parents[1] / "lib").glob("python3*/site-packages/tvm_ethosu_npu")
    command = f"{sdk / 'bin/python'} {package / 'vendor/sdk/compile.py'}"
    folder = tmp_path_factory.mktemp("calls")

    def call(*arguments: str | Path) -> str:
        return run(python, *arguments, cwd=folder, ETHOSU_NPU_SDK_COMMAND=command)

    return call


def test_the_overlay_is_small() -> None:
    lines = {path.name: path.read_bytes().count(b"\n") for path in sources(OVERLAY)}
    assert sum(lines.values()) <= 500, lines


def test_regions_in_tosa_have_the_values_of_numpy(sdk: Path, tmp_path: Path) -> None:
    """Compare what has no case in the kit: real numbers, which Vela does not take."""
    data, weight, bias = numbers(1, 6, 5, 3), numbers(4, 3, 3, 3, seed=1), numbers(4, seed=2)
    build = Build(channels_last=True)
    shape = np.zeros((1, 3, 2, 4), "float32")
    product = build.node(
        "convolution",
        [build.input(data), build.constant(weight), build.constant(bias)],
        shape,
        limits=(0, 2),
        strides=[2, 2],
        dilations=[1, 1],
        pads_begin=[1, 1],
        pads_end=[0, 1],
        groups=1,
        data_zero_point=0,
        weight_zero_point=0,
    )
    moved = build.node("tanh", [product], shape, numbers=[0, 0, 0, 0])
    region = build.region(moved, tmp_path)
    (tmp_path / "region.mlir").write_text(npu_region.to_tosa(region))
    np.save(tmp_path / "data.npy", data)
    run(
        sdk / "bin/tosa-opt",
        "--tosa-serialize",
        f"--tosa-flatbuffer-filename={tmp_path / 'region.tosa'}",
        tmp_path / "region.mlir",
    )
    program = (
        "import sys, numpy, tosa_reference_model as model\n"
        "outputs, status = model.run(open(sys.argv[1], 'rb').read(), [numpy.load(sys.argv[2])])\n"
        "assert status == model.GraphStatus.TOSA_VALID, status\n"
        "numpy.save(sys.argv[3], outputs[0])\n"
    )
    found = tmp_path / "found.npy"
    run(sdk / "bin/python", "-c", program, tmp_path / "region.tosa", tmp_path / "data.npy", found)
    padded = np.pad(data, ((0, 0), (1, 0), (1, 1), (0, 0)))
    expected = np.zeros_like(shape)
    for y in range(3):
        for x in range(2):
            box = padded[0, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3]
            expected[0, y, x] = np.einsum("hwi,ohwi->o", box, weight) + bias
    expected = np.tanh(np.clip(expected, 0, 2))
    result = np.load(found).view("float32").reshape(expected.shape)
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize(
    "multiplier, shift, why",
    [
        (1 << 30, 8, "TOSA does not define their RESCALE by 1073741824 / 2\\^8"),
        (1 << 30, 63, "TOSA does not rescale by 1073741824 / 2\\^63"),
    ],
)
def test_what_tosa_does_not_define_is_declined(
    tmp_path: Path, multiplier: int, shift: int, why: str
) -> None:
    build = Build(channels_last=True)
    like = np.zeros((4, 5), "int32")
    sums = build.node(
        "matmul",
        [build.input(numbers(4, 3, dtype="int8")), build.constant(numbers(3, 5, dtype="int8"))],
        like,
        transpose_a=False,
        transpose_b=False,
        a_zero_point=0,
        b_zero_point=0,
    )
    factors = [build.constant(np.array(number, "int32")) for number in (multiplier, shift)]
    out = build.node("rescale", [sums, *factors], like, numbers=[0, 0, 0, 0])
    with pytest.raises(npu_region.Declined, match=why):
        npu_region.to_tosa(build.region(out, tmp_path))


@pytest.mark.parametrize("added, is_moved", [(-5, True), (5, False)])
def test_what_cancels_out_is_not_computed(tmp_path: Path, added: int, is_moved: bool) -> None:
    """Subtract 5, and add 5 or -5, within the limits of int8."""
    build = Build(channels_last=True)
    wide, narrow = np.zeros((4, 3), "int64"), np.zeros((4, 3), "int8")
    value = build.input(numbers(4, 3, dtype="int8"))
    for op, number in (("subtract", 5), ("add", added), ("maximum", -128), ("minimum", 127)):
        constant = build.constant(np.array([number], "int64"))
        like = narrow if op == "minimum" else wide
        value = build.node(op, [value, constant], like, numbers=[0, 0, 0, 0])
    text = npu_region.to_tosa(build.region(value, tmp_path))
    assert ("tosa.rescale" in text) == is_moved


def test_scales_on_tensors_are_declined_with_what_to_do(tmp_path: Path) -> None:
    build = Build(channels_last=True)
    scales: dict[str, Any] = {"scale": 0.5, "zero_point": 0, "axis": None}
    data = build.input(numbers(4, 3, dtype="int8"), quantization=scales)
    like = np.zeros((4, 3), "int8")
    out = build.node("relu", [data], like, quantization=scales, numbers=[0, 0, 0, 0])
    with pytest.raises(npu_region.Declined, match="set `integers` in kDriver, not `scales`"):
        npu_region.to_tosa(build.region(out, tmp_path))


def test_check_finds_the_driver(call: Callable[..., str]) -> None:
    out = call("-m", "tvm_ethosu_npu", "check")
    print(out)
    assert "emulator library: not installed" in out
    assert "runs on the NPU, with right values" in out


def test_the_tests_of_the_driver_pass(call: Callable[..., str], project: Path) -> None:
    """Vela's limits also show when a region is compiled, such as the sums of any int32."""
    out = call("-m", "pytest", "-q", "-p", "no:cacheprovider", project / "vendor/tests")
    assert f"{len(OPS)} passed" in out, out


def test_the_integers_of_the_kit_are_right(call: Callable[..., str], tmp_path: Path) -> None:
    kit = (
        "conformance",
        *IN_ONE_PROCESS,
        "--suite",
        "quantized",
        "--filter",
        "int8_int8_int8",
        "--output",
        tmp_path,
    )
    print(call("-m", "tvm_ethosu_npu", *kit))
    result = json.loads((tmp_path / "conformance.json").read_text())
    passed = {case["op"] for case in result["cases"] if case["status"] == "passed"}
    assert passed >= {"conv2d", "depthwise_conv2d", "matmul", "relu", "clip"}
    assert result["suites"]["quantized"]["failed"] == 0


def test_the_digits_of_the_page(call: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    demo = ROOT / "docs/demo"
    images = np.load(demo / "digits_calibration.npz")["images"].reshape(-1, 1, 8, 8)
    np.savez(tmp_path / "calibration.npz", images=images.astype("float32") / 16)
    integers = ("--quantize", tmp_path / "calibration.npz", "--shape", "images=8,1,8,8")
    for command in (
        ("report", demo / "digits.onnx", *integers, "--option", "accelerator=ethos-u85-256"),
        ("run", demo / "digits.onnx", *integers),
        ("profile", demo / "digits.onnx", *integers),
    ):
        out = call("-m", "tvm_ethosu_npu", *command)
        print(out)
        if command[0] != "profile":
            assert re.search(r"ops on the NPU, 100\.0 % of 3,688,960 MACs, regions: 1", out)
        else:
            assert re.search(r"on the host in 10 calls, .* in 1 region, [\d,]+ ns on the NPU", out)


RESNET = """
import sys

import numpy as np
import tvm
from tvm import relax

import tvm_ethosu_npu as backend
from tvm_ethosu_npu.engine.workbench.conformance import quantized_networks

module, inputs, expected = quantized_networks.read("resnet", "qdq")
report = backend.offload_report(backend.partition_for_ethosu_npu(module))
products = [op for op in report.ops if op.macs]
assert products, report
assert all((op.composite or "").startswith("quantized_") for op in products), report
for accelerator in ("ethos-u55-256", "ethos-u85-256"):
    options = {"accelerator": accelerator}
    executable = backend.compile_for_ethosu_npu(module, options=options)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, inputs))
    result = (result if hasattr(result, "numpy") else result[0]).numpy()
    print(accelerator, np.abs(result - expected[0]).max() / np.abs(expected[0]).max())
profile = backend.profile(executable, *inputs)
print(profile)
"""


def test_a_network_is_compiled_for_both(call: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    program = tmp_path / "resnet.py"
    program.write_text(RESNET)
    out = call(program)
    print(out)
    errors = dict(re.findall(r"(ethos-u\d+-256) ([\d.e-]+)", out))
    assert errors.keys() == {"ethos-u55-256", "ethos-u85-256"}
    assert all(float(error) < 0.05 for error in errors.values())
    assert "Vela's estimate" in out


def test_the_words_of_vela_about_real_numbers(call: Callable[..., str]) -> None:
    program = """
from tvm import relax
import tvm_ethosu_npu as backend

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        out = builder.emit_output(builder.emit(relax.op.nn.max_pool2d(x, (2, 2), (2, 2))))
    builder.emit_func_output(out)
print(backend.offload_report(backend.partition_for_ethosu_npu(builder.get())))
"""
    out = call("-c", program)
    assert re.search(r"the driver declines it: .*Vela: .*MaxPool, Invalid argument input", out), out
