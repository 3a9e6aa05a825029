# SPDX-License-Identifier: Apache-2.0
"""An open batch: programs of its bound, rows of the inputs again behind those of a call."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from support import array, backend, build, compile_for, partition_for, variable

BOUND = 5
OPTIONS = {"driver": "vendor", "symbol_bounds": {"n": BOUND}}
N = tirx.Var("n", "int64")
W = array(16, 8, seed=1)
IMAGES = array(3, 4, 3, 3, seed=2)


def reasons(*arguments, body):
    """Why ops stay on the host, by their names."""
    report = backend.offload_report(partition_for(build(arguments, body), **OPTIONS))
    return {it.op.removeprefix("relax."): str(it.reason) for it in report.ops if it.region is None}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Products, a convolution, reshapes and orders, with two results; exported and read again."""

    def body(emit):
        x, y = arguments
        rows = emit(op.nn.softmax(emit(op.matmul(x, relax.const(W))), -1))
        image = emit(op.reshape(x, (N, 4, 2, 2)))
        wide = emit(op.nn.conv2d(image, relax.const(IMAGES), padding=1))
        norm = emit(op.subtract(wide, emit(op.mean(wide, [1, 2, 3], keepdims=True))))
        many = emit(op.reshape(norm, (N * 3, 4)))
        turned = emit(op.permute_dims(emit(op.tanh(rows)), [1, 0]))
        # Rows in 8 groups, one behind the other.
        groups = emit(op.multiply(emit(op.reshape(turned, (8 * N,))), relax.const(np.float32(2))))
        return [emit(op.concat([rows, y], 1)), turned, emit(op.nn.relu(many)), groups]

    arguments = [variable("x", N, 16), variable("y", N, 2)]
    mod = build(arguments, body)
    assert not reasons(*arguments, body=body)
    path = tmp_path_factory.mktemp("batches") / "model.so"
    compile_for(mod, on_decline="error", **OPTIONS).export_library(str(path))
    npu = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    host = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return npu, host


@pytest.mark.parametrize("size", [*range(BOUND + 1), BOUND])
def test_a_batch_of_each_size_is_right(model, size):
    inputs = [tvm.runtime.tensor(array(size, width, seed=size)) for width in (16, 2)]
    npu, host = ([it.numpy() for it in machine["main"](*inputs)] for machine in model)
    assert [it.shape for it in npu] == [(size, 10), (8, size), (3 * size, 4), (8 * size,)]
    for found, wanted in zip(npu, host, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_batch_beyond_the_bound_says_so(model):
    inputs = [tvm.runtime.tensor(array(BOUND + 1, width)) for width in (16, 2)]
    with pytest.raises(Exception, match="at most so many rows in dimension 0; compile the model w"):
        model[0]["main"](*inputs)


def test_rows_behind_a_batch_divide_by_no_zero():
    x, y = (variable(name, N, 4, dtype="int32") for name in "xy")
    mod = build([x, y], lambda emit: emit(op.floor_divide(x, y)))
    machine = relax.VirtualMachine(compile_for(mod, on_decline="error", **OPTIONS), tvm.cpu())
    given = np.array([[7, -7, 8, 9]], "int32"), np.array([[2, 2, -3, 4]], "int32")
    found = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
    np.testing.assert_array_equal(found, given[0] // given[1])


X = variable("x", N, 16)


def columns(emit):
    """Return a product with the rows of X as columns."""
    return emit(op.matmul(relax.const(W.T), emit(op.permute_dims(X, [1, 0]))))


MIXING = {
    "nn.softmax": (lambda emit: emit(op.nn.softmax(X, 0)), "softmax runs along"),
    "sum": (lambda emit: emit(op.sum(X, 0)), "reduction reduces"),
    "matmul": (
        lambda emit: emit(op.matmul(emit(op.permute_dims(X, [1, 0])), X)),
        "matmul sums over",
    ),
    "concat": (lambda emit: emit(op.concat([X, emit(op.exp(X))], 0)), "concat joins tensors along"),
    "take": (
        lambda emit: emit(op.take(X, relax.const(np.array([0, 0], "int32")), 0)),
        "gather takes elements along",
    ),
    # What reads the reshape is declined: the elements themselves are in that order.
    "tanh": (
        lambda emit: emit(op.tanh(emit(op.reshape(columns(emit), (N, 8))))),
        "the rows of a tensor are not in its dimension of an open size",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_stays_on_the_host(name):
    body, why = MIXING[name]
    found = reasons(X, body=body)
    assert why in found[name] and "open size" in found[name], found
    assert [*found] == [name]


def test_two_open_sizes_stay_on_the_host():
    m = tirx.Var("m", "int64")
    x = variable("x", N, m)
    found = reasons(x, body=lambda emit: emit(op.tanh(x)))
    assert "a program has one open size at most" in found["tanh"]
