"""A driver that declares layouts: correct values, and no needless transposes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import ROOT, Workshop, wrap_emulator

pytestmark = pytest.mark.slow

# fmt: off
OPS = [
    "abs", "add", "adaptive_avg_pool2d", "argmax", "avg_pool2d", "batch_flatten", "clip",
    "concat", "conv1d", "conv2d", "conv2d_transpose", "cumsum", "depthwise_conv2d", "expand_dims",
    "flip", "matmul", "max_pool2d", "mean", "multiply", "pad", "permute_dims", "prelu", "relu",
    "reshape", "resize2d", "sigmoid", "softmax", "squeeze", "strided_slice", "subtract", "topk",
    "quantize", "dequantize",
]
# fmt: on

LOWERING = """
#include "lowering.h"

struct last_ops {
  uint32_t size;
  npu_status (*add_relu)(npu_builder* builder, npu_tensor data, npu_tensor out);
};

namespace {

// A matrix arrives in the header's order, all else as it is.
void Abs(npu::Lowering& op) {
  const npu::Tensor data = op.Input(0), out = op.Output();
  const bool is_matrix = data.rank() == 2;
  const npu_tensor from = is_matrix ? op.AtDriver(data) : op.AtDriver(data, data);
  const npu_tensor to = is_matrix ? op.AtDriver(out) : op.AtDriver(out, data);
  op.Check(op.Extension<last_ops>("last.ops")->add_relu(op.Builder(), from, to));
}

REGISTER_LOWERING("relax.abs", Abs);

}  // namespace
"""

MODEL = """
import os

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_last as backend
from tvm_last.engine.workbench.conformance.compiled import host_library

op = relax.op
LOG = os.environ["EMULATOR_LOG"]
BLOCKED = os.environ.get("EMULATOR_LAYOUT") == "blocked"
generator = np.random.default_rng(0)
X = (2, 4, 6, 8)

def normal(*shape):
    return generator.standard_normal(shape, dtype="float32")

def weight(*shape):
    # Small results, so that a tolerance is one of the whole network.
    return relax.const(normal(*shape) / np.float32(np.sqrt(np.prod(shape[1:]))))

