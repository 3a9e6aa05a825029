# SPDX-License-Identifier: Apache-2.0
"""Quantized models: the suite `quantized` of the kit, a network, and its canonical form.

These tests run each op and each variant of the suite once; the command `conformance` runs all.
"""

import itertools
import re
import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import quick_cases
import support
from backend.engine.backend.ir.amounts import is_product
from backend.engine.backend.ir.calls import Constant, with_arguments
from backend.engine.backend.passes import simplify
from backend.engine.backend.shared.backend import OPS
from backend.engine.backend.table.chip import ROUNDINGS, Chip, Limits, Requantize
from backend.engine.backend.table.patterns import make_patterns
from backend.engine.backend.table.table import Table
from backend.engine.backend.table.tolerances import Buckets, Exact
from backend.engine.backend.verification.originals import original_of
from backend.engine.workbench.conformance import (
    numpy_reference,
    onnx_networks,
    quantized,
    quantized_networks,
)
from backend.engine.workbench.conformance.catalog_cases import Case
from backend.engine.workbench.conformance.model import Model, Tensor, compute
from support import build, compile_for, host_library, needs_library, variable

pytestmark = pytest.mark.usefixtures("bound_constants")

needs = support.needs
op = relax.op
INTEGERS = ("int8", "uint8", "int16")
CASES = quick_cases.of_quantized()


@cache
def outcomes():
    return support.outcomes_of(quantized.SUITE, CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_suite_of_quantized_tensors(case):
    support.assert_passed(outcomes()[case])


skip_without_integers = support.skip_without_integers
skip_without_int16 = support.skip_without_int16


# ---- The reference ------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_rescaling_is_the_exact_quotient_rounded(rounding):
    generator = np.random.default_rng(7)
    values = [0, 1, -1, 2**31 - 1, -(2**31), *map(int, generator.integers(-(2**31), 2**31, 50))]
    for shift in (-3, 0, 1, 2, 7, 31, 32, 40, 62):
        multiplier = int(generator.integers(2**30, 2**31))
        for value, result in zip(
            values, numpy_reference.rescale(values, multiplier, shift, rounding), strict=True
        ):
            exact = value * multiplier * Fraction(2) ** -shift
            slack = Fraction(1, 2) if rounding not in ("down", "to_zero") else 1
            if rounding == "double" and shift > 31:
                slack += Fraction(2**30, 2**shift)
            assert abs(result - exact) <= slack
            if rounding == "down":
                assert result <= exact
            if rounding == "to_zero":
                assert abs(result) <= abs(exact)
            if abs(result - exact) == Fraction(1, 2):
                assert rounding != "half_up" or result > exact
                assert rounding != "half_even" or result % 2 == 0
                assert rounding != "half_away" or abs(result) > abs(exact)


def test_a_factor_has_as_many_bits_as_the_chip():
    for bits in (7, 15, 31):
        for factor in (0.5, 0.9999999999, 1.0, 0.0001, 3.7, 150.0, 2.0**-20):
            multiplier, shift = numpy_reference.factors(factor, bits)
            assert 2 ** (bits - 1) <= multiplier < 2**bits
            assert abs(multiplier / 2.0**shift - factor) <= factor * 2.0**-bits


def test_an_impossible_rule_is_refused():
    with pytest.raises(ValueError, match="multiplier_bits is 40; supported: 1 to 31"):
        Requantize(multiplier_bits=40)
    with pytest.raises(ValueError, match="wide_multiplier_bits is 0; supported: 1 to 31"):
        Requantize(wide_multiplier_bits=0)
    with pytest.raises(ValueError, match="rounding is 'up'; supported: half_up, double"):
        Requantize(rounding="up")
    with pytest.raises(ValueError, match="shifts are 5 to 2"):
        Requantize(shifts=(5, 2))
    with pytest.raises(ValueError, match=r"1 steps off in a share of 2; supported"):
        Requantize(steps=1, share=2)
    with pytest.raises(ValueError, match="steps is -1"):
        Buckets(-1)
    with pytest.raises(ValueError, match="rounds is 'up'; it is either 'half_even' or 'half_away'"):
        Chip(rounds="up")


def test_a_chip_may_rescale_in_float32():
    """A sum of 25 bits loses one before it is rescaled; halves go to even."""
    sums = np.array([1, 3, 5, -3, 2**24 + 1, -(2**24) - 1, 7], np.float64)
    scale, step = np.float64(np.float32(0.1)) * np.float64(np.float32(0.3)), np.float32(0.06)
    rule = Requantize(rounding="float32")
    chip = Chip(requantize=rule)
    found = numpy_reference.requantize(sums, scale, step, chip)
    single = np.float32(scale) / step
    assert [*found] == [float(np.rint(np.float32(value) * single)) for value in sums]
    assert found[4] == np.rint(np.float32(2**24) * single) == -found[5]
    halves = np.array([1.0, 3.0, 5.0, -3.0])
    assert [*numpy_reference.requantize(halves, 0.5, 1, chip)] == [0, 2, 2, -2]
    away = Chip(requantize=rule, rounds="half_away")
    assert [*numpy_reference.requantize(halves, 0.5, 1, away)] == [1, 2, 3, -2]
    # Codegen gets a rule that drivers with steps could have.
    assert rule.numbers[-1] == ROUNDINGS.index("half_even")
    assert rule.tolerance == Exact()
    assert Requantize(rounding="float32", steps=1, share=0.01).tolerance == Buckets(1, 0.01)


def test_halves_are_rounded_as_the_chip_says():
    below = np.nextafter(np.float32(0.5), np.float32(0))
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5, below, -below, 2.4, -2.6, 0], np.float32)
    one, zero = np.float32(1), np.int8(3)

    def quantized(halves):
        found = numpy_reference.quantize(numbers, one, np.asarray(zero), -1, "int8", halves)
        return [*(found - 3)]

    assert quantized("half_even") == [0, 2, 2, 0, -2, 0, 0, 2, -3, 0]
    assert quantized("half_away") == [1, 2, 3, -1, -2, 0, 0, 2, -3, 0]


# ---- A network ----------------------------------------------------------------------------------

RNG = np.random.default_rng(3)


def scale_of(number):
    return relax.const(np.asarray(number, "float32"))


def quantize(emit, x, scale, zero_point, dtype="int8"):
    zero = relax.const(np.asarray(zero_point, dtype))
    return emit(op.quantize(x, scale_of(scale), zero, -1, dtype))


def dequantize(emit, x, scale, zero_point, axis=-1):
    zero = relax.const(np.asarray(zero_point, str(x.ty.dtype)))
    return emit(op.dequantize(x, scale_of(scale), zero, axis))


def both(emit, x, scale, zero_point):
    """Quantize and dequantize, like exporters between ops."""
    return dequantize(emit, quantize(emit, x, scale, zero_point), scale, zero_point)


def weights(emit, shape, axis):
    scales = RNG.uniform(0.5, 1, shape[axis]) / 127 / np.sqrt(np.prod(shape) / shape[axis])
    numbers = relax.const(RNG.integers(-127, 128, shape).astype("int8"))
    return dequantize(emit, numbers, scales, np.zeros(shape[axis]), axis), scales


IMAGE = variable("image", 1, 8, 12, 12)


def network(emit):
    """Build a pool, a residual block and a classifier as a QDQ model."""
    x = both(emit, IMAGE, 0.02, 3)
    weight, scales = weights(emit, (16, 8, 3, 3), 0)
    value = emit(op.nn.conv2d(x, weight, padding=1))
    steps = relax.const(RNG.integers(-2000, 2000, (1, 16, 1, 1)).astype("int32"))
    value = emit(op.add(value, dequantize(emit, steps, 0.02 * scales, np.zeros(16), 1)))
    value = both(emit, emit(op.nn.relu(value)), 0.02, -128)
    value = both(emit, emit(op.nn.max_pool2d(value, (2, 2), (2, 2))), 0.02, -128)
    other = emit(op.nn.conv2d(value, weights(emit, (16, 16, 3, 3), 0)[0], padding=1))
    other = both(emit, other, 0.03, 5)
    value = both(emit, emit(op.nn.relu(emit(op.add(other, value)))), 0.03, -128)
    flat = both(emit, emit(op.reshape(value, (1, 16 * 36))), 0.03, -128)
    return both(emit, emit(op.matmul(flat, weights(emit, (16 * 36, 10), 1)[0])), 0.03, 0)


def bindings_of(mod):
    return [item for block in mod["main"].body.blocks for item in block.bindings]


def ops_of(mod):
    values = [item.value for item in bindings_of(mod)]
    return [value.op.name.rpartition(".")[2] for value in values if isinstance(value, relax.Call)]


