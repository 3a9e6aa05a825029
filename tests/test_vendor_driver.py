"""What a driver may omit, what it can know of a program, and the vendor's lowerings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import BUILD_MODEL, ROOT, Workshop, add_lowering, attempt, wrap_emulator

pytestmark = pytest.mark.slow

LOWERING = """
#include <limits>

#include "lowering.h"

struct wrapped_ops {
  uint32_t size;
  npu_status (*add_relu)(npu_builder* builder, npu_tensor data, npu_tensor out);
};

namespace {

bool IsMatrix(const npu::Lowering& op) { return op.InputDims(0).size() == 2; }

void Relu(npu::Lowering& op) {
  const npu::Tensor data = op.Input(0);
  const npu::Tensor out = op.Output();
  op.Check(op.Extension<wrapped_ops>("wrapped.ops")->add_relu(op.Builder(), data.id, out.id));
}

REGISTER_LOWERING("relax.nn.relu", Relu).When(IsMatrix);

// For drivers without the extension, the engine's lowering stays.
bool IsRelu(const npu::Lowering& op) {
  return op.Float("min") == 0 && op.Float("max") == std::numeric_limits<double>::infinity();
}

REGISTER_LOWERING("relax.clip", Relu).When(IsRelu).NeedsExtension("wrapped.ops");

}  // namespace
"""

AMBIGUOUS = """
#include "lowering.h"

namespace {

void Relu(npu::Lowering& op) { op.Refuse("never asked"); }

REGISTER_LOWERING("relax.nn.relu", Relu);
REGISTER_LOWERING("relax.nn.relu", Relu);

}  // namespace
"""

MODEL = (
    BUILD_MODEL
    + """
import os

import numpy as np
import pytest
import tvm

import tvm_wrapped as backend

op = relax.op
generator = np.random.default_rng(0)
normal = lambda *shape: generator.standard_normal(shape, dtype="float32")

def machine(make, *shapes, **options):
    mod = build(make, *shapes)
    report = backend.offload_report(backend.partition_for_wrapped(mod))
    assert all(entry.placement == "npu" for entry in report.ops), report
    if os.path.exists(os.environ["EMULATOR_LOG"]):
        os.remove(os.environ["EMULATOR_LOG"])
    executable = backend.compile_for_wrapped(mod, options=backend.Options(**options))
    return relax.VirtualMachine(executable, tvm.cpu())["main"]

def check(make, expected, *shapes, **options):
    function = machine(make, *shapes, **options)
    for _ in range(3):
        arrays = [normal(*shape) for shape in shapes]
        found = function(*map(tvm.runtime.tensor, arrays)).numpy()
        np.testing.assert_allclose(found, expected(*arrays), rtol=1e-5, atol=1e-5)

def log():
    with open(os.environ["EMULATOR_LOG"]) as file:
        return sorted(set(file.read().splitlines()))
"""
)


@pytest.fixture(scope="module")
def place(
    render: Callable[..., Path], workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Run a script, after the model code, with a backend that loads the wrapped emulator."""
    project = tmp_path_factory.mktemp("wrapped") / "project"
    ops = ["add", "multiply", "relu", "prelu", "clip", "matmul", "conv2d", "softmax"]
    ops += ["quantize", "dequantize", "reshape"]
    shutil.copytree(render(backend_name="wrapped", op_preset="custom", ops=ops), project)
    return wrap_emulator(project, workshop, ROOT / "tests/wrapped_driver.c", LOWERING, MODEL)


STEPS = """
weight, row = normal(8, 8), normal(8)
check(
    lambda x: op.nn.relu(op.add(op.matmul(x, relax.const(weight)), relax.const(row))),
    lambda x: np.maximum(x @ weight + row, 0),
    (4, 8),
)
assert log() == ["matmul 2(a,t) 31(s0)"], log()
check(
    lambda x, y: op.add(op.matmul(x, relax.const(weight)), y),
    lambda x, y: x @ weight + y,
    (4, 8), (4, 8),
)
assert log() == ["matmul 3(a,t)"], log()
# A square result: what is as long as a row is the bias, what has its shape the residual.
check(
    lambda x, y: op.add(op.add(op.matmul(x, relax.const(weight)), relax.const(row)), y),
    lambda x, y: x @ weight + row + y,
    (8, 8), (8, 8),
)
assert log() == ["matmul 2(a,t) 3(s0,t)"], log()

kernel, bias = normal(6, 3, 1, 1), normal(1, 6, 1, 1)
convolved = lambda x: np.einsum("nchw,oc->nohw", x, kernel[:, :, 0, 0])
check(
    lambda x: op.clip(
        op.add(op.nn.conv2d(x, relax.const(kernel)), relax.const(bias)),
        0.0, 0.5,
    ),
    lambda x: np.clip(convolved(x) + bias, 0, 0.5),
    (2, 3, 4, 6),
)
assert log() == ["convolution 2(a,t) 32(s0,n0,n0.5)"], log()
# One element for each column is not a bias of a convolution, whose channels are dimension 1.
column = normal(6)
check(
    lambda x: op.add(op.nn.conv2d(x, relax.const(kernel)), relax.const(column)),
    lambda x: convolved(x) + column,
    (2, 3, 4, 6),
)
assert not any("2(" in line for line in log()), log()

# The driver fuses a scale of one number: a factor per channel is one if there is a single channel.
half = np.array([0.5], "float32")
check(
    lambda x, weight: op.multiply(op.matmul(x, weight), relax.const(half)),
    lambda x, weight: (x @ weight) * 0.5,
    (4, 8), (8, 1),
)
assert log() == ["matmul 6(a,t)"], log()

slope = normal(3)
check(
    lambda x: op.nn.prelu(x, relax.const(slope), axis=1),
    lambda x: np.where(x > 0, x, x * slope[:, None]),
    (2, 3, 4),
)
assert log() == ["elementwise 34(t,t)"], log()

# Steps of a lowering that calls Elementwise itself have the name of its op.
def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
check(lambda x: op.nn.softmax(x, -1), softmax, (4, 8))
assert len(log()) >= 2 and not any("unnamed" in line for line in log()), log()
"""


