# SPDX-License-Identifier: Apache-2.0
"""Integers of uint16, and weights of integers that are arguments instead of constants."""

from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import backend
import quick_cases
import support
from backend.engine.backend.passes import simplify
from backend.engine.backend.shared.backend import OPS
from backend.engine.backend.table.chip import Chip, Limits
from backend.engine.backend.table.reasons import Code
from backend.engine.backend.table.table import Table
from backend.engine.workbench.conformance import quantized
from backend.engine.workbench.conformance.weight_models import Weights
from support import build, compile_for, variable

needs = support.needs
op = relax.op
RNG = np.random.default_rng(11)


def run(mod, *arrays, **options):
    """Run a model here."""
    machine = relax.VirtualMachine(compile_for(mod, **options), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def labels(mod, **options):
    """Return the composites of a model by op."""
    rows = backend.offload_report(support.partition_for(mod, **options)).ops
    return {row.op.removeprefix("relax."): row.composite for row in rows}


def number(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype))


# ---- Weights that are arguments -----------------------------------------------------------------

CASES = [
    name for name in quick_cases.of_quantized() if not isinstance(quantized.find(name), Weights)
]


@cache
def outcomes():
    """Return what the suite shows with constants, and with arguments."""
    kept = quantized.run(CASES, lambda name: None, bind_constants=False)
    return support.outcomes_of(quantized.SUITE, CASES), {item.case: item for item in kept}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_weights_that_are_arguments_are_integers_too(case):
    bound, kept = (found[case] for found in outcomes())
    if bound.status != "passed":
        pytest.skip(f"with constants, it is {bound.status}")
    support.assert_passed(kept)


def product(weight, bias=None):
    """Return a matmul of int8, whose weight is a constant or an argument."""
    x = variable("x", 3, 16, dtype="int8")

    def body(emit):
        reals = [
            emit(op.dequantize(x, number(0.05), number(3, "int8"))),
            emit(op.dequantize(weight, number(0.01), number(0, "int8"))),
        ]
        value = emit(op.matmul(*reals))
        if bias is not None:
            value = emit(op.add(value, relax.const(bias)))
        return emit(op.quantize(value, number(0.5), number(-5, "int8"), -1, "int8"))

    arguments = [x, weight] if isinstance(weight, relax.Var) else [x]
    return build(arguments, body)


def skip_without_arguments_as_weights(mod):
    """Skip a test where the chip or the driver takes constant weights only."""
    found = support.placement(support.partition_for(mod, bind_constants=False), "main")
    if found.declined or support.TABLE.chip.constant_weights:
        pytest.skip("weights must be constants here")


@needs("matmul", "add", "quantize", "dequantize")
def test_scales_and_biases_are_in_the_program_and_weights_are_arguments():
    support.skip_without_integers("matmul")
    numbers = RNG.integers(-128, 128, (16, 8)).astype("int8")
    bias = RNG.standard_normal(8).astype("float32")
    mod = product(relax.const(numbers), bias)
    skip_without_arguments_as_weights(mod)
    assert set(labels(mod, bind_constants=False).values()) == {"quantized_matmul_bias"}
    partitioned = support.partition_for(mod, bind_constants=False)
    regions = [
        function
        for _, function in partitioned.functions_items()
        if function.attrs and "Codegen" in function.attrs
    ]
    dtypes = [[str(item.ty.dtype) for item in region.params] for region in regions]
    assert dtypes == [["int8", "int8"]]
    x = RNG.integers(-128, 128, (3, 16)).astype("int8")
    first, second = (run(mod, x, bind_constants=bound) for bound in (True, False))
    assert len(np.unique(first)) > 4
    np.testing.assert_array_equal(first, second)


@needs("matmul", "quantize", "dequantize")
def test_a_weight_that_is_a_parameter_is_integers():
    support.skip_without_integers("matmul")
    numbers = RNG.integers(-128, 128, (16, 8)).astype("int8")
    x = RNG.integers(-128, 128, (3, 16)).astype("int8")
    mod = product(variable("w", 16, 8, dtype="int8"))
    skip_without_arguments_as_weights(mod)
    for bound in (True, False):
        assert "quantized_matmul" in labels(mod, bind_constants=bound).values()
        expected = run(product(relax.const(numbers)), x, bind_constants=True)
        np.testing.assert_array_equal(run(mod, x, numbers, bind_constants=bound), expected)