def on_both(mod, value):
    """Run a model here and on the host."""
    return [
        relax.VirtualMachine(program, tvm.cpu())["main"](tvm.runtime.tensor(value)).numpy()
        for program in (compile_for(mod), host_library(mod))
    ]


@support.needs_reals
@needs("conv2d", "matmul", "max_pool2d", "add", "reshape", "quantize", "dequantize")
def test_a_network_is_integers_from_its_input_to_its_output():
    mod = build([IMAGE], network)
    skip_without_integers("conv2d", "matmul")
    support.skip_where_declined(mod)
    report = support.placement(support.partition_for(mod), "main")
    (labels,) = report.regions
    assert sorted(labels) == sorted(
        [
            *("quantize", "quantized_conv2d_bias", "max_pool2d", "quantized_conv2d"),
            *("quantized_add", "reshape", "quantized_matmul", "dequantize"),
        ]
    )
    value = RNG.standard_normal((1, 8, 12, 12)).astype("float32")
    found, expected = on_both(mod, value)
    assert np.abs(expected).max() > 0.3
    # Each layer may be off by one step, but few are.
    assert np.abs(found - expected).max() <= 2 * 0.03 + 1e-6


@needs("conv2d", "add", "max_pool2d", "reshape", "dequantize")
def test_the_passes_leave_one_form():
    mod = simplify(build([IMAGE], network), Table(OPS))
    ops = ops_of(mod)
    # The quantize ops clip like the relus; pool and reshape move integers.
    assert "relu" not in ops
    assert ops.count("quantize") == 5
    assert ops[:4] == ["quantize", "dequantize", "dequantize", "conv2d"]


@needs("matmul", "add", "reshape", "quantize", "dequantize")
def test_a_layer_whose_result_is_reshaped_before_it_is_quantized_is_integers():
    """torch exports a linear layer on several dimensions like this."""
    skip_without_integers("matmul")
    x = variable("x", 2, 4, 8)

    def layer(emit):
        flat = emit(op.reshape(both(emit, x, 0.02, 3), (8, 8)))
        value = emit(op.matmul(flat, weights(emit, (8, 6), 1)[0]))
        value = emit(op.add(value, relax.const(np.arange(6, dtype="float32") / 6)))
        return both(emit, emit(op.reshape(value, (2, 4, 6))), 0.03, -2)

    mod = build([x], layer)
    ops = backend.offload_report(support.partition_for(mod)).ops
    found = [item.composite for item in ops if item.op == "relax.matmul"]
    assert found == ["quantized_matmul_bias"]
    value = RNG.standard_normal((2, 4, 8)).astype("float32")
    npu, host = on_both(mod, value)
    assert np.abs(host).max() > 0.3
    assert np.abs(npu - host).max() <= 0.03 + 1e-6


@support.needs_reals
@needs("resize2d", "quantize", "dequantize")
@pytest.mark.parametrize(
    "method, steps, runs_in", [("nearest_neighbor", 0, "int8"), ("linear", 1, "float32")]
)
def test_integers_are_dequantized_before_they_are_interpolated(method, steps, runs_in):
    def resized(emit):
        numbers = quantize(emit, IMAGE, 0.02, 3)
        numbers = emit(op.image.resize2d(numbers, (24, 24), method=method))
        return dequantize(emit, numbers, 0.02, 3)

    mod = build([IMAGE], resized)
    support.skip_where_declined(mod)
    report = backend.offload_report(support.partition_for(mod))
    assert not report.on_host
    (resize,) = (item for item in report.ops if item.op == "relax.image.resize2d")
    assert resize.runs_in == runs_in
    value = RNG.standard_normal((1, 8, 12, 12)).astype("float32")
    npu, host = on_both(mod, value)
    assert np.abs(host).max() > 0.3
    assert np.abs(npu - host).max() <= 0.02 * steps + 1e-6


@support.needs_reals
@needs("resize2d", "quantize", "dequantize")
@pytest.mark.parametrize(
    "method, composites",
    [
        ("nearest_neighbor", ["quantize", "resize2d", "dequantize"]),
        ("linear", ["quantize", *["quantized_resize2d"] * 3, "dequantize"]),
    ],
)
def test_a_resize_between_layers_reads_and_writes_integers(method, composites):
    def resized(emit):
        x = both(emit, IMAGE, 0.02, 3)
        return both(emit, emit(op.image.resize2d(x, (24, 18), method=method)), 0.02, 3)

    mod = build([IMAGE], resized)
    support.skip_where_declined(mod)
    skip_without_integers("resize2d")
    ops = backend.offload_report(support.partition_for(mod)).ops
    assert [item.composite for item in ops] == composites
    value = RNG.standard_normal((1, 8, 12, 12)).astype("float32")
    npu, host = on_both(mod, value)
    assert np.abs(host).max() > 0.3
    # A number between two steps may be rounded to either.
    assert np.abs(npu - host).max() <= 0.02 * (method == "linear") + 1e-6


@needs("conv2d", "matmul", "add", "dequantize")
def test_weights_stay_quantized_and_biases_become_floats():
    mod = simplify(build([IMAGE], network), Table(OPS))
    bindings = [item for block in mod["main"].body.blocks for item in block.bindings]
    arguments = [item for binding in bindings for item in getattr(binding.value, "args", ())]
    arrays = [item.value.numpy() for item in arguments if isinstance(item, Constant)]
    assert sorted(str(item.dtype) for item in arrays if item.size > 100) == ["int8"] * 3
    assert [item.dtype for item in arrays if item.shape == (1, 16, 1, 1)] == ["float32"]


@needs("conv2d", "reshape", "matmul", "quantize", "dequantize")
def test_float_weights_that_a_model_quantizes_are_quantized_when_it_is_compiled():
    """Exporters of models that were trained with quantization write weights like this."""
    skip_without_integers("conv2d", "matmul")
    scales = [RNG.uniform(0.01, 0.02, count).astype("float32") for count in (16, 10)]
    reals = [RNG.standard_normal(shape) for shape in ((16, 8, 3, 3), (10, 1600))]
    reals[0][0, 0, 0] = [np.inf, -1e30, 2.5 * scales[0][0]]

    def trained(emit):
        zeros = [relax.const(np.zeros(item.size, "int8")) for item in scales]
        steps = [relax.const(item) for item in scales]
        weights = [relax.const(item.astype("float32")) for item in reals]
        conv, fc = (
            emit(op.dequantize(emit(op.quantize(weight, step, zero, 0, "int8")), step, zero, 0))
            for weight, step, zero in zip(weights, steps, zeros, strict=True)
        )
        value = both(emit, emit(op.nn.conv2d(both(emit, IMAGE, 0.02, 3), conv)), 0.1, 0)
        flat = emit(op.reshape(value, (1, 1600)))
        return both(emit, emit(op.matmul(flat, emit(op.permute_dims(fc)))), 0.5, 0)

    mod = build([IMAGE], trained)
    # Only the argument and the results are quantized when the model runs.
    simple = simplify(mod, Table(OPS))
    assert ops_of(simple).count("quantize") == 3
    arguments = [item for one in bindings_of(simple) for item in getattr(one.value, "args", ())]
    arrays = [item.value.numpy() for item in arguments if isinstance(item, Constant)]
    assert sorted(str(item.dtype) for item in arrays if item.size > 100) == ["int8"] * 2
    (numbers,) = (item for item in arrays if item.shape == (16, 8, 3, 3))
    assert numbers[0, 0, 0].tolist() == [127, -128, 2]
    support.skip_where_declined(mod)
    (labels,) = support.placement(support.partition_for(mod), "main").regions
    assert {"quantized_conv2d", "quantized_matmul"} <= set(labels)
    found, expected = on_both(mod, RNG.standard_normal((1, 8, 12, 12)).astype("float32"))
    assert np.abs(found - expected).max() <= 0.5 + 1e-5


