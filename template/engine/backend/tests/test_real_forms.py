# SPDX-License-Identifier: Apache-2.0
"""Quantized models on drivers that decline integers: they compute them with real numbers."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import support
from backend.engine.backend.ir.amounts import is_product
from backend.engine.backend.ir.calls import Constant
from backend.engine.backend.table.reasons import Code
from backend.engine.workbench.conformance import onnx_networks, quantized_networks
from narrow_drivers import NARROW, REAL, composites_of, declines
from support import build, compile_for, needs_library, partition_for, variable

pytestmark = pytest.mark.usefixtures("bound_constants")

needs = support.needs
op = relax.op
needs_networks = needs_library("onnx", "onnxruntime")
NETWORKS = [
    pytest.param(
        name,
        kind,
        where,
        marks=()
        if name == "resnet" and (where == "composite" or kind == "integers")
        else pytest.mark.thorough,
    )
    for name in ("resnet", "mobilenet")
    for kind in NARROW
    for where in ("composite", "region")
]


@cache
def network(name):
    """Return a quantized network with its arguments and result, and the report of its float form.

    Also whether both run on the NPU alone, and the products as integers.
    """
    mod, arguments, (expected,) = quantized_networks.read(name, "qdq")
    float_form = backend.offload_report(partition_for(onnx_networks.read(name)[0]))
    rows = (*float_form.on_host, *backend.offload_report(partition_for(mod)).on_host)
    is_whole = all(item.bookkeeping for item in rows)
    has_integers = support.lacks_integers("conv2d", "matmul") is None
    return mod, arguments, expected, float_form, is_whole and has_integers


def macs_of(ops):
    return sum(item.macs or 0 for item in ops)


def run(mod, arguments, **options):
    machine = relax.VirtualMachine(compile_for(mod, **options), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, arguments))
    return (result if isinstance(result, tvm.runtime.Tensor) else result[0]).numpy()


@needs_networks
@needs("quantize", "dequantize", "conv2d", "matmul")
@pytest.mark.parametrize(("name", "kind", "where"), NETWORKS)
def test_a_network_keeps_all_products_on_the_npu(name, kind, where, decline):
    mod, arguments, expected, float_form, is_whole = network(name)
    decline(declines(kind, where))
    report = backend.offload_report(partition_for(mod))
    assert macs_of(report.ops) == macs_of(float_form.ops) > 0
    assert macs_of(report.offloaded) >= macs_of(float_form.offloaded)
    products = [item for item in report.offloaded if is_product(item.op)]
    declined = [item for item in products if item.wider and NARROW[kind] in item.wider]
    assert all(item.composite.startswith("quantized_") or item.wider for item in products)
    assert {item.wider_code for item in declined} <= {Code.DECLINED.value}
    if support.IS_EMULATOR and is_whole:
        for item in declined:
            assert item.wider.startswith("the driver declines it with integers: ")
        everything = kind in ("integers", "conversions")
        assert macs_of(report.offloaded) == macs_of(report.ops)
        assert declined or kind not in ("3x3", "integers", "conversions")
        assert len(declined) == len(products) or not everything
        host = {item.op for item in report.on_host if not item.bookkeeping}
        left = {"relax.quantize", "relax.dequantize"} if kind == "conversions" else set()
        assert host == left
    found = run(mod, arguments)
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


X, W = variable("x", 1, 8, 6, 6, dtype="int8"), np.arange(-72, 72, dtype="int8")
ARGUMENT = (np.arange(288) % 255 - 127).astype("int8").reshape(1, 8, 6, 6)


def real(data, scale, axis=1):
    scale = np.asarray(scale, "float32")
    return op.dequantize(data, relax.const(scale), relax.const(np.zeros(scale.shape, "int8")), axis)


def integers(data, scale=0.5):
    return op.quantize(data, relax.const(np.float32(scale)), relax.const(np.int8(0)), 1, "int8")


def convolution(scales=(0.01, 0.02)):
    """Build a model whose weight has a scale for each channel."""
    weight = relax.const(W.reshape(2, 8, 3, 3))
    bias = relax.const(np.array([0.5, -0.25], "float32").reshape(1, 2, 1, 1))
    return build(
        [X],
        lambda emit: integers(
            op.nn.relu(op.add(op.nn.conv2d(real(X, 0.1), real(weight, scales, 0)), bias))
        ),
    )


def expected_of(scales=(0.01, 0.02)):
    windows = np.lib.stride_tricks.sliding_window_view(ARGUMENT.astype("int64"), (3, 3), (2, 3))
    sums = np.einsum("ncyxij,ocij->noyx", windows, W.reshape(2, 8, 3, 3).astype("int64"))
    reals = sums * 0.1 * np.array(scales).reshape(2, 1, 1)
    reals = np.maximum(reals + np.array([0.5, -0.25]).reshape(2, 1, 1), 0)
    return np.clip(np.rint(reals / 0.5), -128, 127)


def types_of_weights(function):
    found = []

    def visit(expr):
        if isinstance(expr, Constant) and tuple(expr.value.shape) == (2, 8, 3, 3):
            found.append(str(expr.value.dtype))

    relax.analysis.post_order_visit(function, visit)
    return found


needs_convolution = needs("quantize", "dequantize", "conv2d", "add", "relu")


@needs_convolution
def test_a_product_that_is_declined_with_integers_is_fused_as_one_of_real_numbers(decline):
    support.skip_without_integers("conv2d")
    mod = convolution()
    x = variable("x", 1, 8, 6, 6)
    float_form = build(
        [x],
        lambda emit: op.nn.relu(
            op.add(
                op.nn.conv2d(x, relax.const(W.reshape(2, 8, 3, 3).astype("float32"))),
                relax.const(np.ones((1, 2, 1, 1), "float32")),
            )
        ),
    )
    wanted = [item.composite for item in backend.offload_report(partition_for(float_form)).ops]
    if None in wanted:
        pytest.skip("the driver does not take it with real numbers")
    decline(declines("integers", "composite"))
    partitioned = partition_for(mod)
    ops = backend.offload_report(partitioned).ops
    # The dequantize of the weight is gone, that of the data not.
    assert [item.op.removeprefix("relax.") for item in ops] == [
        *("dequantize", "nn.conv2d", "add", "nn.relu", "quantize")
    ]
    assert [item.composite for item in ops[1:4]] == wanted
    (product,) = (item for item in ops if item.op == "relax.nn.conv2d")
    assert product.runs_in == "float32"
    assert product.asked == "int8"
    assert product.wider == f"the driver declines it with integers: {NARROW['integers']}"
    found = run(mod, [ARGUMENT])
    assert np.abs(found.astype("int64") - expected_of()).max() <= 1


@support.needs_reals
@needs_convolution
@pytest.mark.parametrize("where", ["composite", "region"])
def test_weights_of_a_product_on_the_host_stay_integers(where, decline):
    support.skip_without_integers("conv2d")
    mod = convolution()
    decline(declines("nothing", where))
    partitioned = partition_for(mod)
    report = backend.offload_report(partitioned)
    (product,) = (item for item in report.ops if item.op == "relax.nn.conv2d")
    assert product.placement == "host"
    if support.IS_EMULATOR:
        assert NARROW["integers"] in product.reason or REAL in product.reason
    assert types_of_weights(partitioned["main"]) == ["int8"]
    weights = [item for item in report.ops if item.op == "relax.dequantize"]
    assert len(weights) == 2
    assert all(item.reason for item in report.on_host)
    found = run(mod, [ARGUMENT])
    assert np.abs(found.astype("int64") - expected_of()).max() <= 1


@needs_convolution
def test_weights_of_a_region_that_is_too_small_stay_integers(decline):
    support.skip_without_integers("conv2d")
    mod = convolution()
    decline(declines("integers", "composite"))
    partitioned = partition_for(mod, min_region_ops=100)
    report = backend.offload_report(partitioned)
    assert report.offloaded == ()
    assert types_of_weights(partitioned["main"]) == ["int8"]
    assert sum(item.op == "relax.dequantize" for item in report.ops) == 2
    found = run(mod, [ARGUMENT], min_region_ops=100)
    assert np.abs(found.astype("int64") - expected_of()).max() <= 1


@needs("quantize", "dequantize", "matmul")
def test_integer_weights_alone_become_real_numbers(decline):
    """Also where the weight is transposed behind its dequantize."""
    support.skip_without_integers("matmul")
    weight = relax.const(np.arange(-12, 12, dtype="int8").reshape(4, 6))
    scales = np.linspace(0.1, 0.4, 4).astype("float32")
    x = variable("x", 3, 6)
    mod = build(
        [x],
        lambda emit: op.matmul(x, op.permute_dims(real(weight, scales, 0))),
    )
    data = np.linspace(-1, 1, 18).astype("float32").reshape(3, 6)
    right = data @ (weight.value.numpy() * scales[:, None]).T
    (product,) = (item for item in support.report_of(mod).ops if item.op == "relax.matmul")
    if not (product.composite or "").startswith("weight_only_"):
        pytest.skip("the driver does not take it")
    decline(declines("integers", "composite"))
    report = support.report_of(mod)
    np.testing.assert_allclose(run(mod, [data]), right, rtol=1e-5, atol=1e-5)
    (product,) = (item for item in report.ops if item.op == "relax.matmul")
    assert product.composite == "matmul"
    assert [item.op for item in report.ops] == ["relax.matmul"]
    assert product.wider is None or "no products of integers" in product.wider


@support.needs_reals
@needs("quantize", "dequantize", "matmul")
@pytest.mark.parametrize("where", ["composite", "region"])
def test_weights_that_are_rearranged_on_the_host_stay_integers(where, decline):
    support.skip_without_integers("matmul")
    weight = relax.const(np.arange(-12, 12, dtype="int8").reshape(8, 3))
    scales = np.linspace(0.1, 0.8, 8).astype("float32")
    x = variable("x", 3, 6)
    mod = build(
        [x],
        lambda emit: op.matmul(
            x, emit(op.permute_dims(emit(op.reshape(emit(real(weight, scales, 0)), (4, 6)))))
        ),
    )
    decline(declines("nothing", where))
    partitioned = partition_for(mod)
    (product,) = (
        item for item in backend.offload_report(partitioned).ops if item.op == "relax.matmul"
    )
    assert product.placement == "host"
    data = np.linspace(-1, 1, 18).astype("float32").reshape(3, 6)
    right = data @ (weight.value.numpy() * scales[:, None]).reshape(4, 6).T
    np.testing.assert_allclose(run(mod, [data]), right, rtol=1e-5, atol=1e-5)


@needs("quantize", "dequantize", "add")
@pytest.mark.parametrize("where", ["composite", "region"])
def test_an_addition_that_is_declined_with_integers_is_one_of_real_numbers(where, decline):
    support.skip_without_integers("add")
    y = variable("y", 1, 8, 6, 6, dtype="int8")
    a, b = variable("a", 1, 8, 6, 6), variable("b", 1, 8, 6, 6)
    mod = build([X, y], lambda emit: integers(op.add(real(X, 0.1), real(y, 0.2))))
    parts = [
        build([X], lambda emit: real(X, 0.1)),
        build([a, b], lambda emit: op.add(a, b)),
        build([a], lambda emit: integers(a)),
    ]
    if any(support.report_of(part).on_host for part in (mod, *parts)):
        pytest.skip("the driver does not take it")
    decline(declines("integers", where))
    report = support.report_of(mod)
    (sum_,) = (item for item in report.ops if item.op == "relax.add")
    assert (sum_.composite, sum_.runs_in) == ("add", "float32")
    assert NARROW["integers"] in sum_.wider
    right = np.rint((ARGUMENT * 0.1 + ARGUMENT * 0.2) / 0.5)
    found = run(mod, [ARGUMENT, ARGUMENT])
    assert np.abs(found.astype("int64") - np.clip(right, -128, 127)).max() <= 1


def test_the_narrow_drivers_decline_what_they_say(decline):
    """Regions have composites as functions; a composite is one itself."""
    asked = []

    def note(function, finish):
        asked.append((finish, len(composites_of(function))))
        return ""

    decline(note)
    support.report_of(convolution())
    assert all(count == 1 or finish for finish, count in asked)