@needs("matmul", "dequantize")
def test_weights_alone_are_dequantized_when_the_model_runs_if_they_are_arguments():
    support.skip_without_integers("matmul")
    numbers = RNG.integers(-128, 128, (16, 8)).astype("int8")
    x = variable("x", 3, 16)

    def body(emit):
        weight = emit(op.dequantize(relax.const(numbers), number(0.01), number(0, "int8")))
        return emit(op.matmul(x, weight))

    mod = build([x], body)
    skip_without_arguments_as_weights(mod)
    if not support.TABLE.takes_integer_weights("relax.matmul"):
        pytest.skip("weights of integers become real numbers here")
    rows = backend.offload_report(support.partition_for(mod, bind_constants=False)).ops
    (row,) = (row for row in rows if row.op == "relax.matmul")
    assert row.composite == "matmul"
    assert row.wider_code == Code.OPTION.value
    assert row.wider == "matmul: its weights must be constants; bind_constants is off"
    data = RNG.standard_normal((3, 16)).astype("float32")
    found = run(mod, data, bind_constants=False)
    np.testing.assert_allclose(found, data @ (numbers * 0.01), rtol=1e-3, atol=1e-3)


# ---- uint16 -------------------------------------------------------------------------------------

MIDDLE = 1 << 15


def model_of(dtype, edges=False):
    """Return a model of int16, or the same of uint16: products, a max pool and a sigmoid.

    Its argument and result are integers, too, with `edges`.
    """
    middle = MIDDLE if dtype == "uint16" else 0
    x = variable("x", 1, 3, 8, 8, dtype=dtype if edges else "float32")
    rng = np.random.default_rng(5)
    numbers = rng.integers(-128, 128, (4, 3, 3, 3)).astype("int8")

    def body(emit):
        def quantize(value, scale, zero):
            return emit(op.quantize(value, number(scale), number(zero + middle, dtype), -1, dtype))

        def dequantize(value, scale, zero):
            return emit(op.dequantize(value, number(scale), number(zero + middle, dtype)))

        value = x if edges else quantize(x, 1e-4, 300)
        scales = relax.const(np.linspace(1e-3, 2e-3, 4, dtype="float32"))
        zeros = relax.const(np.zeros(4, "int8"))
        weight = emit(op.dequantize(relax.const(numbers), scales, zeros, 0))
        value = emit(op.nn.conv2d(dequantize(value, 1e-4, 300), weight, padding=1))
        # The pool reads integers, as an importer writes it that knows no real numbers there.
        value = emit(op.nn.max_pool2d(quantize(value, 2e-4, -7), (2, 2), (2, 2)))
        value = emit(op.sigmoid(dequantize(value, 2e-4, -7)))
        value = quantize(value, 2e-5, -MIDDLE + 9)
        return value if edges else dequantize(value, 2e-5, -MIDDLE + 9)

    return build([x], body)


@needs("conv2d", "max_pool2d", "sigmoid", "quantize", "dequantize")
def test_uint16_is_computed_as_int16_bit_for_bit():
    support.skip_without_int16("conv2d")
    x = RNG.standard_normal((1, 3, 8, 8)).astype("float32")
    expected, actual = (run(model_of(dtype), x) for dtype in ("int16", "uint16"))
    assert len(np.unique(expected)) > 20
    np.testing.assert_array_equal(actual, expected)
    unsigned, signed = (labels(model_of(dtype)) for dtype in ("uint16", "int16"))
    assert unsigned == signed
    assert "quantized_conv2d" in signed.values()


def joined(dtype, join, join_axis):
    """Return a model that joins two quantized branches."""
    middle = MIDDLE if dtype == "uint16" else 0
    x = variable("x", 2, 3)

    def body(emit):
        fields = []
        for factor in (1.0, -0.5):
            value = emit(op.multiply(x, number(factor)))
            zero = number(5 + middle, dtype)
            fields.append(emit(op.quantize(value, number(1e-4), zero, -1, dtype)))
        value = emit(join(relax.Tuple(fields), join_axis))
        value = emit(op.permute_dims(value))
        return emit(op.dequantize(value, number(1e-4), number(5 + middle, dtype)))

    return build([x], body)


@needs("multiply", "concat", "stack", "permute_dims", "quantize", "dequantize")
@pytest.mark.parametrize("join", [op.concat, op.stack])
def test_uint16_is_joined_as_int16(join):
    entries = [
        support.TABLE.get(name) for name in ("concat", "stack", "permute_dims", "dequantize")
    ]
    if not all("int16" in entry.inputs[0].dtypes for entry in entries):
        pytest.skip("this chip has no int16")
    x = RNG.standard_normal((2, 3)).astype("float32")
    expected, actual = (run(joined(dtype, join, 1), x) for dtype in ("int16", "uint16"))
    assert len(np.unique(expected)) == 12
    np.testing.assert_array_equal(actual, expected)
    unsigned, signed = (labels(joined(dtype, join, 1)) for dtype in ("uint16", "int16"))
    assert unsigned == signed