@pytest.mark.thorough
@needs("matmul", "multiply", "permute_dims", "quantize", "dequantize")
@pytest.mark.parametrize("reals", ["", "data", "weights"])
@pytest.mark.parametrize("turned", [True, False])
def test_the_factors_of_a_gemm_are_in_its_scales_and_its_bias(reals, turned):
    """TVM's importer multiplies the first matrix by alpha, and the bias by beta."""
    skip_without_integers("matmul")
    shape = (16, 3) if turned else (3, 16)
    x = variable("x", *shape)
    matrix = RNG.uniform(-1, 1, (16, 5)).astype("float32")

    def gemm(emit):
        data = x if reals == "data" else both(emit, x, 0.02, 3)
        data = emit(op.multiply(data, relax.const(np.float32(0.3))))
        data = emit(op.permute_dims(data, [1, 0])) if turned else data
        weight = relax.const(matrix) if reals == "weights" else weights(emit, (16, 5), 1)[0]
        bias = relax.const(np.linspace(-1, 1, 5).astype("float32"))
        bias = emit(op.multiply(bias, relax.const(np.float32(0.7))))
        product = emit(op.add(emit(op.matmul(data, weight)), bias))
        return both(emit, product, 0.02, 0)

    mod = build([x], gemm)
    ops = backend.offload_report(support.partition_for(mod)).ops
    (product,) = (item for item in ops if item.op == "relax.matmul")
    begin = {"": "quantized_", "data": "weight_only_", "weights": ""}[reals]
    assert product.composite.replace("_transposed_0", "") == f"{begin}matmul_bias"
    assert "relax.multiply" not in {item.op for item in ops}
    found, expected = on_both(mod, RNG.standard_normal(shape).astype("float32"))
    assert np.abs(found - expected).max() <= 0.02 + 1e-5


@support.needs_reals
@needs("matmul", "quantize", "dequantize", "add", "multiply")
def test_the_factor_of_a_gemm_is_in_the_scales_of_its_weight():
    """The integers of its data have one scale, whoever else reads them."""
    skip_without_integers("matmul")
    x = variable("x", 3, 16)

    def gemm(emit):
        data = both(emit, x, 0.02, 3)
        scaled = emit(op.multiply(data, relax.const(np.float32(0.3))))
        product = emit(op.matmul(scaled, weights(emit, (16, 16), 1)[0]))
        return both(emit, emit(op.add(product, data)), 0.02, 0)

    mod = build([x], gemm)
    partitioned = support.partition_for(mod)
    report = backend.offload_report(partitioned)
    assert not report.on_host
    assert "relax.multiply" not in {item.op for item in report.ops}
    scales = set()

    def note(call):
        if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.dequantize":
            numbers = call.args[1].value.numpy()
            scales.update([float(numbers)] if numbers.ndim == 0 else [])

    for function in partitioned.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, note)
    assert scales == {float(np.float32(0.02))}
    found, expected = on_both(mod, RNG.standard_normal((3, 16)).astype("float32"))
    assert np.abs(found - expected).max() <= 0.02 + 1e-5


# ---- What is exact ------------------------------------------------------------------------------


@needs("reshape", "dequantize")
@pytest.mark.parametrize(
    "shape, axis",
    [((2, 3, 4), 2), ((1, 6, 4, 1), 2), ((4, 6), None), ((24,), None), ((3, 8), None)],
)
def test_integers_are_reshaped_where_their_scales_keep_an_axis(shape, axis):
    x = variable("x", 6, 4, dtype="int8")

    def reshaped(emit):
        return emit(op.reshape(dequantize(emit, x, [0.1, 0.2, 0.3, 0.4], np.zeros(4), 1), shape))

    mod = simplify(build([x], reshaped), Table(OPS))
    last = bindings_of(mod)[-1].value
    if axis is None:
        assert ops_of(mod) == ["dequantize", "reshape"]
    else:
        assert ops_of(mod) == ["reshape", "dequantize"]
        assert last.attrs.axis == axis


@needs("split", "quantize", "dequantize")
@pytest.mark.parametrize("scale", [0.1, 0.3])
def test_integers_are_split_and_rescaled_only_where_scales_differ(scale):
    x = variable("x", 2, 8, dtype="int8")

    def parts(emit):
        both = emit(op.split(dequantize(emit, x, 0.1, 3), [3], 1))
        items = [emit(relax.TupleGetItem(both, index)) for index in range(2)]
        return [quantize(emit, items[0], 0.1, 3), quantize(emit, items[1], scale, 3)]

    mod = build([x], parts)
    rescaled = ["dequantize", "quantize"] if scale != 0.1 else []
    assert ops_of(simplify(mod, Table(OPS))) == ["split", *rescaled]
    numbers = np.arange(-8, 8, dtype="int8").reshape(2, 8)
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    first, second = (item.numpy() for item in machine["main"](tvm.runtime.tensor(numbers)))
    assert np.array_equal(first, numbers[:, :3])
    real = (numbers[:, 3:] - 3.0) * np.float32(0.1)
    assert np.array_equal(second, np.rint(real / np.float32(scale)) + 3)


MOVED = {
    "max": lambda emit, x, y: op.max(x, [-1]),
    "min": lambda emit, x, y: op.min(x, [0, 1], True),
    "where": lambda emit, x, y: op.where(relax.const(np.arange(3) % 2 > 0), x, y),
    "where of a number": lambda emit, x, y: op.where(
        relax.const(np.arange(3) % 2 > 0), x, relax.const(np.float32(-0.5))
    ),
    "stack": lambda emit, x, y: op.stack([x, y], 1),
    "pad by reflect": lambda emit, x, y: op.nn.pad(x, [0, 0, 1, 2], "reflect"),
    "pad by replicate": lambda emit, x, y: op.nn.pad(x, [1, 0, 0, 2], "replicate"),
    "pad by 0.5": lambda emit, x, y: op.nn.pad(x, [1, 0, 0, 2], "constant", 0.5),
}


@needs("max", "min", "where", "stack", "pad", "quantize", "dequantize")
@pytest.mark.parametrize("name", MOVED)
def test_what_selects_integers_of_one_scale_moves_them(name):
    x, y = (variable(item, 4, 3, dtype="int8") for item in "xy")

    def moved(emit, other=0.125):
        reals = [dequantize(emit, item, step, 3) for item, step in ((x, 0.125), (y, other))]
        return quantize(emit, emit(MOVED[name](emit, *reals)), 0.125, 3)

    mod = build([x, y], moved)
    table = Table(OPS)
    assert {"quantize", "dequantize"}.isdisjoint(ops_of(simplify(mod, table)))
    arguments = [RNG.integers(-128, 128, (4, 3)).astype("int8") for _ in range(2)]
    found, expected = (
        relax.VirtualMachine(program, tvm.cpu())["main"](*map(tvm.runtime.tensor, arguments))
        for program in (compile_for(mod), host_library(mod))
    )
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    if name in ("where", "stack"):
        other = simplify(build([x, y], lambda emit: moved(emit, 0.25)), table)
        # One of them is rescaled.
        assert ops_of(other) == ["dequantize", "quantize", name]


@needs("conv2d_transpose", "add", "quantize", "dequantize")
def test_the_groups_of_a_transposed_convolution_share_the_scales_of_its_weight():
    skip_without_integers("conv2d_transpose")

    def body(emit):
        weight, scales = weights(emit, (8, 3, 2, 2), 1)
        bias = np.rint(RNG.uniform(-900, 900, 6)) * 0.02 * np.tile(scales, 2)
        real = emit(op.nn.conv2d_transpose(both(emit, IMAGE, 0.02, 3), weight, 2, groups=2))
        bias = relax.const(bias.reshape(1, 6, 1, 1).astype("float32"))
        return both(emit, emit(op.add(real, bias)), 0.02, 0)

    mod = build([IMAGE], body)
    (labels,) = support.placement(support.partition_for(mod), "main").regions
    assert "quantized_conv2d_transpose_bias" in labels
    found, expected = on_both(mod, RNG.standard_normal((1, 8, 12, 12)).astype("float32"))
    assert np.abs(found - expected).max() <= 0.02 + 1e-6
    assert (found != expected).mean() < 0.01


@needs("pad", "where", "quantize", "dequantize")
def test_numbers_that_no_integer_stands_for_stay_real():
    x = variable("x", 4, 3, dtype="int8")
    for number in (0.3, -100.0, -np.inf):

        def body(emit, number=number):
            real = dequantize(emit, x, 0.125, 3)
            return emit(op.nn.pad(real, [0, 1] * 2, "constant", number))

        assert ops_of(simplify(build([x], body), Table(OPS))) == ["dequantize", "pad"]


def of_a_product(emit, x):
    """Return the real result of a product of integers."""
    real = dequantize(emit, x, 0.02, 3)
    return emit(op.nn.conv2d(real, weights(emit, (8, 8, 1, 1), 0)[0]))


def parts_of(emit, x, count):
    """Split the channels of a tensor."""
    parts = emit(op.split(x, count, 1))
    return [emit(relax.TupleGetItem(parts, index)) for index in range(count)]


def sliced(emit, x, *ends):
    return emit(op.strided_slice(x, [1], *([end] for end in ends)))