def test_steps_name_their_operands(place: Callable[..., str]) -> None:
    place(STEPS)


OVERRIDDEN = """
relu = lambda x: np.maximum(x, 0)
check(op.nn.relu, relu, (4, 8))
assert log() == ["relu of the vendor's"], log()
# The predicate does not accept it: the engine's lowering.
check(op.nn.relu, relu, (2, 4, 8))
assert log() == ["elementwise 31(t)"], log()
# Fused, it is a step as before.
weight = normal(8, 8)
check(lambda x: op.nn.relu(op.matmul(x, relax.const(weight))), lambda x: relu(x @ weight), (4, 8))
assert log() == ["matmul 31(a)"], log()
"""


def test_a_vendors_lowering_wins_for_the_calls_that_its_predicate_accepts(
    place: Callable[..., str],
) -> None:
    place(OVERRIDDEN)


NEEDS_ITS_EXTENSION = """
check(lambda x: op.clip(x, 0, float("inf")), lambda x: np.maximum(x, 0), (4, 8))
if "{drivers}" == "wrapped":
    assert log() == ["relu of the vendor's"], log()
    check(lambda x: op.clip(x, 0, 1), lambda x: np.clip(x, 0, 1), (4, 8))
    assert log() == ["elementwise 32(t,n0,n1)"], log()
"""


@pytest.mark.parametrize("drivers", ["wrapped", "unwrapped"])
def test_a_lowering_may_need_an_extension_and_leave_others_to_the_engine(
    drivers: str, place: Callable[..., str]
) -> None:
    script = NEEDS_ITS_EXTENSION.replace("{drivers}", drivers)
    place(script, unwrapped=drivers == "unwrapped")


WITHOUT_ITS_EXTENSION = """
report = backend.offload_report(backend.partition_for_wrapped(build(op.nn.relu, (4, 8))))
(entry,) = report.ops
assert entry.placement == "host" and "has no extension wrapped.ops" in entry.reason, report
check(op.nn.relu, lambda x: np.maximum(x, 0), (2, 4, 8))
"""


def test_without_the_extension_the_call_stays_on_the_host_with_the_reason(
    place: Callable[..., str],
) -> None:
    place(WITHOUT_ITS_EXTENSION, unwrapped=True)


IN_CONTEXT = """
weight = normal(8, 8)
def body(x):
    product = op.matmul(op.add(x, x), relax.const(weight))
    # Two readers, so that neither is an epilogue of the matmul. Cut out, the first one leaves the
    # second one to another region, where the product is an input.
    return op.add(op.nn.relu(op.multiply(product, relax.const(2, "float32"))), product)
mod = build(body, (4, 8))
report = backend.offload_report(backend.partition_for_wrapped(mod))
(entry,) = report.on_host
assert entry.op == "relax.multiply", report
assert entry.reason == (
    f"the driver declines it: relax.multiply ({entry.name}): nothing may stand behind a matmul"
), entry.reason
on_npu = [entry.op for entry in report.offloaded]
assert on_npu == ["relax.add", "relax.matmul", "relax.nn.relu", "relax.add"], report
assert len(report.regions) == 2, report
executable = backend.compile_for_wrapped(mod)
x = normal(4, 8)
found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
product = (x + x) @ weight
np.testing.assert_allclose(found, np.maximum(2 * product, 0) + product, rtol=1e-5, atol=1e-5)
with pytest.raises(RuntimeError, match="nothing may stand behind a matmul"):
    backend.partition_for_wrapped(mod, on_decline="error")
"""