@needs("conv2d", "max_pool2d", "sigmoid", "quantize", "dequantize")
def test_arguments_and_results_of_uint16_stay_uint16():
    support.skip_without_int16("conv2d")
    x = RNG.integers(-MIDDLE, MIDDLE, (1, 3, 8, 8))
    expected = run(model_of("int16", edges=True), x.astype("int16"))
    actual = run(model_of("uint16", edges=True), (x + MIDDLE).astype("uint16"))
    assert actual.dtype == "uint16"
    assert len(np.unique(expected)) > 20
    np.testing.assert_array_equal(actual.astype("int64") - MIDDLE, expected)
    assert "quantized_conv2d" in labels(model_of("uint16", edges=True)).values()


@needs("quantize", "dequantize")
@pytest.mark.parametrize("zero_point", [0, 1, MIDDLE, 65535])
def test_what_is_beyond_the_range_of_uint16_becomes_its_ends(zero_point):
    x = variable("x", 2, 6)
    scale, zero = number(0.5), number(zero_point, "uint16")

    def both(emit):
        numbers = emit(op.quantize(x, scale, zero, -1, "uint16"))
        return emit(op.multiply(emit(op.dequantize(numbers, scale, zero)), number(2.0)))

    def alone(emit):
        return emit(op.quantize(x, scale, zero, -1, "uint16"))

    data = np.array([[-1e9, -40000, -0.75, 0, 0.25, 0.75], [9, 32767, 32768, 65535, 65536, 1e9]])
    data = (data / 2).astype("float32")
    expected = np.clip(np.rint(data / 0.5) + zero_point, 0, 65535)
    result = run(build([x], alone), data)
    assert result.dtype == "uint16"
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(run(build([x], both), data), expected - zero_point)


@needs("matmul", "quantize", "dequantize")
def test_weights_of_uint16_are_int16():
    support.skip_without_int16("matmul")
    numbers = RNG.integers(0, 65536, (16, 8))

    def model(dtype):
        middle = MIDDLE if dtype == "uint16" else 0
        x = variable("x", 3, 16, dtype="int16")
        weight = relax.const((numbers - MIDDLE + middle).astype(dtype))

        def body(emit):
            first = emit(op.dequantize(x, number(1e-4), number(0, "int16")))
            second = emit(op.dequantize(weight, number(1e-4), number(middle, dtype)))
            value = emit(op.matmul(first, second))
            return emit(op.quantize(value, number(1e-3), number(0, "int16"), -1, "int16"))

        return build([x], body)

    assert set(labels(model("uint16")).values()) == {"quantized_matmul"}
    data = RNG.integers(-MIDDLE, MIDDLE, (3, 16)).astype("int16")
    expected, actual = (run(model(dtype), data) for dtype in ("int16", "uint16"))
    np.testing.assert_array_equal(actual, expected)


@needs("quantize", "dequantize")
def test_a_zero_point_that_is_computed_stays_uint16():
    x, zero = variable("x", 2, 6), variable("zero", dtype="uint16")

    def body(emit):
        return emit(op.quantize(x, number(0.5), zero, -1, "uint16"))

    mod = build([x, zero], body)
    assert labels(mod)["quantize"] is None
    data = RNG.standard_normal((2, 6)).astype("float32")
    result = run(mod, data, np.array(500, "uint16"))
    np.testing.assert_array_equal(result, np.rint(data / 0.5) + 500)


@needs("quantize", "dequantize")
def test_a_chip_without_int16_says_so_of_uint16():
    chip = Chip(dtypes=("float32", "int8", "uint8"))
    names = ("quantize", "dequantize")
    limits = {item.name: Limits() if item.name in names else None for item in OPS}
    table = Table(OPS, chip=chip, limits=limits)
    mod = simplify(model_of("uint16"), table)
    calls = [item.value for block in mod["main"].body.blocks for item in block.bindings]
    wide = [
        call for call in calls if "quantize" in call.op.name and "uint16" in str(call.args[2].ty)
    ]
    assert len(wide) == 6
    for call in wide:
        reason = table.refusal(call)
        assert reason.code is Code.DTYPE
        assert "is uint16; supported: " in reason