SOME = np.random.default_rng(4).normal(size=(2, 8, 4, 4)).astype("float32")
BEHIND = {
    "max_pool2d": lambda emit, x: [emit(op.nn.max_pool2d(x, (3, 3), (2, 2), padding=1))],
    "relu and max_pool2d": lambda emit, x: [emit(op.nn.max_pool2d(emit(op.nn.relu(x)), (2, 2)))],
    "strided_slice": lambda emit, x: [sliced(emit, x, 1, 7)],
    "two slices": lambda emit, x: [sliced(emit, x, 0, 5), sliced(emit, x, 5, 8)],
    "split": lambda emit, x: parts_of(emit, x, 2),
    "max": lambda emit, x: [emit(op.max(x, [2, 3]))],
    "resize2d": lambda emit, x: [
        emit(op.image.resize2d(x, (8, 12), method="nearest_neighbor")),
    ],
    "pad by 0": lambda emit, x: [emit(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 0]))],
    "pad by 0.33": lambda emit, x: [emit(op.nn.pad(x, [0] * 6 + [1, 2], "constant", 0.33))],
    "pad by -inf": lambda emit, x: [emit(op.nn.pad(x, [0] * 6 + [1, 2], "constant", -np.inf))],
    "permute_dims and reshape": lambda emit, x: [
        emit(op.reshape(emit(op.permute_dims(x, [0, 2, 3, 1])), (2, 16, 8)))
    ],
    "concat and strided_slice": lambda emit, x: [
        sliced(emit, emit(op.concat([x, relax.const(SOME)], 1)), 2, 13)
    ],
}


@pytest.mark.thorough
@needs("conv2d", "max", "max_pool2d", "strided_slice", "split", "resize2d", "pad", "concat")
@needs("reshape", "permute_dims", "relu", "quantize", "dequantize")
@pytest.mark.parametrize("name", BEHIND)
def test_the_result_of_a_product_is_quantized_before_it_is_moved(name):
    skip_without_integers("conv2d")
    x = variable("x", 2, 8, 4, 4, dtype="int8")

    def body(emit):
        return [quantize(emit, part, 0.15, 7) for part in BEHIND[name](emit, of_a_product(emit, x))]

    mod = build([x], body)
    support.skip_where_declined(mod)
    ops = backend.offload_report(support.partition_for(mod)).ops
    assert {item.runs_in for item in ops} == {"int8"}
    (product,) = (item for item in ops if item.op == "relax.nn.conv2d")
    assert product.composite in ("quantized_conv2d", "quantized_conv2d_relu")
    assert [item.op for item in ops].count("relax.quantize") == 1
    value = tvm.runtime.tensor(numbers_of("int8", 2, 8, 4, 4))
    found, expected = (
        relax.VirtualMachine(program, tvm.cpu())["main"](value)
        for program in (compile_for(mod), host_library(mod))
    )
    for mine, reference in zip(found, expected, strict=True):
        difference = mine.numpy().astype("int64") - reference.numpy()
        assert mine.shape == reference.shape and np.abs(difference).max() <= 1
        assert (difference != 0).mean() < 0.01


@needs("conv2d", "split", "strided_slice", "sigmoid", "quantize", "dequantize")
def test_what_is_not_quantized_alike_by_all_readers_is_moved_as_real_numbers():
    x = variable("x", 2, 8, 4, 4, dtype="int8")

    def parts(emit):
        first, second = parts_of(emit, of_a_product(emit, x), 2)
        return [quantize(emit, first, 0.15, 7), quantize(emit, second, 0.2, 7)]

    def part_and_all(emit):
        value = of_a_product(emit, x)
        return [quantize(emit, sliced(emit, value, 1, 3), 0.15, 7), emit(op.sigmoid(value))]

    before = ["dequantize", "dequantize", "conv2d"]
    ops = ops_of(simplify(build([x], parts), Table(OPS)))
    assert ops == [*before, "split", "quantize", "quantize"]
    ops = ops_of(simplify(build([x], part_and_all), Table(OPS)))
    assert ops == [*before, "strided_slice", "quantize", "sigmoid"]


@needs("max_pool2d", "quantize")
def test_fewer_elements_are_quantized_where_nothing_before_them_is_integers():
    ops = ops_of(
        simplify(
            build([IMAGE], lambda emit: quantize(emit, emit(op.nn.max_pool2d(IMAGE)), 0.1, 0)),
            Table(OPS),
        )
    )
    assert ops == ["max_pool2d", "quantize"]


@needs("maximum", "minimum", "quantize", "dequantize")
@pytest.mark.parametrize("reduction, pair", [("max", "maximum"), ("min", "minimum")])
def test_the_larger_of_two_tensors_is_computed_in_pairs(reduction, pair):
    """TVM's importer of ONNX broadcasts and stacks them."""
    skip_without_integers(pair)
    x, y = variable("x", 4, 3), variable("y", 3)

    def body(emit):
        parts = [both(emit, x, 0.05, 3), emit(op.broadcast_to(both(emit, y, 0.03, 1), (4, 3)))]
        value = emit(getattr(op, reduction)(emit(op.stack(parts, 0)), [0]))
        return both(emit, value, 0.05, 3)

    mod = build([x, y], body)
    ops = backend.offload_report(support.partition_for(mod)).ops
    (found,) = (item for item in ops if item.op == f"relax.{pair}")
    assert found.composite == f"quantized_{pair}"
    assert {"relax.stack", f"relax.{reduction}"}.isdisjoint({item.op for item in ops})
    arguments = [RNG.standard_normal(shape).astype("float32") for shape in ((4, 3), (3,))]
    found, expected = (
        relax.VirtualMachine(program, tvm.cpu())["main"](*map(tvm.runtime.tensor, arguments))
        for program in (compile_for(mod), host_library(mod))
    )
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-6)


@needs("relu", "quantize", "dequantize")
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_clip_is_dropped_if_a_rescaling_remains(dtype):
    """Between int8 and int16 there is no rescaling: the relu is the op on integers."""
    x = variable("x", 2, 8, dtype="int8")

    def limited(emit):
        real = emit(op.nn.relu(dequantize(emit, x, 0.1, 0)))
        return quantize(emit, real, 0.2, np.iinfo(dtype).min, dtype)

    ops = ops_of(simplify(build([x], limited), Table(OPS)))
    assert ops == ["dequantize", *["relu"] * (dtype == "int16"), "quantize"]


def numbers_of(dtype, *shape):
    """Return an array whose first elements are all integers of a dtype."""
    ends = np.iinfo(dtype)
    return np.resize(np.arange(ends.min, ends.max + 1), shape).astype(dtype)


@needs("quantize", "dequantize", "concat")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_joined_tensors_are_rescaled_as_integers(dtype):
    skip_without_integers("quantize")
    kinds = [("int8", 0.03, 5), ("uint8", 0.011, 0), (dtype, 0.02, 7), ("int8", 0.25, -128)]
    parts = [variable(f"x{i}", 2, 128, 3, dtype=kind[0]) for i, kind in enumerate(kinds)]

    def joined(emit):
        reals = [dequantize(emit, x, *kind[1:]) for x, kind in zip(parts, kinds, strict=True)]
        return quantize(emit, emit(op.concat(reals, 1)), 0.02, 7, dtype)

    mod = build(parts, joined)
    support.skip_where_declined(mod)
    report = backend.offload_report(support.partition_for(mod))
    assert not report.on_host
    labels = [item.composite for item in report.ops]
    assert sorted(set(labels)) == ["concat", "requantize"]
    assert labels.count("requantize") == 2 * (
        len(kinds) - 1
    )  # One input has the scale of the result.
    values = [numbers_of(kind[0], 2, 128, 3) for kind in kinds]
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, values)).numpy()
    chip, ends = support.TABLE.chip, np.iinfo(dtype)
    expected = [
        numpy_reference.requantize(
            value.astype("float64") - zero, float(np.float32(scale)), float(np.float32(0.02)), chip
        )
        for value, (_, scale, zero) in zip(values, kinds, strict=True)
    ]
    expected = np.clip(np.concatenate(expected, 1) + 7, ends.min, ends.max)
    np.testing.assert_array_equal(found, expected.astype(dtype))


@support.needs_reals
@needs("dequantize", "add")
def test_readers_of_real_numbers_share_one_dequantize():
    """A copy for each would compute it twice, in a region of its own."""
    numbers = numbers_of("int8", 2, 3)
    x = variable("x", 2, 3, dtype="int8")

    def body(emit):
        real = dequantize(emit, x, 0.5, 3)
        one, other = (emit(op.add(real, relax.const(np.float32(by)))) for by in (1, 2))
        return [emit(op.add(one, one)), emit(op.add(other, other))]

    mod = build([x], body)
    found = support.placement(support.partition_for(mod), "main")
    assert (found.on_host, found.regions) == ([], [["dequantize", *["add"] * 4]])
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    real = 0.5 * (numbers.astype("float32") - 3)
    for mine, by in zip(machine["main"](tvm.runtime.tensor(numbers)), (1, 2), strict=True):
        np.testing.assert_allclose(mine.numpy(), 2 * (real + by), rtol=1e-5)