def test_an_op_that_the_driver_declines_behind_another_is_cut_out_of_its_region(
    place: Callable[..., str],
) -> None:
    place(IN_CONTEXT, EMULATOR_DECLINES="behind")


RUNS = """
weight = normal(32, 32)
def matmuls(x):
    for _ in range(4):
        x = op.matmul(x, relax.const(weight))
    return x
expected = lambda x: x @ weight @ weight @ weight @ weight
def check_far(**options):
    function = machine(matmuls, (8, 32), **options)
    for _ in range(3):
        array = normal(8, 32)
        found = function(tvm.runtime.tensor(array)).numpy()
        np.testing.assert_allclose(found, expected(array), rtol=1e-4, atol=1e-2)
check_far()
check_far(timeout_ms=60_000)

# A call that takes long.
late = machine(matmuls, (8, 32), timeout_ms=1, pace=1_000_000)
x = tvm.runtime.tensor(normal(8, 32))
"""

NEVER_LATE = """
found = late(x).numpy()
np.testing.assert_allclose(found, expected(x.numpy()), rtol=1e-4, atol=1e-2)
"""

LATE = """
with pytest.raises(RuntimeError, match="{}: it took longer than the 1 ms"):
    late(x)
check_far()
"""


@pytest.mark.parametrize(
    ("without", "then"),
    [
        ("read_counters,describe", LATE.format("was cancelled")),
        ("cancel", LATE.format("was given up")),
        ("execute", LATE.format("was cancelled")),
        # Without `submit`, execution is complete when the call returns.
        ("submit,wait,cancel", NEVER_LATE),
    ],
)
def test_a_run_half_may_lack_functions(without: str, then: str, place: Callable[..., str]) -> None:
    place(RUNS + then, EMULATOR_WITHOUT=without)


def test_two_lowerings_of_one_owner_for_the_same_calls_are_an_error(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(render(backend_name="ambiguous", op_preset="custom", ops=["relu"]), project)
    add_lowering(project, AMBIGUOUS)
    python = workshop.environment(workshop.build(project))
    done = attempt(python, "-m", "tvm_ambiguous", "check", cwd=tmp_path)
    assert done.returncode != 0
    assert "relax.nn.relu: two lowerings of the vendor are registered" in done.stdout
    assert "Traceback" not in done.stdout


WEIGHTS = """
def model(dtype="float32", size=16):
    numbers = generator.integers(-8, 8, (8 * 64 // size, size)).astype("int8")
    scales = generator.uniform(0.5, 1, len(numbers)).astype(dtype)
    x = relax.Var("x", relax.TensorType((3, 64), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            zeros = relax.const(np.zeros(len(numbers), "int8"))
            real = builder.emit(
                op.dequantize(relax.const(numbers), relax.const(scales), zeros, 0, dtype)
            )
            weight = builder.emit(op.permute_dims(builder.emit(op.reshape(real, (8, 64)))))
            result = builder.emit_output(builder.emit(op.matmul(x, weight)))
        builder.emit_func_output(result)
    return builder.get(), (numbers * scales[:, None]).reshape(8, 64).T

def run(dtype="float32", size=16):
    mod, weight = model(dtype, size)
    report = backend.offload_report(backend.partition_for_wrapped(mod))
    assert all(entry.placement == "npu" for entry in report.ops), report
    if os.path.exists(os.environ["EMULATOR_LOG"]):
        os.remove(os.environ["EMULATOR_LOG"])
    function = relax.VirtualMachine(backend.compile_for_wrapped(mod), tvm.cpu())["main"]
    x = normal(3, 64).astype(dtype)
    found = function(tvm.runtime.tensor(x)).numpy()
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(found, x @ weight, rtol=tolerance, atol=10 * tolerance)
    return {entry.composite for entry in report.ops}, log()
"""


def test_a_driver_says_whether_it_takes_weights_of_integers(place: Callable[..., str]) -> None:
    place(
        WEIGHTS
        + """
assert run() == ({"weight_only_matmul"}, ["matmul of 4 bits"])
assert run(size=64) == ({"weight_only_matmul"}, ["matmul of 4 bits 6(a,t)"])
assert run("float16") == ({"weight_only_matmul"}, ["matmul of 4 bits"])
"""
    )
    place(
        WEIGHTS
        + """
# Real numbers, made when the model is compiled: neither a scale nor an operation for them.
assert run() == ({"weight_only_matmul"}, ["matmul"])
assert run(size=64) == ({"weight_only_matmul"}, ["matmul"])
# Dequantized when the model runs.
labels, operations = run("float16")
assert labels == {"dequantize", "reshape", "linear"}, labels
assert [item.split()[0] for item in operations] == ["elementwise", "matmul"], operations
""",
        EMULATOR_WITHOUT="integer_weights",
    )