def conv(x, o, i, k=3, **attributes):
    return op.nn.conv2d(x, weight(o, i, k, k), padding=k // 2, **attributes)

def build(make, *shapes):
    global generator
    generator = np.random.default_rng(1)  # The same weights each time.
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    shapes = [[n if size == "n" else size for size in shape] for shape in shapes]
    arguments = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", arguments):
        with builder.dataflow():
            made = make(*arguments)
            if isinstance(made, list):
                made = relax.Tuple([builder.emit(part) for part in made])
            result = builder.emit_output(builder.normalize(made))
        builder.emit_func_output(result)
    return builder.get()

def values(result):
    return [result.numpy()] if hasattr(result, "numpy") else [part.numpy() for part in result]

def compiled(make, *shapes, **options):
    mod = build(make, *shapes)
    report = backend.offload_report(backend.partition_for_last(mod))
    assert all(entry.placement == "npu" for entry in report.ops), report
    assert len(report.regions) == 1, report
    return backend.compile_for_last(mod, options=backend.Options(**options))

def reasons(make, *shapes):
    "Why ops stay on the host."
    report = backend.offload_report(backend.partition_for_last(build(make, *shapes)))
    return [entry.reason for entry in report.ops if entry.placement == "host"]

def check(make, *shapes, transposes=0, inputs=None):
    "Compare with llvm; count what the engine has added to the program."
    main = relax.VirtualMachine(compiled(make, *shapes), tvm.cpu())["main"]
    log = open(LOG).read().splitlines()
    log = log[len(log) - log[::-1].index("create") :]
    host = relax.VirtualMachine(host_library(build(make, *shapes)), tvm.cpu())["main"]
    for n in (3, 4):
        arrays = [normal(*(n if size == "n" else size for size in shape)) for shape in shapes]
        arguments = [tvm.runtime.tensor(array) for array in arrays]
        for found, expected in zip(values(main(*arguments)), values(host(*arguments)), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert log.count("transpose") == transposes, log
    assert log.count("input") == (len(shapes) if inputs is None else inputs), log
    return log
"""


@pytest.fixture(scope="module")
def place(
    render: Callable[..., Path], workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Run a script, after the model code, with a backend whose driver declares layouts."""
    project = tmp_path_factory.mktemp("layout") / "project"
    shutil.copytree(render(backend_name="last", op_preset="custom", ops=OPS), project)
    return wrap_emulator(project, workshop, ROOT / "tests/layout_driver.cc", LOWERING, MODEL)


LAYOUTS = pytest.mark.parametrize("layout", ["last", "blocked"])

CONVOLUTIONS = """
check(lambda x: conv(x, 6, 4), X)
check(lambda x: conv(x, 6, 2, groups=2), X)
assert "depthwise" in check(lambda x: conv(x, 4, 1, groups=4), X)
assert "depthwise" in check(lambda x: conv(x, 8, 1, groups=4), X)
check(lambda x: op.nn.conv2d(x, weight(6, 4, 3, 2), strides=(2, 1), padding=(0, 1, 1, 0)), X)
check(lambda x: op.nn.conv1d(x, weight(6, 4, 3), padding=1), (2, 4, 9))
check(
    lambda x: op.nn.conv2d_transpose(x, weight(4, 3, 3, 3), strides=(2, 2), padding=(1, 1)), X
)
# The weight is an argument: permuted at the border.
check(lambda x, w: op.nn.conv2d(x, w, padding=1), X, (6, 4, 3, 3))
check(lambda x: op.nn.relu(op.add(conv(x, 6, 4), weight(1, 6, 1, 1))), X)
check(lambda x: op.clip(op.add(conv(x, 6, 4), weight(6, 1, 1)), 0.0, 0.5), X)
check(lambda x: op.multiply(conv(x, 6, 4), weight(8)), X)
check(lambda x, y: op.nn.relu(op.add(op.add(conv(x, 4, 4), weight(1, 4, 1, 1)), y)), X, X)
check(lambda x: op.add(conv(x, 4, 4), x), X, inputs=1)
check(lambda x: op.nn.prelu(conv(x, 6, 4), weight(6), axis=1), X)
check(lambda x: op.nn.max_pool2d(x, (2, 2), strides=(2, 2)), X)
check(lambda x: op.nn.avg_pool2d(conv(x, 6, 4), (3, 3), padding=(1, 1)), X)
check(lambda x: op.nn.adaptive_avg_pool2d(conv(x, 6, 4), (1, 1)), X)
"""


@LAYOUTS
def test_convolutions_and_pools_with_their_epilogues(
    layout: str, place: Callable[..., str]
) -> None:
    place(CONVOLUTIONS, EMULATOR_LAYOUT=layout)


FOLLOWERS = """
for axis in range(4):
    # What would cut a block has the header's order.
    cuts = int(BLOCKED and axis == 1)
    widths = [0] * 8
    widths[2 * axis : 2 * axis + 2] = 1, 2
    check(lambda x: op.nn.pad(conv(x, 4, 4), widths), X, transposes=cuts)
    check(lambda x: op.strided_slice(conv(x, 6, 4), [axis], [1], [X[axis]]), X, transposes=cuts)
    check(lambda x: op.concat([conv(x, 4, 4), conv(x, 4, 4)], axis=axis), X)
    check(lambda x: op.flip(conv(x, 4, 4), axis), X, transposes=cuts)
    check(lambda x: op.nn.softmax(conv(x, 4, 4), axis), X)
    check(lambda x: op.mean(conv(x, 4, 4), [axis], keepdims=False), X)
    check(lambda x: op.cumsum(conv(x, 4, 4), axis=axis), X, transposes=cuts)
    check(lambda x: op.topk(conv(x, 4, 4), k=2, axis=axis, ret_type="values"), X, transposes=cuts)
check(lambda x: op.argmax(conv(x, 6, 4), axis=1), X, transposes=int(BLOCKED))
# Parts that end at blocks, and parts of which one does not.
check(lambda x: op.strided_slice(conv(x, 6, 4), [1], [2], [6]), X)
check(lambda x: conv(op.nn.pad(conv(x, 4, 4), [0, 0, 2, 4, 0, 0, 0, 0]), 4, 10), X)
pieces = lambda x: op.concat([conv(x, 4, 4), conv(x, 3, 4), conv(x, 1, 4)], axis=1)
check(pieces, X, transposes=int(BLOCKED))
check(lambda x: conv(pieces(x), 4, 8), X, transposes=2 * int(BLOCKED))
check(lambda x: op.mean(conv(x, 6, 4), [2, 3], keepdims=True), X)
check(lambda x: op.mean(conv(x, 6, 4), [2, 3], keepdims=False), X)
check(lambda x: op.mean(conv(x, 6, 4), [0, 3], keepdims=False), X)
# What comes before the first convolution has the layout that it wants.
check(lambda x: conv(op.multiply(op.subtract(x, weight(1, 4, 1, 1)), weight(4, 1, 1)), 6, 4), X)
check(lambda x: op.nn.conv2d(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]), weight(6, 4, 3, 3)), X)
check(lambda x, y: conv(op.concat([x, y], axis=1), 4, 8), X, X)
check(lambda x: op.concat([x, conv(x, 4, 4)], axis=1), X, inputs=1)
# Without a convolution nothing is stored in another order.
check(lambda x, y: op.nn.softmax(op.add(x, y), 1), X, X)
nearest = dict(
    method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor"
)
check(lambda x: conv(op.image.resize2d(conv(x, 6, 4), (12, 16), **nearest), 4, 6), X)
"""


@LAYOUTS
def test_operations_without_a_layout_take_that_of_their_operands(
    layout: str, place: Callable[..., str]
) -> None:
    place(FOLLOWERS, EMULATOR_LAYOUT=layout)


VIEWS = """
flat = lambda x: op.reshape(x, (2, 288))
check(lambda x: flat(conv(x, 6, 4)), X)
check(lambda x: op.matmul(flat(conv(x, 6, 4)), weight(288, 5)), X, transposes=1)
pooled = lambda x: op.nn.adaptive_avg_pool2d(conv(x, 6, 4), (1, 1))
check(lambda x: op.matmul(op.reshape(pooled(x), (2, 6)), weight(6, 5)), X)
means = lambda x: op.mean(x, [2, 3], keepdims=False)
check(lambda x: op.matmul(means(conv(x, 6, 4)), weight(6, 5)), X)
# A view of an input is permuted as what it is read as, also where its dimensions are joined.
check(lambda x: conv(op.reshape(x, X), 6, 4), (2, 192))
wide = lambda x: op.nn.conv2d(op.expand_dims(x, 2), weight(6, 4, 1, 3), padding=(0, 1))
check(lambda x: op.squeeze(wide(x), [2]), (2, 4, 9))
check(lambda x: op.permute_dims(conv(x, 6, 4), [0, 2, 3, 1]), X)
last = lambda x: op.permute_dims(conv(x, 6, 4), [0, 2, 3, 1])
check(lambda x: op.matmul(last(x), weight(6, 5)), X, transposes=int(BLOCKED))
check(lambda x: op.nn.relu(last(x)), X)
check(lambda x: conv(op.permute_dims(x, [0, 3, 1, 2]), 6, 8), X)
check(lambda x: conv(op.permute_dims(conv(x, 6, 4), [0, 1, 3, 2]), 6, 6), X, transposes=1)
# A shuffle of channels: the one copy that it is; and, where it cuts blocks, one out of them.
grouped = lambda x: op.permute_dims(op.reshape(x, (2, 3, 2, 6, 8)), [0, 2, 1, 3, 4])
shuffled = lambda x: conv(op.reshape(grouped(conv(x, 6, 4)), (2, 6, 6, 8)), 4, 6)
check(shuffled, X, transposes=1 + int(BLOCKED))
# Read by a convolution and by a matmul: two inputs of the program.
mixed = lambda x: op.concat([conv(x, 4, 4), op.matmul(x, weight(8, 8))], axis=1)
check(mixed, X, inputs=2, transposes=1)
# No convolution: matmuls have the transpositions of the model.
heads = lambda x: op.reshape(op.matmul(x, weight(16, 16)), (2, 5, 4, 4))
scores = lambda x: op.matmul(
    op.permute_dims(heads(x), [0, 2, 1, 3]), op.permute_dims(heads(x), [0, 2, 3, 1])
)
check(scores, (2, 5, 16), transposes=2)
"""


@LAYOUTS
def test_views_and_permutations_cost_a_transpose_only_if_elements_move(
    layout: str, place: Callable[..., str]
) -> None:
    place(VIEWS, EMULATOR_LAYOUT=layout)


NETWORKS = """
def network(x, batch=2):
    x = op.nn.relu(op.add(conv(x, 8, 3), weight(1, 8, 1, 1)))
    x = op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1))
    for _ in range(2):
        y = op.nn.relu(op.add(conv(x, 8, 8), weight(1, 8, 1, 1)))
        y = op.add(conv(y, 8, 8), weight(1, 8, 1, 1))
        # Squeeze and excite.
        scale = op.sigmoid(conv(op.nn.adaptive_avg_pool2d(y, (1, 1)), 8, 8, 1))
        x = op.nn.relu(op.add(x, op.multiply(y, scale)))
    x = op.nn.adaptive_avg_pool2d(x, (1, 1))
    return op.nn.softmax(op.add(op.matmul(op.reshape(x, (batch, 8)), weight(8, 10)), weight(10)))

log = check(network, (2, 3, 16, 16))
assert log.count("convolution") == 7, log
assert log.count("in blocks") == 7 * int(BLOCKED), log

def inner(x):
    first = op.nn.relu(conv(x, 6, 4))
    return [first, conv(first, 4, 6), x]

check(inner, X)
check(lambda x: op.nn.relu(op.add(conv(x, 6, 4), weight(1, 6, 1, 1))), ("n", 4, 6, 8))
small = lambda x: op.nn.max_pool2d(conv(x, 6, 4), (6, 8))
check(lambda x: op.matmul(op.nn.batch_flatten(small(x)), weight(6, 5)), ("n", 4, 6, 8))
check(lambda x: op.nn.batch_flatten(conv(x, 6, 4)), ("n", 4, 6, 8))

# Exported, and loaded in another process, where the model is not compiled.
import subprocess, sys

executable = compiled(network, (2, 3, 16, 16))
executable.export_library("network.so")
x = normal(2, 3, 16, 16)
np.save("x.npy", x)
found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
np.save("found.npy", found)
subprocess.run(
    [sys.executable, "-c", '''
import numpy as np, tvm, tvm_last
from tvm import relax
machine = relax.VirtualMachine(tvm.runtime.load_module("network.so"), tvm.cpu())
found = machine["main"](tvm.runtime.tensor(np.load("x.npy"))).numpy()
np.testing.assert_array_equal(found, np.load("found.npy"))
'''],
    check=True,
)
text = subprocess.run(
    [sys.executable, "-m", "tvm_last", "inspect", "network.so"],
    check=True, capture_output=True, text=True,
).stdout
assert "ports=" in text, text

# Requests that are submitted: the second reads what the first writes, before any wait.
mod = backend.partition_for_last(build(lambda x: op.nn.relu(conv(x, 4, 4)), X))
(module,) = relax.transform.RunCodegen({"last": {}})(mod).attrs["external_mods"]
symbol = str(module["get_symbol"]())
a, b, c, d, e = (tvm.runtime.tensor(normal(*X)) for _ in range(5))
module[symbol](a, b)
module[symbol](b, c)
module[symbol + ".submit"](a, d)
module[symbol + ".submit"](d, e)
tvm_ffi.get_global_func("last.runtime.wait_all")()
np.testing.assert_array_equal(c.numpy(), e.numpy())
np.testing.assert_array_equal(b.numpy(), d.numpy())
assert np.abs(c.numpy()).max() > 0
"""


QUANTIZED = """
STEP = 0.0171  # Without ties, which llvm's kernels round to even.

def as_integers(x, step=1 / 32):
    scale, zero = relax.const(np.float32(step)), relax.const(np.int8(5))
    return op.dequantize(op.quantize(x, scale, zero, -1, "int8"), scale, zero, -1)

def integers(make, *shapes):
    "Compare with llvm, whose kernels round real numbers: a few may be one step off."
    def whole(*inputs):
        first = conv(as_integers(inputs[0]), 4, 4)  # So that the data is in the driver's order.
        return as_integers(make(as_integers(first), *map(as_integers, inputs[1:])), STEP)
    mod = build(whole, *shapes)
    report = backend.offload_report(backend.partition_for_last(mod))
    labels = {entry.composite for entry in report.ops}
    program = relax.VirtualMachine(compiled(whole, *shapes), tvm.cpu())["main"]
    host = relax.VirtualMachine(host_library(mod), tvm.cpu())["main"]
    arrays = [tvm.runtime.tensor(normal(*shape)) for shape in shapes]
    found, expected = program(*arrays).numpy(), host(*arrays).numpy()
    assert np.abs(expected).max() > 0.1
    wrong = np.abs(found - expected) / STEP
    assert wrong.max() < 1.01 and (wrong > 0.5).mean() < 0.2, (labels, wrong)
    return labels

pool = op.nn.avg_pool2d
window = dict(pool_size=(3, 3), strides=(2, 1), padding=(1, 0, 0, 1))
assert "quantized_avg_pool2d" in integers(lambda x: pool(x, **window), X)
assert "quantized_avg_pool2d" in integers(lambda x: pool(x, count_include_pad=True, **window), X)
for size in ((1, 1), (3, 4), (4, 3), (5, 7)):
    labels = integers(lambda x: op.nn.adaptive_avg_pool2d(x, size), X)
    assert "quantized_adaptive_avg_pool2d" in labels
assert "quantized_mean" in integers(lambda x: op.mean(x, [1, 3], keepdims=True), X)
assert "quantized_mean" in integers(lambda x: op.mean(x, [2, 3]), X)
assert "quantized_sigmoid" in integers(op.sigmoid, X)
assert "quantized_softmax" in integers(lambda x: op.nn.softmax(x, 1), X)
assert {"requantize", "concat"} <= integers(lambda x, y: op.concat([x, y], 1), X, X)
"""


@LAYOUTS
def test_quantized_tensors_are_laid_out_like_others(layout: str, place: Callable[..., str]) -> None:
    place(QUANTIZED, EMULATOR_LAYOUT=layout)


@LAYOUTS
def test_a_network_has_transposes_only_at_its_boundary(
    layout: str, place: Callable[..., str]
) -> None:
    place(NETWORKS, EMULATOR_LAYOUT=layout)


EXTENSION = """
def transposes(make, *shapes):
    "The vendor's abs, which is a relu, between other operations."
    main = relax.VirtualMachine(compiled(lambda x: make(op.abs, x), *shapes), tvm.cpu())["main"]
    log = open(LOG).read().splitlines()
    log = log[len(log) - log[::-1].index("create") :]
    same = build(lambda x: make(op.nn.relu, x), *shapes)
    host = relax.VirtualMachine(host_library(same), tvm.cpu())["main"]
    x = tvm.runtime.tensor(normal(*shapes[0]))
    np.testing.assert_allclose(main(x).numpy(), host(x).numpy(), rtol=1e-4, atol=1e-4)
    assert "relu of the vendor's" in log, log
    return log.count("transpose")

assert transposes(lambda relu, x: conv(relu(conv(x, 6, 4)), 4, 6), X) == 0
assert transposes(lambda relu, x: relu(op.matmul(x, weight(8, 8))), (4, 8)) == 0
# It reads a matrix in the header's order.
assert transposes(lambda relu, x: relu(op.reshape(conv(x, 6, 4), (2, 288))), X) == 1
"""


@LAYOUTS
def test_a_lowering_of_the_vendors_gets_the_drivers_tensors(
    layout: str, place: Callable[..., str]
) -> None:
    place(EXTENSION, EMULATOR_LAYOUT=layout)


WRONG = """
(found,) = reasons(lambda x: conv(x, 6, 4), X)
assert "declares the layout (0, 0, 0, 0), which is not a permutation of 4" in found, found
"""

INDIVISIBLE = """
(found,) = reasons(lambda x: conv(x, 6, 4), X)
assert "declares blocks of 3 for dimension 1, whose size 4 is no multiple of that" in found, found
(found,) = reasons(lambda x, w: op.nn.conv2d(x, w), ("n", "n", 6, 8), (6, "n", 3, 3))
assert "blocks of 3 for dimension 1, whose size is known only at the call" in found, found
"""

NEGATIVE = """
(found,) = reasons(lambda x: conv(x, 6, 4), X)
assert "declares blocks of -1 for dimension 1; 0 is for none" in found, found
"""

DECLINED = """
assert reasons(lambda x: op.nn.relu(conv(x, 6, 4)), X) == []
between = lambda x: conv(op.permute_dims(conv(x, 6, 4), [0, 1, 3, 2]), 6, 6)
found = " ".join(reasons(between, X))
order = "from the order (0, 2, 3, 1) of its dimensions to (0, 3, 2, 1): it cannot transpose"
assert order in found, found
"""


REFUSED = [
    ("wrong", WRONG),
    ("indivisible", INDIVISIBLE),
    ("negative", NEGATIVE),
    ("declined", DECLINED),
]


@pytest.mark.parametrize(("behaviour", "script"), REFUSED)
def test_what_cannot_be_laid_out_stays_on_the_host_with_a_reason(
    behaviour: str, script: str, place: Callable[..., str]
) -> None:
    place(script, EMULATOR_LAYOUT=behaviour)