@needs("quantize", "dequantize", "concat")
@pytest.mark.parametrize("scales", [0.03, [0.03, 0.011]])
def test_a_constant_of_another_scale_is_rescaled_when_the_model_is_compiled(scales):
    numbers = numbers_of("int8", 2, 128)
    x = variable("x", 2, 128, dtype="int8")

    def joined(emit):
        constant = dequantize(emit, relax.const(numbers), scales, 5 * np.ones_like(scales), 0)
        parts = [dequantize(emit, x, 0.02, 7), constant]
        return [quantize(emit, item, 0.02, 7) for item in (emit(op.concat(parts, 1)), constant)]

    mod = build([x], joined)
    assert ops_of(simplify(mod, Table(OPS))) == ["concat"]
    found, expected = (
        relax.VirtualMachine(program, tvm.cpu())["main"](tvm.runtime.tensor(numbers))
        for program in (compile_for(mod), host_library(mod))
    )
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), reference.numpy())


@support.needs_reals
@needs("quantize", "dequantize", "concat", "conv2d")
def test_a_product_has_a_dequantize_of_its_own_beside_a_concat_of_real_numbers():
    skip_without_integers("conv2d")
    x = variable("x", 1, 8, 4, 4, dtype="int8")

    def body(emit):
        real = dequantize(emit, x, 0.02, 3)
        value = both(emit, emit(op.nn.conv2d(real, weights(emit, (8, 8, 1, 1), 0)[0])), 0.02, 0)
        return emit(op.concat([real, value], 1))

    mod = build([x], body)
    report = backend.offload_report(support.partition_for(mod))
    assert not report.on_host
    (product,) = (item for item in report.ops if item.op == "relax.nn.conv2d")
    assert (product.composite, product.runs_in) == ("quantized_conv2d", "int8")
    found, expected = on_both(mod, numbers_of("int8", 1, 8, 4, 4))
    assert np.abs(found - expected).max() <= 0.02 + 1e-6
    np.testing.assert_array_equal(found[:, :8], expected[:, :8])


@needs("quantize", "dequantize", "conv2d")
def test_a_product_has_a_dequantize_of_its_own_beside_a_result_of_the_model():
    x = variable("x", 1, 8, 4, 4, dtype="int8")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            real = builder.emit_output(op.dequantize(x, scale_of(0.02), relax.const(3, "int8")))
            weight, _ = weights(builder.emit, (8, 8, 1, 1), 0)
            value = builder.emit(op.nn.conv2d(real, weight))
            product = builder.emit_output(quantize(builder.emit, value, 0.02, 3))
        builder.emit_func_output(relax.Tuple([real, product]))
    assert ops_of(simplify(builder.get(), Table(OPS))).count("dequantize") == 3


@needs("quantize", "dequantize", "split", "add")
def test_two_results_of_one_op_are_two_tensors():
    skip_without_integers("add")
    x = variable("x", 4, 64, dtype="int8")

    def sums(emit):
        parts = emit(op.split(x, 2, 1))
        reals = [
            dequantize(emit, emit(relax.TupleGetItem(parts, index)), 0.25, 0) for index in (0, 1)
        ]
        # No sum is halfway between two integers, where a rescaling rounds as the chip's rule says.
        return quantize(emit, emit(op.add(*reals)), 0.75, 0)

    mod = build([x], sums)
    support.skip_where_declined(mod)
    value = RNG.integers(-128, 128, (4, 64)).astype("int8")
    machine = relax.VirtualMachine(compile_for(mod), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(value)).numpy()
    expected = np.rint((value[:, :32].astype("float32") + value[:, 32:]) / 3)
    np.testing.assert_array_equal(found, expected.astype("int8"))


def map_of(known, call):
    return [known.get(item, item) if isinstance(item, relax.Var) else item for item in call.args]


FUNCTIONS = [
    entry.name
    for entry in support.TABLE.ops
    if entry.activation and entry.inside == "elements" and len(entry.inputs) == 1
]


@support.needs_emulator
@needs("quantize", "dequantize")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "kinds",
    [
        [("int8", 0.05, 3), ("int8", 0.031, -7)],
        pytest.param([("int8", 2.0**-5, 0), ("uint8", 2.0**-6, 20)], marks=pytest.mark.thorough),
        pytest.param([("uint8", 0.04, 200), ("int8", 0.02, 127)], marks=pytest.mark.thorough),
    ],
)
def test_a_function_is_a_table_and_exact(name, kinds, tmp_path):
    """Compare all 256 numbers, including ties, with the function in float64."""
    (source, result), x = kinds, variable("x", 16, 16, dtype=kinds[0][0])
    attributes = next(iter(Case.all(name))).entry.get("attributes", {})
    calls = []

    def function(emit):
        real = dequantize(emit, x, *source[1:])
        model = Model("function")
        calls.append(model.normalize(name, [Tensor(real, {})], attributes))
        known = {}
        for binding in model.bindings:  # An op of a chain.
            known[binding.var] = emit(with_arguments(binding.value, map_of(known, binding.value)))
        last = emit(with_arguments(calls[0], map_of(known, calls[0])))
        return quantize(emit, last, *result[1:], result[0])

    mod = build([x], function)
    (label,) = {item.composite for item in backend.offload_report(support.partition_for(mod)).ops}
    assert label == f"quantized_{name}"
    program = compile_for(mod)
    program.export_library(str(tmp_path / "model.so"))
    (artifact,) = backend.read_artifacts(tmp_path / "model.so")
    assert "lookup" in artifact.program
    value = numbers_of(source[0], 16, 16)
    found = relax.VirtualMachine(program, tvm.cpu())["main"](tvm.runtime.tensor(value)).numpy()
    real = (value.astype("float32") - np.float32(source[2])) * np.float32(source[1])
    (exact,) = compute(name, calls[0], [real], attributes, 1)
    steps = np.rint(exact.astype("float32") / np.float32(result[1])) + result[2]
    ends = np.iinfo(result[0])
    np.testing.assert_array_equal(found, np.clip(steps, ends.min, ends.max).astype(result[0]))


# ---- Networks that others quantized -------------------------------------------------------------

OF_NETWORKS = {
    *("add", "subtract", "multiply", "mean", "max_pool2d", "conv2d_transpose", "resize2d"),
    *("reshape", "permute_dims", "concat", "split", "take", "gather_elements", "expand_dims"),
    *("relu", "clip", "leakyrelu", "elu", "hard_sigmoid", "sigmoid", "tanh", "gelu"),
    *("softmax", "layer_norm"),
}
"""Ops of these networks that compute with quantized tensors, or move them."""


@support.needs_reals
@needs("conv2d", "depthwise_conv2d", "matmul", "quantize", "dequantize")
@needs_library("onnx", "onnxruntime")
@pytest.mark.parametrize(
    "name, form",
    [
        ("resnet", "qdq"),
        *(
            pytest.param(name, form, marks=pytest.mark.thorough)
            for name in ("resnet", "mobilenet", "unet", "bert", "lstm", "detector")
            for form in ("qdq", "dedicated", "qoperator")
            if (name, form) != ("resnet", "qdq")
        ),
    ],
)
def test_a_network_of_onnx_runtime_is_of_integers(name, form):
    check_network(*quantized_networks.read(name, form), real=reals_of_onnx_runtime(name, form))


@needs("conv2d", "matmul", "quantize", "dequantize")
@needs_library("onnx", "onnxruntime")
@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("mobilenet", "unet", "bert", "lstm", "detector")
        ),
    ],
)
def test_each_layer_is_within_a_step_of_onnx_runtime(name):
    """With the inputs that it has there, so that differences do not add up."""
    skip_without_integers("conv2d", "matmul")
    network = onnx_networks.SMALL[name]()
    model, arguments = quantized_networks.quantize_onnx(network), list(network[1])
    known = values_of(model, arguments)
    compared = 0
    for result, layer in layers_of(model, known):
        machine = relax.VirtualMachine(compile_for(backend.from_onnx(layer)), tvm.cpu())
        inputs = [known[item.name] for item in layer.graph.input]
        (found,) = np.atleast_1d(machine["main"](*map(tvm.runtime.tensor, inputs)))
        difference = np.abs(found.numpy().astype("int64") - known[result].astype("int64"))
        assert difference.max() <= 1, result
        compared += 1
    assert compared > 5


def values_of(model, arguments):
    """Return the inputs of a model and all integers that it computes from real numbers."""
    from onnx import ModelProto, helper

    names = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    extended = ModelProto()
    extended.CopyFrom(model)
    del extended.graph.output[:]
    extended.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    given = [item.name for item in model.graph.input]
    found = original_of(extended).run(arguments)
    return dict(zip(given + names, arguments + found, strict=True))


def layers_of(model, known):
    """Generate the name of each known value, and the part of a model from others to it."""
    from onnx import helper, utils

    model.graph.value_info.extend(
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in known.items()
    )
    extractor = utils.Extractor(model)
    for result in known:
        layer = extractor.extract_model([name for name in known if name != result], [result])
        read = {name for node in layer.graph.node for name in node.input}
        inputs = [item for item in layer.graph.input if item.name in read]
        if inputs:
            del layer.graph.input[:]
            layer.graph.input.extend(inputs)
            yield result, layer


def reals_of_onnx_runtime(name, form):
    """Return the ops of a network that read real numbers, beside those at its edges."""
    if (name, form) == ("unet", "qoperator"):
        # It has no transposed convolution of integers, and ELU belongs to it.
        return "exp subtract relu multiply add conv2d_transpose_bias"
    of_table = {
        "bert": "astype subtract divide erf tanh take layer_norm",
        "lstm": "take",
        "detector": "max topk exp divide",
    }
    return of_table.get(name, "")


@needs("conv2d", "matmul", "quantize", "dequantize")
@needs_library("onnx", "onnxruntime")
@pytest.mark.parametrize(
    "name",
    ["resnet", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("bert", "detector"))],
)
@pytest.mark.parametrize("activations", ["int16", "uint16"])
def test_all_products_of_a_network_with_activations_of_16_bits_are_of_integers(name, activations):
    skip_without_int16("conv2d", "matmul")
    network = quantized_networks.read(name, "qdq", activations=activations)
    check_network(*network, error=5e-4, real=None)


def product_of_int16(weight, step=1e-3):
    """Return the placement of a matmul of int16 by a weight."""
    x = variable("x", 3, weight.shape[0], dtype="int16")

    def body(emit):
        reals = [dequantize(emit, item, 1e-4, 0) for item in (x, relax.const(weight))]
        return quantize(emit, emit(op.matmul(*reals)), step, 0, "int16")

    ops = backend.offload_report(support.partition_for(build([x], body))).ops
    (found,) = (item for item in ops if item.op == "relax.matmul")
    return found


@needs("matmul", "quantize", "dequantize")
@pytest.mark.parametrize("weight", ["int8", "uint8", "int16"])
def test_supported_products_of_int16(weight):
    skip_without_int16("matmul")
    assert product_of_int16(np.ones((8, 4), weight)).composite == "quantized_matmul"


@support.needs_reals
@needs("matmul", "quantize", "dequantize")
def test_a_product_of_integers_with_integer_weights_alone_says_why():
    skip_without_integers("matmul")
    x = variable("x", 3, 8, dtype="int8")

    def body(emit):
        data = dequantize(emit, x, np.linspace(0.01, 0.02, 8), np.zeros(8))
        return emit(op.matmul(data, weights(emit, (8, 4), 1)[0]))

    ops = backend.offload_report(support.partition_for(build([x], body))).ops
    (product,) = (item for item in ops if item.op == "relax.matmul")
    assert product.composite == "weight_only_matmul"
    assert product.asked == "int8"
    assert "'x1' has 8 scales" in product.wider


@support.needs_reals
@needs("matmul", "quantize", "dequantize")
def test_products_of_int16_with_too_large_sums_are_computed_in_float():
    skip_without_int16("matmul")
    # The sum of 2^17 products of at most 2^30 is at most 2^47.
    assert product_of_int16(np.ones((1 << 17, 1), "int16")).composite == "matmul"
    # Such a factor could need more than 64 bits: floats are quantized behind the product.
    product = product_of_int16(np.ones((8, 4), "int8"), step=1e-13)
    assert product.composite == "quantized_matmul_to_real"
    assert product.asked == "int16 x int8"
    assert re.search(r"make a factor of \S+, a shift by -?\d+; supported: \d+ to", product.wider)


@needs("matmul", "quantize", "dequantize")
@pytest.mark.parametrize(
    "dtypes, chip, limits, sentence",
    [
        (("int16", "int8"), Chip(), INTEGERS, ""),
        (("int16", "int16"), Chip(), INTEGERS, ""),
        (("uint16", "int8"), Chip(), INTEGERS, "'x1' is uint16; supported, quantized: int8, uint8"),
        (
            ("int8", "int16"),
            Chip(),
            INTEGERS,
            "'x2' is int16 and 'x1' int8; supported: int16 by int16",
        ),
        (
            ("int16", "int8"),
            Chip(),
            ("int8",),
            "'x1' is int16; supported, quantized: int8 (a limit of this chip)",
        ),
        (
            ("int16", "int8"),
            Chip(dtypes=("float32", "int8", "uint8")),
            INTEGERS,
            "'x1' is int16; supported, quantized: int8, uint8 (a limit of this chip)",
        ),
    ],
)
def test_a_composite_of_types_that_a_chip_lacks_is_declined(dtypes, chip, limits, sentence):
    table = Table(OPS, chip=chip, limits={"matmul": Limits(quantized=limits)})
    tensors = [
        variable(name, *shape, dtype=dtype)
        for name, shape, dtype in zip("xw", ((3, 8), (8, 4)), dtypes, strict=True)
    ]
    calls = []

    def body(emit):
        calls.extend(dequantize(emit, tensor, 1e-4, 0) for tensor in tensors)
        return emit(op.matmul(*calls))

    found = bindings_of(build(tensors, body))
    parts = {f"dequantize{i}": found[i].value for i in (0, 1)} | {"anchor": found[2].value}
    match = SimpleNamespace(annotated_expr=parts, values={}, reasons=[], matched_bindings={})
    match.matched_expr = parts["anchor"]
    (check,) = (
        check for name, _, _, check in make_patterns(table) if name.endswith(".quantized_matmul")
    )
    assert check(match) == (not sentence)
    assert [sentence in reason for reason in match.reasons] == [True] * bool(sentence)


@needs("matmul")
def test_types_of_quantized_tensors_are_a_tuple():
    with pytest.raises(ValueError, match="quantized is True; it is a tuple of element types"):
        Limits(quantized=True)
    with pytest.raises(ValueError, match="limits leave nothing of quantized: they say int32"):
        Table(OPS, limits={entry.name: Limits(quantized=("int32",)) for entry in OPS})


@pytest.mark.thorough
@needs("conv2d", "depthwise_conv2d", "matmul", "quantize", "dequantize")
@needs_library("torch", "torchao")
@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_a_network_of_torchao_is_of_integers(name):
    check_network(*quantized_networks.export(name))


# ---- Weights of integers ------------------------------------------------------------------------

WIDTHS = (256, 512, 128)


def weights_by_torchao(name, dtype="float32"):
    import torch
    from torchao import quantization

    group, column = quantization.PerGroup(32), quantization.PerAxis(0)
    configs = {
        "int8": quantization.Int8WeightOnlyConfig(),
        "int8 groups": quantization.IntxWeightOnlyConfig(torch.int8, group),
        "int4": quantization.IntxWeightOnlyConfig(torch.int4, column),
        "int4 groups": quantization.IntxWeightOnlyConfig(torch.int4, group),
    }
    torch.manual_seed(0)
    layers = [torch.nn.Linear(*sizes) for sizes in itertools.pairwise(WIDTHS)]
    network = torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1]).eval()
    network = network.to(getattr(torch, dtype))
    if name in configs:
        quantization.quantize_(network, configs[name])
    x = torch.randn(3, WIDTHS[0]).to(getattr(torch, dtype))
    with torch.no_grad():
        expected = network(x).numpy()
        program = torch.export.export(network, (x,))
    return (
        backend.from_exported_program(program, unwrap_unit_return_tuple=True),
        x.numpy(),
        expected,
    )


def weights_of_onnx_runtime(bits, zeros=False):
    """Build a model of two MatMulNBits or, for 32 bits, of two MatMul."""
    import onnx

    rows, inner, columns = WIDTHS
    generator = np.random.default_rng(0)
    constants = {"c": generator.standard_normal(inner).astype("float32")}
    nodes = []
    for x, depth, width, y in (("x", rows, inner, "a"), ("d", inner, columns, "y")):
        if bits == 32:
            constants[f"{y}_w"] = (generator.standard_normal((depth, width)) / 9).astype("float32")
            nodes.append(f"{y} = MatMul({x}, {y}_w)")
            continue
        blocks = depth // 32
        constants[f"{y}_w"] = generator.integers(0, 256, (width, blocks, 4 * bits)).astype("uint8")
        steps = generator.uniform(0.5, 1, width * blocks) / 2**bits / 3
        constants[f"{y}_s"] = steps.astype("float32")
        if zeros:
            packed = generator.integers(0, 256, width * blocks * bits // 8)
            constants[f"{y}_z"] = packed.astype("uint8")
        given = f"K = {depth}, N = {width}, bits = {bits}, block_size = 32"
        inputs = f"{x}, {y}_w, {y}_s" + f", {y}_z" * zeros
        nodes.append(f"{y} = com.microsoft.MatMulNBits<{given}>({inputs})")
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[3, {rows}] x) => (float[3, {columns}] y) {{
        {nodes[0]} b = Add(a, c) d = Relu(b) {nodes[1]}
    }}"""
    model = onnx.parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = generator.standard_normal((3, rows)).astype("float32")
    return backend.from_onnx(model), x, original_of(model).run([x])[0]


def check_weights(mod, x, expected, tolerance=1e-5):
    """Check that all matmuls have integer weights; return the artifacts' size in bytes."""
    partitioned = support.partition_for(mod)
    ops = backend.offload_report(partitioned).ops
    products = [item.composite for item in ops if item.op == "relax.matmul"]
    assert len(products) == 2
    assert all(name.startswith("weight_only_matmul") for name in products)
    assert not any(item.placement == "host" for item in ops)
    executable = compile_for(mod)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
    return bytes_of(mod)


def bytes_of(mod):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        compile_for(mod).export_library(str(path))
        return sum(item.sizes["artifact"] for item in backend.read_artifacts(path))


@support.needs_reals
@needs("matmul", "gelu", "dequantize")
@needs_library("torch", "torchao")
@pytest.mark.parametrize(
    "name, share",
    [
        ("int4 groups", 0.22),
        *(
            pytest.param(name, share, marks=pytest.mark.thorough)
            for name, share in (("int8", 0.3), ("int8 groups", 0.34), ("int4", 0.17))
        ),
    ],
)
def test_weights_that_torchao_has_quantized_stay_integers(name, share):
    skip_without_integers("matmul")
    size = check_weights(*weights_by_torchao(name))
    if support.IS_EMULATOR:
        assert size < share * bytes_of(weights_by_torchao("float")[0])


@support.needs_reals
@needs("matmul", dtype="float16")
@needs("matmul", "gelu", "dequantize")
@needs_library("torch", "torchao")
def test_weights_of_a_torchao_model_of_float16_stay_integers():
    skip_without_integers("matmul")
    mod, x, _ = weights_by_torchao("int8", "float16")
    # The host adds up in float16.
    size = check_weights(mod, x, on_both(mod, x)[1], 8 * np.finfo("float16").eps)
    if support.IS_EMULATOR:
        assert size < 1.1 * bytes_of(weights_by_torchao("int8")[0])


@support.needs_reals
@needs("matmul", dtype="float16")
@needs("dequantize")
@pytest.mark.parametrize(
    "scale, merged", [(5 / 2**24, True), (0.02, True), (1e-9, False), (400, False)]
)
def test_weights_of_float16_have_no_scales_that_float16_cannot_hold(scale, merged):
    x = variable("x", 2, 8, dtype="float16")
    numbers = RNG.integers(-128, 128, (8, 6)).astype("int8")

    def layer(emit):
        weight = emit(op.astype(relax.const(numbers), "float16"))
        product = emit(op.matmul(x, weight, "float32"))
        return emit(op.multiply(product, relax.const(np.full(6, scale, "float32"))))

    skip_without_integers("matmul")
    mod = build([x], layer)
    names = ops_of(simplify(mod, support.TABLE))
    assert names == ["dequantize", "matmul"] + ["multiply"] * (not merged)
    found, expected = on_both(mod, RNG.standard_normal((2, 8)).astype("float16"))
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


@support.needs_reals
@needs("matmul", "relu", "dequantize")
@needs_library("onnx", "onnxruntime")
@pytest.mark.parametrize(
    "bits, zeros, share", [(8, False, 0.34), (4, False, 0.22), (4, True, 0.23)]
)
def test_weights_of_matmul_nbits_stay_integers(bits, zeros, share):
    skip_without_integers("matmul")
    size = check_weights(*weights_of_onnx_runtime(bits, zeros))
    if support.IS_EMULATOR:
        assert size < share * bytes_of(weights_of_onnx_runtime(32)[0])


PRODUCTS = {
    "MatMul": ("matmul", (3, 64), (64, 96), 1),
    "Conv": ("conv2d", (1, 16, 6, 5), (32, 16, 3, 3), 0),
    "ConvTranspose": ("conv2d_transpose", (1, 16, 6, 5), (16, 32, 3, 3), 1),
}


def quantized_product(kind, numbers, data_type, dtype, scales):
    """Build a product of quantized data by a weight; ONNX's MatMul, Conv or ConvTranspose."""
    import onnx

    _, shape, _, axis = PRODUCTS[kind]
    sizes = ", ".join(map(str, shape))
    results = ", ".join(f"d{i}" for i in range(len(shape)))
    head = f'<ir_version: 10, opset_import: ["" : 21]> g (float[{sizes}] x) => (float[{results}] y)'
    nodes = f"""
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        f = DequantizeLinear<axis = {axis}>(w, scales) p = {kind}(d, f)
        r = QuantizeLinear(p, t, z) y = DequantizeLinear(r, t, z)
    """
    model = onnx.parser.parse_model(head + "{" + nodes + "}")
    weight = onnx.helper.make_tensor("w", data_type, numbers.shape, numbers.reshape(-1).tolist())
    steps = {"s": np.float32(0.05), "t": np.float32(0.3), "z": np.array(3, dtype)}
    for name, array in (steps | {"scales": scales}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.initializer.append(weight)
    return backend.from_onnx(model)


@needs_library("onnx")
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs(item[0])) for kind, item in PRODUCTS.items()]
)
def test_weights_of_int4_are_stored_in_half_a_byte(kind, dtype):
    from onnx import TensorProto

    name, shape, size, axis = PRODUCTS[kind]
    skip_without_integers(name)
    if dtype == "int16":
        skip_without_int16(name)
    generator = np.random.default_rng(0)
    numbers = generator.integers(-8, 8, size)
    # The last channel alone does not fit.
    wide = numbers.copy()
    np.moveaxis(wide, axis, 0)[-1] = 100
    scales = generator.uniform(0.02, 0.04, size[axis]).astype("float32")
    x = generator.standard_normal(shape).astype("float32")
    results, sizes, read = [], [], []
    for weight, data_type in ((numbers, TensorProto.INT4), (wide, TensorProto.INT8)):
        mod = quantized_product(kind, weight, data_type, dtype, scales)
        ops = backend.offload_report(support.partition_for(mod)).ops
        assert [item.composite for item in ops if is_product(item.op)] == [f"quantized_{name}"]
        executable = compile_for(mod)
        found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
        results.append(np.moveaxis(found.numpy(), -1 if kind == "MatMul" else 1, 0)[:-1])
        sizes.append(bytes_of(mod))
        read.append(backend.profile(executable, x).traffic.get("dram", (0, 0))[0])
    assert len(np.unique(results[0])) > 20
    np.testing.assert_array_equal(*results)
    if support.IS_EMULATOR:
        assert sizes[1] - sizes[0] == read[1] - read[0] == numbers.size // 2


X = variable("x", 3, 64)


def blocks(emit, size=16, columns=24):
    numbers = relax.const(RNG.integers(-8, 8, (columns * 64 // size, size)).astype("int8"))
    scales = RNG.uniform(0.5, 1, columns * 64 // size)
    return emit(op.reshape(dequantize(emit, numbers, scales, 0 * scales, 0), (columns, 64)))


def constants_of(mod):
    bindings = [item for block in mod["main"].body.blocks for item in block.bindings]
    arguments = [item for binding in bindings for item in getattr(binding.value, "args", ())]
    arrays = [item.value.numpy() for item in arguments if isinstance(item, Constant)]
    return sorted((str(item.dtype), item.size) for item in arrays if item.size > 500)


@needs("matmul", "reshape", "permute_dims", "add", "dequantize")
def test_blocks_stay_integers_if_only_matmuls_read_them():
    def model(read):
        def body(emit):
            return read(emit, emit(op.permute_dims(blocks(emit))))

        return constants_of(simplify(build([X], body), Table(OPS)))

    assert model(lambda emit, w: emit(op.matmul(X, w))) == [("int8", 24 * 64)]
    # The first operand is not a weight, and an addition computes in float.
    first = model(lambda emit, w: emit(op.matmul(*(emit(op.permute_dims(v)) for v in (w, X)))))
    assert {dtype for dtype, _ in first} == {"float32"}
    both = model(lambda emit, w: emit(op.add(emit(op.matmul(X, w)), emit(op.sum(w)))))
    assert {dtype for dtype, _ in both} == {"float32"}


@support.needs_reals
@needs("matmul", "dequantize")
def test_weights_with_other_scales_are_dequantized_when_the_model_runs():
    skip_without_integers("matmul")
    numbers, scales = RNG.integers(-8, 8, (64, 24)).astype("int8"), RNG.uniform(0.5, 1, 64)

    def body(emit):
        return emit(op.matmul(X, dequantize(emit, relax.const(numbers), scales, 0 * scales, 0)))

    mod = build([X], body)
    report = support.placement(support.partition_for(mod), "main")
    # Where weights become real numbers when the model is compiled, any scales will do.
    whole = [["weight_only_matmul"]]
    assert report.regions == [["dequantize", "matmul"]] or (
        report.regions == whole and not support.IS_EMULATOR
    )
    x = RNG.standard_normal((3, 64)).astype("float32")
    found = relax.VirtualMachine(compile_for(mod), tvm.cpu())["main"](tvm.runtime.tensor(x))
    np.testing.assert_allclose(found.numpy(), x @ (numbers * scales[:, None]), rtol=1e-4, atol=1e-3)


def table_of(layout, dtype, zeros):
    """Return integers, scales and zero points of a table, and the axis of both; its numbers."""
    size, shape, axis = {
        "one": (1, (16, 64), 0),
        "rows": (16, (16, 64), 0),
        "groups": (64, (64, 16), 0),
        "columns": (64, (16, 64), 1),
    }[layout]
    numbers = RNG.integers(-128, 128, shape).astype("int8")
    scales = RNG.uniform(0.01, 0.02, size).astype(dtype)
    points = RNG.integers(-9, 10, size).astype("int8") if zeros else np.zeros(size, "int8")
    by_axis = [1, 1]
    by_axis[axis] = -1
    steps, offsets = (item.reshape(by_axis) for item in (scales, points.astype(dtype)))
    return numbers, scales, points, axis, ((numbers - offsets) * steps).reshape(16, 64)


@needs("take", "reshape", "dequantize")
@pytest.mark.parametrize(
    "layout, dtype, zeros, shape",
    [
        *(
            pytest.param(layout, dtype, zeros, (2, 3), marks=needs("take", dtype=dtype))
            for layout in ("one", "rows", "groups", "columns")
            for dtype, zeros in (("float32", False), ("float32", True), ("float16", False))
        ),
        *(
            (layout, "float32", True, shape)
            for layout in ("rows", "groups")
            for shape in ((), (5,))
        ),
    ],
)
def test_rows_of_a_table_of_integers_are_dequantized_alone(layout, dtype, zeros, shape):
    numbers, scales, points, axis, expected = table_of(layout, dtype, zeros)
    rows = variable("rows", *shape, dtype="int64")

    def body(emit):
        scale, zero = (item[0] if layout == "one" else item for item in (scales, points))
        real = op.dequantize(
            relax.const(numbers), relax.const(scale, dtype), relax.const(zero), axis, dtype
        )
        return emit(op.take(emit(op.reshape(emit(real), (16, 64))), rows, 0))

    mod = build([rows], body)
    ops = backend.offload_report(support.partition_for(mod)).ops
    assert not any("float" in item and "[16, 64]" in item for op in ops for item in op.arguments)
    assert not any(item.wider for item in ops)
    places = RNG.integers(0, 16, shape)
    found = relax.VirtualMachine(compile_for(mod), tvm.cpu())["main"](tvm.runtime.tensor(places))
    tolerance = np.finfo(dtype).eps
    np.testing.assert_allclose(found.numpy(), expected[places], rtol=tolerance)


@support.needs_reals
@needs("take", "reshape", "dequantize")
@pytest.mark.parametrize("layout", ["rows", "groups"])
def test_as_many_rows_as_the_call_asks_for_are_dequantized(layout):
    numbers, scales, points, axis, expected = table_of(layout, "float32", False)
    rows = variable("rows", 1, tvm.tirx.Var("n", "int64"), dtype="int64")

    def body(emit):
        real = op.dequantize(*map(relax.const, (numbers, scales, points)), axis)
        return emit(op.take(emit(op.reshape(emit(real), (16, 64))), rows, 0))

    mod = build([rows], body)
    if support.IS_EMULATOR:
        ops = backend.offload_report(support.partition_for(mod)).ops
        assert not any(item.placement == "host" for item in ops)
    program = relax.VirtualMachine(compile_for(mod, symbol_bounds={"n": 8}), tvm.cpu())
    for places in ([[3, 1, 15]], [[7]]):
        found = program["main"](tvm.runtime.tensor(np.array(places))).numpy()
        np.testing.assert_allclose(found, expected[np.array(places)], rtol=1e-6)


@support.needs_reals
@needs("take", "reshape", "dequantize", "astype")
@needs_library("torch", "torchao")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["int8", "int4 groups"])
def test_embeddings_that_torchao_has_quantized_stay_integers(kind, dtype):
    import torch
    from torchao import quantization

    torch.manual_seed(0)
    embedding = torch.nn.Embedding(50, 64)
    module = torch.nn.Sequential(embedding).eval().to(getattr(torch, dtype))
    granularity = quantization.PerAxis(0) if kind == "int8" else quantization.PerGroup(32)
    integers = torch.int8 if kind == "int8" else torch.int4
    config = quantization.IntxWeightOnlyConfig(integers, granularity)
    quantization.quantize_(module, config, lambda item, _: isinstance(item, torch.nn.Embedding))
    rows = torch.randint(0, 50, (2, 5))
    program = torch.export.export(module, (rows,))
    mod = backend.from_exported_program(program, unwrap_unit_return_tuple=True)
    ops = backend.offload_report(support.partition_for(mod)).ops
    sources = {item.result: item.arguments[0] for item in ops if item.op == "relax.take"}
    assert sources["int8[10, 64]"] == "constant int8[50, 64]"
    assert {item.runs_in for item in ops if item.placement == "host"} <= {"bfloat16"}
    found = relax.VirtualMachine(compile_for(mod), tvm.cpu())["main"](tvm.runtime.tensor(rows))
    with torch.no_grad():
        expected = module(rows).float().numpy()
    # bfloat16 becomes float32 here, and PyTorch rounds.
    rounding = 2**-7 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(found.numpy().astype("float32"), expected, rtol=rounding)


@needs("add", "dequantize")
def test_a_constant_that_is_no_integer_is_not_cut_to_one():
    x = variable("x", 4, 8)
    numbers = RNG.uniform(-3, 3, (4, 8)).astype("float16")

    def body(emit):
        real = op.dequantize(relax.const(numbers), relax.const(0.5), relax.const(0, "int8"))
        return emit(op.add(x, emit(real)))

    found = on_both(build([x], body), np.zeros((4, 8), "float32"))
    np.testing.assert_allclose(found[0], numbers.astype("float32") / 2)
    np.testing.assert_array_equal(*found)


@needs("matmul", "reshape", "dequantize")
def test_limits_without_quantized_keep_weights_in_float():
    def body(emit):
        return emit(op.matmul(X, emit(op.permute_dims(blocks(emit)))))

    table = Table(OPS, chip=Chip(), limits={"matmul": Limits(), "reshape": Limits()})
    ((dtype, _),) = constants_of(simplify(build([X], body), table))
    assert dtype == "float32"


def check_network(mod, arguments, expected, error=0.02, real=""):
    """Check values, and that only the ops named in `real`, if it is not None, read real numbers."""
    skip_without_integers("conv2d", "matmul")
    partitioned = support.partition_for(mod)
    ops = backend.offload_report(partitioned).ops
    products = [item for item in ops if is_product(item.op)]
    assert len(products) > 2
    of_reals = {item.composite for item in products if "quantized" not in (item.composite or "")}
    assert of_reals <= set((real or "").split())
    if real is not None and {entry.name for entry in OPS} >= OF_NETWORKS:
        found = {item.composite for item in ops if item.runs_in.startswith("float")}
        assert found <= {"dequantize", *real.split()}
        conversions = [item for item in ops if item.composite in ("quantize", "dequantize")]
        # Without such ops, they are at the edges alone.
        assert real or len(conversions) == len(arguments) + len(expected)
    machine = relax.VirtualMachine(compile_for(partitioned), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arguments))
    for one, right in zip([found] if hasattr(found, "numpy") else found, expected, strict=True):
        # A step in one layer may be one more in the next.
        difference = np.abs(one.numpy().astype("float64") - right)
        assert difference.max() <= error * np.abs(right).max() + 1e-6
