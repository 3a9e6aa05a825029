# SPDX-License-Identifier: Apache-2.0
"""Each node of a region as loops, against NumPy, and what fusing makes of them."""

import itertools
import math

import numpy as np
import pytest
from isa_host import Net

from backend.engine.backend.isa.compiler import node_rescale, node_steps
from backend.engine.backend.isa.compiler.kernels import PASSES, plan_of
from backend.engine.backend.isa.compiler.nodes import DEFINITIONS, reason
from backend.engine.backend.sdk.npu_region.region import Declined, Region

RANDOM = np.random.default_rng(7)


def reals(*shape, dtype="float32"):
    return RANDOM.normal(size=shape).astype(dtype)


def integers(dtype, *shape, least=None, most=None):
    info = np.iinfo(dtype)
    ends = info.min if least is None else least, info.max if most is None else most
    return RANDOM.integers(*ends, size=shape, endpoint=True).astype(dtype)


# ---- Steps --------------------------------------------------------------------------------------

erf = np.vectorize(math.erf)


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


OF_ONE = {
    **{"absolute": np.abs, "exp": np.exp, "tanh": np.tanh, "erf": erf, "sigmoid": sigmoid},
    **{"sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan, "floor": np.floor},
    **{"ceil": np.ceil, "truncate": np.trunc, "round_even": np.rint, "square": np.square},
    **{"negate": np.negative, "cast": lambda a: a, "relu": lambda a: np.maximum(a, 0)},
    "round_away": lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a),
    "gelu": lambda a: 0.5 * a * (1 + erf(a / math.sqrt(2))),
    "gelu_tanh": lambda a: 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    "silu": lambda a: a * sigmoid(a),
    "selu": lambda a: (
        1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(np.minimum(a, 0)))
    ),
    "sign": np.sign,
    "hard_swish": lambda a: a * np.clip(a + 3, 0, 6) / 6,
}
OF_POSITIVE = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a)}
OF_TWO = {
    **{"add": np.add, "bias": np.add, "residual": np.add, "subtract": np.subtract},
    **{"multiply": np.multiply, "scale": np.multiply, "divide": np.divide},
    **{"maximum": np.maximum, "minimum": np.minimum, "less": np.less, "equal": np.equal},
    "floor_divide": lambda a, b: np.floor(a / b),
    "remainder": np.fmod,
    "prelu": lambda a, b: np.where(a > 0, a, a * b),
}
OF_NUMBERS = {
    "clip": ((-0.5, 0.75), lambda a: np.clip(a, -0.5, 0.75)),
    "leaky_relu": ((0.1,), lambda a: np.where(a > 0, a, 0.1 * a)),
    "softplus": ((2.0, 1.0), lambda a: np.where(2 * a > 1, a, np.log1p(np.exp(2 * a)) / 2)),
}


def test_each_step_of_real_numbers_computes_what_its_name_says():
    data, other = reals(3, 4) * 2, reals(4) * 2
    data[0, :3], other[1] = (0.5, -2.5, 1.5), data[1, 1]
    net = Net()
    one, two, positive = net.input(data), net.input(other), net.input(np.abs(data))
    flags = net.input(data > 0)
    for name, function in OF_ONE.items():
        net.output(net.step(name, [one], data), function(data.astype("f8")).astype("f4"))
    for name, function in OF_POSITIVE.items():
        expected = function(np.abs(data.astype("f8"))).astype("f4")
        net.output(net.step(name, [positive], data), expected)
    for name, function in OF_TWO.items():
        expected = function(data, other).astype("f4")
        net.output(net.step(name, [one, two], data), expected)
    for name, (numbers, function) in OF_NUMBERS.items():
        net.output(net.step(name, [one], data, *numbers), function(data).astype("f4"))
    net.output(net.step("power", [positive, two], data), np.abs(data) ** other)
    net.output(net.step("select", [flags, one, two], data), np.where(data > 0, data, other))
    net.check(rtol=2e-5)
    tested = {*OF_ONE, *OF_POSITIVE, *OF_TWO, *OF_NUMBERS, "power", "select"}
    assert tested == {*node_steps.REAL_STEPS, *node_steps.NUMBER_STEPS}


def test_real_numbers_keep_nan_and_become_the_nearest_integers():
    data = np.array([np.nan, 1e20, -1e20, 2.5, -3.5, 300, np.inf, -0.4], "f4")
    net = Net()
    one, zero = net.input(data), net.constant(np.zeros(1, "f4"))
    for dtype in ("int8", "uint8", "int16", "int32", "int64"):
        info = np.iinfo(dtype)
        known = np.clip(np.rint(np.nan_to_num(data.astype("f8"))), info.min, info.max)
        # The largest integers of 32 and 64 bits are no float64.
        exact = [
            info.max if value >= info.max else info.min if value <= info.min else int(value)
            for value in known
        ]
        net.output(net.step("cast", [one], np.empty(8, dtype)), np.array(exact, dtype))
    net.output(net.step("cast", [one], np.empty(8, bool)), ~(data == 0))
    for name in ("maximum", "minimum"):
        both = getattr(np, name)(data, np.float32(0))
        net.output(net.step(name, [one, zero], data), both)
        net.output(net.step(name, [zero, one], data), both)
    net.output(net.step("relu", [one], data), np.maximum(data, 0))
    net.output(net.step("equal", [one, one], data), (data == data).astype("f4"))
    net.output(net.node("reshape", [one], data, least=0, most=6.0), np.clip(data, 0, 6))
    net.check()


def test_float16_is_computed_in_float32():
    data, other = reals(4, 6, dtype="float16"), reals(6, 3, dtype="float16")
    net = Net()
    one, two = net.input(data), net.constant(other)
    product = (data.astype("f4") @ other.astype("f4")).astype("f2")
    matmul = {"transpose_a": False, "transpose_b": False, "a_zero_point": 0, "b_zero_point": 0}
    net.output(net.node("matmul", [one, two], product, **matmul), product)
    many = np.full((1, 3000), 1, "float16")
    net.output(
        net.node("reduction", [net.input(many)], np.empty(1, "f2"), kind="sum", axes=[1]),
        np.array([3000], "f2"),
    )
    net.output(net.step("gelu", [one], data), OF_ONE["gelu"](data.astype("f8")).astype("float16"))
    # Between the steps of one op nothing is rounded.
    three = net.constant(np.array([1 / 3], "f2"))
    third = net.step("multiply", [one, three], data, label="op")
    exact = data.astype("f4") * np.float32(np.float16(1 / 3))
    net.output(net.step("multiply", [third, third], data, label="op"), (exact**2).astype("f2"))
    plan = net.check()
    body = next(kernel.function.script() for kernel in plan.kernels if kernel.labels == ("op",))
    assert "multiply_intermediate = T.sblock_alloc_buffer((T.int64(4), T.int64(6)))" in body


# ---- Products -----------------------------------------------------------------------------------


def windows_of(data, window, strides, dilations, pads_begin, pads_end, fill=0):
    """Return [batch, places..., taps..., channels] of data with channels last."""
    pads = [(0, 0), *zip(pads_begin, pads_end, strict=True), (0, 0)]
    data = np.pad(data, pads, constant_values=fill)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True)]
    axes = tuple(range(1, 1 + len(window)))
    found = np.lib.stride_tricks.sliding_window_view(data, reach, axes)
    found = np.moveaxis(found, 1 + len(window), -1)
    places = [slice(None, None, stride) for stride in strides]
    taps = [slice(None, None, dilation) for dilation in dilations]
    return found[(slice(None), *places, *taps)]


def convolved(data, weight, groups, fill=0, **window):
    rank, each = data.ndim - 2, weight.shape[0] // groups
    found = windows_of(data, weight.shape[1:-1], fill=fill, **window)
    inner, parts = weight.shape[-1], []
    for group in range(groups):
        part = found[..., group * inner : (group + 1) * inner]
        of_group = weight[group * each : (group + 1) * each]
        axes = [*range(1 + rank, part.ndim)]
        parts.append(np.tensordot(part, of_group, (axes, [*range(1, 2 + rank)])))
    return np.concatenate(parts, -1)


CONVOLUTIONS = [
    # places, channels, taps, channels of the result, groups, strides, dilations, padding
    ((7, 6), 4, (3, 3), 5, 1, (1, 1), (1, 1), (1, 1), (1, 1)),
    ((8, 7), 4, (3, 2), 6, 2, (2, 1), (1, 2), (0, 1), (2, 1)),
    ((7, 7), 3, (3, 3), 3, 3, (2, 2), (1, 1), (1, 1), (1, 1)),
    ((6, 6), 3, (2, 2), 6, 3, (1, 1), (1, 1), (0, 0), (0, 0)),
    ((5, 5), 4, (1, 1), 3, 1, (1, 1), (1, 1), (0, 0), (0, 0)),
    ((5, 5), 4, (1, 1), 4, 4, (1, 1), (1, 1), (0, 0), (0, 0)),
    ((9,), 3, (4,), 2, 1, (2,), (2,), (3,), (0,)),
    ((4, 5, 4), 2, (2, 3, 2), 3, 1, (1, 2, 1), (1, 1, 1), (1, 0, 0), (0, 1, 1)),
]


def windowed(strides, dilations, begins, ends):
    return {
        **{"strides": list(strides), "dilations": list(dilations)},
        **{"pads_begin": list(begins), "pads_end": list(ends)},
    }


def channels_first(array, *, last):
    return array if last else np.ascontiguousarray(np.moveaxis(array, -1, 1))


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_convolutions_of_all_kinds(last):
    net = Net(last)
    zeros = {"data_zero_point": 0, "weight_zero_point": 0}
    for index, (places, inner, taps, outputs, groups, *window) in enumerate(CONVOLUTIONS):
        data, weight = reals(2, *places, inner), reals(outputs, *taps, inner // groups)
        bias, window = reals(outputs), windowed(*window)
        expected = convolved(data, weight, groups, **window).astype("f4")
        given = [channels_first(item, last=last) for item in (data, weight)]
        is_constant = index % 2 == 0
        operands = [
            net.input(given[0]),
            net.constant(given[1]) if is_constant else net.input(given[1]),
        ]
        limits = {}
        if is_constant:
            operands.append(net.constant(bias))
            expected, limits = np.clip(expected + bias, 0, 2), {"least": 0, "most": 2.0}
        expected = channels_first(expected, last=last)
        node = net.node(
            "convolution", operands, expected, **window, groups=groups, **zeros, **limits
        )
        net.output(node, expected)
    net.check(atol=2e-5)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_transposed_convolutions(last):
    net = Net(last)
    for index, (groups, strides, dilations, more) in enumerate(
        [(1, (2, 2), (1, 1), (1, 1)), (2, (1, 3), (2, 1), (0, 0)), (4, (2, 1), (1, 2), (1, 0))]
    ):
        data, weight = reals(1, 4, 3, 4), reals(4, 3, 2, 3)
        begins, ends = (1, 0), (1, 1)
        sizes = [
            (data.shape[1 + i] - 1) * strides[i] + (weight.shape[1 + i] - 1) * dilations[i] + 1
            for i in range(2)
        ]
        outputs = 3 * groups
        whole = np.zeros((1, sizes[0] + more[0], sizes[1] + more[1], outputs))
        for y, x, ky, kx, c in itertools.product(range(4), range(3), range(3), range(2), range(4)):
            group = c // (4 // groups)
            at = y * strides[0] + ky * dilations[0], x * strides[1] + kx * dilations[1]
            whole[(0, *at, slice(group * 3, group * 3 + 3))] += (
                data[0, y, x, c].astype("f8") * weight[c, ky, kx]
            )
        expected = whole[:, begins[0] : whole.shape[1] - ends[0], : whole.shape[2] - ends[1]]
        expected = channels_first(expected.astype("f4"), last=last)
        # Channels first: [C, O / groups, taps...]; last: [O / groups, taps..., C].
        order = (3, 1, 2, 0) if last else (0, 3, 1, 2)
        given = np.ascontiguousarray(weight.transpose(order))
        operands = [
            net.input(channels_first(data, last=last)),
            net.constant(given) if index != 1 else net.input(given),
        ]
        window = windowed(strides, dilations, begins, ends)
        node = net.node(
            "transposed_convolution",
            operands,
            expected,
            **window,
            output_padding=list(more),
            groups=groups,
        )
        net.output(node, expected)
    net.check(atol=2e-5)


def test_matmuls_with_batches_and_transposed_operands():
    net = Net()
    for sizes, flags in [
        (((3, 5), (5, 4)), (False, False)),
        (((2, 3, 5), (5, 4)), (False, False)),
        (((5, 3), (4, 5)), (True, True)),
        (((2, 1, 3, 5), (6, 4, 5)), (False, True)),
        (((2, 3, 5), (2, 5, 4)), (False, False)),
    ]:
        a, b = reals(*sizes[0]), reals(*sizes[1])
        sides = [x.swapaxes(-1, -2) if flag else x for x, flag in zip((a, b), flags, strict=True)]
        expected = (sides[0].astype("f8") @ sides[1]).astype("f4")
        bias = reals(4)
        for operands, result in (
            ([net.input(a), net.input(b)], expected),
            ([net.input(a), net.constant(b), net.constant(bias)], expected + bias),
        ):
            attributes = {"transpose_a": flags[0], "transpose_b": flags[1]}
            node = net.node(
                "matmul", operands, result, **attributes, a_zero_point=0, b_zero_point=0
            )
            net.output(node, result)
    net.check(atol=1e-5)


@pytest.mark.parametrize(
    "types", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int16", "int8")]
)
def test_products_of_integers_are_exact_with_zero_points(types):
    net = Net()
    kind = "int64" if "int16" in types else "int32"
    window = windowed((1, 2), (1, 1), (1, 0), (1, 1))
    data, weight = integers(types[0], 1, 6, 5, 3), integers(types[1], 4, 3, 2, 3)
    bias = integers("int32", 4, least=-5000, most=5000)
    for zeros, is_constant in itertools.product([(0, 0), (5, 0), (0, 3), (7, 2)], [True, False]):
        found = convolved(data.astype("i8") - zeros[0], weight.astype("i8") - zeros[1], 1, **window)
        if is_constant:
            found = found + bias
        operands = [
            net.input(data),
            net.constant(weight) if is_constant else net.input(weight),
            *([net.constant(bias)] if is_constant else []),
        ]
        expected = found.astype(kind)
        points = {"data_zero_point": zeros[0], "weight_zero_point": zeros[1]}
        net.output(
            net.node("convolution", operands, expected, **window, groups=1, **points), expected
        )
        a, b = integers(types[0], 4, 9), integers(types[1], 9, 3)
        expected = ((a.astype("i8") - zeros[0]) @ (b.astype("i8") - zeros[1])).astype(kind)
        points = {"a_zero_point": zeros[0], "b_zero_point": zeros[1]}
        operands = [net.input(a), net.constant(b) if is_constant else net.input(b)]
        node = net.node(
            "matmul", operands, expected, transpose_a=False, transpose_b=False, **points
        )
        net.output(node, expected)
    net.check()


# ---- Integers -----------------------------------------------------------------------------------


def wrapped(values, dtype):
    """Return Python's integers as a type has them."""
    bits = np.dtype(dtype).itemsize * 8
    low = [value & ((1 << bits) - 1) for value in values]
    if np.dtype(dtype).kind == "i":
        low = [value - (1 << bits) if value >> (bits - 1) else value for value in low]
    return np.array(low, dtype)


def quotient(a, b):
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OF_INTEGERS = {
    **{"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__},
    **{"maximum": max, "minimum": min, "divide": quotient},
    "floor_divide": lambda a, b: a // b if b else 0,
    "remainder": lambda a, b: a - b * quotient(a, b) if b else 0,
    **{"less": int.__lt__, "equal": int.__eq__},
}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_steps_of_integers_are_exact_and_wrap_around(dtype):
    info = np.iinfo(dtype)
    a = np.concatenate([[info.min, info.max, info.min, info.max, 0], integers(dtype, 9)])
    b = np.concatenate([[info.max, info.max, 1, info.min, 0], integers(dtype, 8), a[-1:]])
    a, b = a.astype(dtype), b.astype(dtype)
    if info.min:
        b[2] = -1
    net = Net()
    one, two = net.input(a), net.input(b)
    pairs = [*zip(a.tolist(), b.tolist(), strict=True)]
    for name, function in OF_INTEGERS.items():
        expected = wrapped([int(function(*pair)) for pair in pairs], dtype)
        net.output(net.step(name, [one, two], a), expected)
    for name, function in {
        **{"absolute": abs, "negate": int.__neg__, "square": lambda x: x * x, "cast": int},
        **{"relu": lambda x: max(x, 0), "sign": lambda x: (x > 0) - (x < 0)},
    }.items():
        net.output(net.step(name, [one], a), wrapped(map(function, a.tolist()), dtype))
    net.output(net.step("clip", [one], a, 3, 50), np.clip(a, 3, 50))
    net.output(net.step("cast", [one], np.empty(14, bool)), a != 0)
    flags = net.input(np.arange(14) % 2 == 1)
    net.output(net.step("select", [flags, one, two], a), np.where(np.arange(14) % 2, a, b))
    net.check()


def rescaled(a, m, s, rounding):
    product, half = a * m, (1 << s) >> 1
    rest = product - (product >> s << s)
    down = product >> s
    if rounding == node_rescale.HALF_UP:
        return (product + half) >> s
    if rounding == node_rescale.DOUBLE:
        more = 0 if s <= 31 else 1 << 30 if a >= 0 else -(1 << 30)
        return (product + half + more) >> s
    if rounding == node_rescale.HALF_EVEN:
        return down + (rest > half or (rest == half and s > 0 and down % 2 == 1))
    if rounding == node_rescale.HALF_AWAY:
        return down + (rest > half or (rest == half and s > 0 and product >= 0))
    if rounding == node_rescale.DOWN:
        return down
    return down + (rest != 0 and product < 0)


@pytest.mark.parametrize("wide", [False, True], ids=["32", "48"])
def test_rescaling_rounds_as_the_chip_says(wide):
    dtype, most = ("int64", 1 << 47) if wide else ("int32", (1 << 31) - 1)
    data = integers(dtype, 40, 6, least=-most, most=most)
    # Halves, and numbers next to them.
    data[:, 0] = np.arange(-20, 20)
    data[:, 1] = np.arange(-20, 20) * (1 << 29)
    multipliers = np.array([1, 1 << 30, (1 << 31) - 1, 1518500249, 3, 1 << 30], "int64")
    shifts = np.array([1, 31, 33, 40, 0, 46], "int64")
    net = Net()
    one, two, three = net.input(data), net.constant(multipliers), net.constant(shifts)
    for rounding in range(6):
        found = [
            rescaled(int(a), int(multipliers[c]), int(shifts[c]), rounding)
            for row in data
            for c, a in enumerate(row)
        ]
        expected = wrapped(found, "int64").reshape(data.shape)
        node = net.step("rescale", [one, two, three], expected, 0, 0, rounding)
        net.output(node, expected)
    net.check()


def test_quantize_and_dequantize():
    data = reals(3, 4) * 60
    data[0, 0], data[1, 1] = np.nan, 2.5
    scales, zeros = np.array([0.5, 1, 0.25], "f4"), np.array([3, -2, 0], "i4")
    net = Net()
    one = net.input(data)
    names = net.constant(scales), net.constant(zeros)
    each = scales[:, None], zeros[:, None]
    for parameters, operands, axis in (
        ((np.float32(0.5), 3), [one], None),
        (each, [one, *names], 0),
    ):
        known = np.rint(data / parameters[0]) + parameters[1]
        integer = np.nan_to_num(np.clip(known, -128, 127)).astype("int8")
        given = {"scale": 0.5, "zero_point": 3, "axis": None}
        if axis == 0:
            given = {"scale": names[0], "zero_point": names[1], "axis": 0}
        node = net.node("quantize", operands, integer, **given)
        net.output(node, integer)
        back = ((integer.astype("i4") - parameters[1]) * parameters[0]).astype("f4")
        net.output(net.node("dequantize", [node, *operands[1:]], back, **given), back)
    net.check()


# ---- Pools, reductions and the like -------------------------------------------------------------


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_pools_of_all_kinds(last):
    net = Net(last)
    data = reals(1, 7, 6, 3)
    for window, strides, dilations, begins, ends, results in [
        ((3, 3), (2, 2), (1, 1), (1, 1), (1, 1), None),
        ((2, 3), (1, 2), (2, 1), (0, 0), (0, 0), None),
        # In ceil mode, the last window reaches beyond the data.
        ((2, 2), (2, 2), (1, 1), (0, 0), (0, 0), (4, 3)),
        ((1, 1), (2, 1), (1, 1), (0, 0), (0, 0), None),
    ]:
        for kind in ("max", "average", "average_include_pad"):
            beyond = [0, 0]
            if results is not None:
                beyond = [
                    (results[i] - 1) * strides[i] + window[i] - data.shape[1 + i] for i in (0, 1)
                ]
            more = [max(end, 0) + pad for end, pad in zip(beyond, ends, strict=True)]
            parts = (window, strides, dilations, begins, more)
            nan = windows_of(data.astype("f8"), *parts, fill=np.nan)
            if kind == "max":
                expected = np.nanmax(nan, (3, 4))
            elif kind == "average":
                expected = np.nanmean(nan, (3, 4))
            else:
                inside = np.pad(data, [(0, 0), *zip(begins, ends, strict=True), (0, 0)])
                outer = [(0, 0), *((0, more[i] - ends[i]) for i in (0, 1)), (0, 0)]
                counted = np.pad(inside.astype("f8"), outer, constant_values=np.nan)
                expected = np.nanmean(
                    windows_of(counted, window, strides, dilations, (0, 0), (0, 0)), (3, 4)
                )
            expected = channels_first(expected.astype("f4"), last=last)
            node = net.node(
                "pool",
                [net.input(channels_first(data, last=last))],
                expected,
                kind=kind,
                window=list(window),
                **windowed(strides, dilations, begins, ends),
            )
            net.output(node, expected)
    for results in ((1, 1), (7, 3), (3, 4)):
        ends = [
            [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            for size, count in zip((7, 6), results, strict=True)
        ]
        expected = np.array(
            [[data[:, a:b, c:d].mean((1, 2)) for c, d in ends[1]] for a, b in ends[0]]
        )
        expected = channels_first(expected.transpose(2, 0, 1, 3), last=last)
        attributes = {"kind": "average_adaptive", "window": [1, 1]}
        nothing = windowed((1, 1), (1, 1), (0, 0), (0, 0))
        given = net.input(channels_first(data, last=last))
        node = net.node("pool", [given], expected, **attributes, **nothing)
        net.output(node, np.ascontiguousarray(expected))
    narrow = integers("int8", 1, 5, 5, 2)
    expected = windows_of(narrow, (2, 2), (1, 1), (1, 1), (1, 0), (0, 1), fill=-128).max((3, 4))
    expected = channels_first(expected, last=last)
    node = net.node(
        "pool",
        [net.input(channels_first(narrow, last=last))],
        expected,
        kind="max",
        window=[2, 2],
        **windowed((1, 1), (1, 1), (1, 0), (0, 1)),
    )
    net.output(node, expected)
    net.check()


def test_reductions_with_and_without_their_dimensions():
    net = Net()
    data, whole = reals(2, 3, 4), integers("int8", 2, 3, 4, least=-9, most=9)
    one, two = net.input(data), net.input(whole)
    kinds = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "product": np.prod}
    for axes, keep in [((1,), True), ((0, 2), False), ((0, 1, 2), False), ((2,), False)]:
        for kind, reduce in kinds.items():
            expected = np.asarray(reduce(data, axes, keepdims=keep))
            net.output(net.node("reduction", [one], expected, kind=kind, axes=axes), expected)
            if kind != "mean":
                exact = np.asarray(reduce(whole.astype("i8"), axes, keepdims=keep))
                for dtype in ("int64", "int32", "int8"):
                    result = exact.astype(dtype)
                    node = net.node("reduction", [two], result, kind=kind, axes=axes)
                    net.output(node, result)
    net.check(rtol=1e-5, atol=1e-5)


def test_softmax_and_its_logarithm():
    net = Net()
    data = reals(2, 5, 3) * 10
    one, wide = net.input(data), data.astype("f8")
    for axis in (0, 1, 2):
        power = np.exp(wide - wide.max(axis, keepdims=True))
        expected = power / power.sum(axis, keepdims=True)
        for logarithm, result in ((False, expected), (True, np.log(expected))):
            result = result.astype("f4")
            net.output(net.node("softmax", [one], result, axis=axis, logarithm=logarithm), result)
    net.check()


def test_scans():
    net = Net()
    data, whole = reals(2, 5, 3), integers("int8", 2, 5, 3)
    for given, dtype in ((data, "float32"), (data.astype("f2"), "float16"), (whole, "int64")):
        one = net.input(given)
        exact = given.astype("f8" if dtype.startswith("f") else "i8")
        for axis, exclusive in itertools.product((0, 1, 2), (False, True)):
            for kind, scan, first in (("sum", np.cumsum, 0), ("product", np.cumprod, 1)):
                found = scan(exact, axis)
                if exclusive:
                    found = np.roll(found, 1, axis)
                    found[tuple(0 if i == axis else slice(None) for i in range(3))] = first
                expected = found.astype(dtype)
                net.output(
                    net.node("scan", [one], expected, kind=kind, axis=axis, exclusive=exclusive),
                    expected,
                )
    net.check(rtol=1e-5, atol=1e-5)


def test_orders_are_stable_and_nan_is_the_largest():
    net = Net()
    data = RANDOM.integers(-2, 3, (3, 6)).astype("f4")
    data[0, 2], data[0, 4], data[2] = np.nan, np.inf, np.nan
    whole = integers("int8", 3, 6, least=-2, most=2)
    for given, axis, descending in itertools.product(
        (data, whole, data.astype("f2")), (0, 1), (False, True)
    ):
        one = net.input(given)
        key = np.where(np.isnan(given.astype("f4")), np.inf, given.astype("f4"))
        ties = np.isnan(given.astype("f4"))
        if descending:
            key, ties = -key, ~ties
        index = np.broadcast_to(
            np.arange(given.shape[axis]).reshape(-1, *[1] * (1 - axis)), given.shape
        )
        order = np.lexsort((index, ties, key), axis)
        for count, dtype in ((given.shape[axis], "int64"), (2, "int32"), (1, "int64")):
            expected = np.take(order, range(count), axis).astype(dtype)
            net.output(
                net.node("order", [one], expected, axis=axis, descending=descending), expected
            )
    net.check()


# ---- Moves --------------------------------------------------------------------------------------


def copied(data, out_shape, permutation, offsets, steps, out_offsets, out_steps, fill):
    out = np.full(out_shape, fill, data.dtype)
    taken = data[
        tuple(slice(begin, None, step) for begin, step in zip(offsets, steps, strict=True))
    ].transpose(permutation)
    places = [
        range(begin, size, step)
        for begin, size, step in zip(out_offsets, out_shape, out_steps, strict=True)
    ]
    counts = [min(len(p), size) for p, size in zip(places, taken.shape, strict=True)]
    out[np.ix_(*(p[:count] for p, count in zip(places, counts, strict=True)))] = taken[
        tuple(slice(count) for count in counts)
    ]
    return out


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "int64"])
def test_copies_of_boxes(dtype):
    net = Net()
    data = (reals(4, 5, 3) * 50).astype(dtype)
    one = net.input(data)
    for out, permutation, offsets, steps, out_offsets, out_steps in [
        ((3, 4, 5), (2, 0, 1), (0, 0, 0), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
        ((2, 3, 3), (0, 1, 2), (1, 0, 0), (2, 2, 1), (0, 0, 0), (1, 1, 1)),
        ((4, 5, 3), (0, 1, 2), (3, 0, 2), (-1, 1, -1), (0, 0, 0), (1, 1, 1)),
        ((6, 8, 3), (0, 1, 2), (0, 0, 0), (1, 1, 1), (1, 2, 0), (1, 1, 1)),
        ((7, 9, 6), (0, 1, 2), (0, 0, 0), (1, 1, 1), (0, 0, 1), (2, 2, 2)),
        ((5, 9, 3), (1, 0, 2), (1, 3, 0), (1, -1, 1), (0, 1, 0), (1, 2, 1)),
    ]:
        parts = (permutation, offsets, steps, out_offsets, out_steps)
        fill = 1 if dtype == "bool" else 3
        expected = copied(data, out, *parts, fill)
        names = ("permutation", "data_offset", "data_step", "out_offset", "out_step")
        attributes = {name: list(part) for name, part in zip(names, parts, strict=True)}
        node = net.node("copy", [one], expected, **attributes, fill=True, fill_value=fill)
        net.output(node, expected)
    net.check()


def test_a_copy_into_a_part_keeps_what_is_around_it():
    net = Net()
    data, part = reals(4, 5), reals(2, 3)
    names = ("permutation", "data_offset", "data_step", "out_offset", "out_step")
    whole = dict(zip(names, ([0, 1], [0, 0], [1, 1], [0, 0], [1, 1]), strict=True))
    inner = {**whole, "out_offset": [1, 1]}
    expected = data.copy()
    expected[1:3, 1:4] = part
    one, two = net.input(data), net.input(part)
    nothing = {"fill": False, "fill_value": 0}
    first = net.node("copy", [one], data, **whole, **nothing)
    net.output(net.node("copy", [two, first], data, **inner, **nothing), expected)
    # Both halves of a result, of which the first one leaves the other to the second one.
    half = net.input(data[:2])
    second = {**whole, "out_offset": [2, 0]}
    first = net.node("copy", [half], data, **whole, **nothing)
    expected = np.concatenate([data[:2], data[:2]])
    net.output(net.node("copy", [half, first], data, **second, **nothing), expected)
    net.check()


def test_steps_read_any_types_and_broadcast():
    net = Net()
    whole, half = integers("int8", 3, 1), reals(4, dtype="float16")
    one, two = net.input(whole), net.input(half)
    product = whole.astype("f4") * half.astype("f4")
    net.output(net.step("multiply", [one, two], product), product)
    flags = np.less(whole.astype("f4"), 2)
    net.output(net.step("less", [one, net.constant(np.array([2], "f4"))], flags), flags)
    for given, name in ((whole, one), (half.reshape(1, 4), net.input(half.reshape(1, 4)))):
        wide = np.broadcast_to(given, (3, 4))
        net.output(net.step("cast", [name], wide), wide)
    deep = net.input(half.reshape(1, 1, 4))
    net.output(net.step("negate", [deep], half), -half)
    mean = whole.mean(dtype="f8").astype("f4").reshape(())
    net.output(net.node("reduction", [one], mean, kind="mean", axes=[0, 1]), mean)
    total = whole.sum(dtype="i8").astype("f4").reshape(())
    net.output(net.node("reduction", [one], total, kind="sum", axes=[0, 1]), total)
    net.check()


def test_concat_gather_and_lookup():
    net = Net()
    data, other = reals(2, 3, 4), reals(2, 2, 4)
    one, two = net.input(data), net.input(other)
    expected = np.concatenate([data, other, data], 1)
    net.output(net.node("concat", [one, two, one], expected, axis=1), expected)
    # An index outside reads the nearest element.
    indices = np.array([[2, 0], [9, -5]], "int32")
    expected = np.take(data, np.clip(indices, 0, 2), 1)
    for places in (net.input(indices), net.constant(indices.astype("int64"))):
        net.output(net.node("gather", [one, places], expected, axis=1, elementwise=False), expected)
    each = RANDOM.integers(-1, 5, (2, 3, 4)).astype("int64")
    expected = np.take_along_axis(data, np.clip(each, 0, 3), 2)
    node = net.node("gather", [one, net.input(each)], expected, axis=2, elementwise=True)
    net.output(node, expected)
    for dtype in ("int8", "uint8"):
        table, given = integers("int8", 256), integers(dtype, 3, 7)
        expected = table[given.astype("i4") - np.iinfo(dtype).min]
        net.output(net.node("lookup", [net.input(given), net.constant(table)], expected), expected)
    net.check()


# ---- Plans --------------------------------------------------------------------------------------


def network():
    """A convolution of integers whose epilogue ends in int8, then a reshape and a relu."""
    net = Net()
    data, weight = integers("int8", 1, 4, 4, 3), integers("int8", 2, 3, 3, 3)
    window = windowed((1, 1), (1, 1), (1, 1), (1, 1))
    sums = convolved(data.astype("i8") - 3, weight.astype("i8"), 1, **window)
    bias = integers("int32", 2, least=-99, most=99)
    multipliers = np.array([[[[1 << 30, 3 << 29]]]], "int64")
    shifts = np.array([[[[38, 39]]]], "int64")
    after = np.array(
        [
            rescaled(int(a), int(multipliers[..., c].item()), int(shifts[..., c].item()), 0)
            for row in (sums + bias).reshape(-1, 2)
            for c, a in enumerate(row)
        ]
    ).reshape(sums.shape)
    limited = np.clip(after - 5, -128, 127)
    one = net.input(data)
    node = net.node(
        "convolution",
        [one, net.constant(weight), net.constant(bias)],
        sums.astype("i4"),
        **window,
        groups=1,
        data_zero_point=3,
        weight_zero_point=0,
        label="conv",
    )
    node = net.step(
        "rescale", [node, net.constant(multipliers), net.constant(shifts)], after, label="quantize"
    )
    for op, number in (("add", -5), ("maximum", -128), ("minimum", 127)):
        like = limited if op != "minimum" else limited.astype("int8")
        node = net.step(op, [node, net.constant(np.array([number]))], like, label="quantize")
    flat = limited.astype("int8").reshape(1, 32)
    shaped = net.node("reshape", [node], flat, label="flatten")
    net.output(net.step("relu", [shaped], flat, label="relu"), np.maximum(flat, 0))
    return net, one, shaped, flat


def test_a_product_and_its_epilogue_are_one_kernel_with_all_labels():
    net, *_ = network()
    plan = net.check()
    assert [kernel.labels for kernel in plan.kernels] == [("conv", "quantize"), ("relu",)]
    # Nothing but what the kernels need: 64 bits are nowhere in memory.
    assert {tensor.dtype for tensor in plan.tensors} == {"int8", "int32"}
    for kernel in plan.kernels:
        parameters = [plan.tensors[number] for number in kernel.tensors]
        shapes = [tuple(int(size) for size in item.shape) for item in kernel.function.params]
        assert shapes == [tensor.shape for tensor in parameters]
        assert parameters[-1].source in ("output", "workspace")


def test_each_pass_can_be_left_out():
    counts = {}
    for name in PASSES:
        net, *_ = network()
        counts[name] = len(net.check([name]).kernels)
    assert counts["FuseTIR"] == counts["FuseOps"] > counts["DeadCodeElimination"] == 2
    # Without knowing what functions do nothing is fused.
    assert counts["AnnotateTIROpPattern"] > 2


def test_a_norm_is_one_kernel_with_what_follows_it():
    net = Net()
    data, scale, rows = reals(6, 8), reals(8), reals(6, 1)
    one, label = net.input(data), {"label": "norm"}
    mean = net.node("reduction", [one], rows, kind="mean", axes=[1], **label)
    centred = net.step("subtract", [one, mean], data, **label)
    square = net.step("multiply", [centred, centred], data, **label)
    variance = net.node("reduction", [square], rows, kind="mean", axes=[1], **label)
    root = net.step("rsqrt", [variance], rows, **label)
    normal = net.step("multiply", [centred, root], data, **label)
    scaled = net.step("multiply", [normal, net.constant(scale)], data, **label)
    last = net.step("relu", [scaled], data, label="relu")
    wide = data.astype("f8")
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True) * scale
    net.output(last, np.maximum(expected, 0).astype("f4"))
    assert [kernel.labels for kernel in net.check(atol=1e-5).kernels] == [("norm", "relu")]
    kernels = net.check(["FuseRows"], atol=1e-5).kernels
    assert len(kernels) > 2
    assert {kernel.labels for kernel in kernels} == {("norm",), ("norm", "relu")}
    # Two results of the same op: what others read stays in memory.
    net.output(centred, (wide - wide.mean(1, keepdims=True)).astype("f4"))
    assert len(net.check(atol=1e-5).kernels) > 1


def test_reshapes_move_nothing_and_each_output_has_memory_of_its_own():
    net, one, shaped, flat = network()
    # A reshape of a result, twice, an input, and a constant.
    net.output(shaped, flat)
    net.output(shaped, flat.reshape(4, 8))
    net.output(one, net.arrays[0].reshape(-1))
    numbers = reals(3)
    net.output(net.constant(numbers), numbers)
    plan = net.check()
    assert len(plan.kernels) == 2 + 3
    outputs = [t for t in plan.tensors if t.source == "output" and t.alias_of is None]
    assert sorted(tensor.index for tensor in outputs) == [0, 1, 2, 3, 4]
    for tensor in plan.tensors:
        if tensor.alias_of is not None:
            base = plan.tensors[tensor.alias_of]
            assert base.alias_of is None
            assert (base.source, base.index) == (tensor.source, tensor.index)
            assert math.prod(base.shape) == math.prod(tensor.shape)


def test_equal_nodes_share_their_loops():
    net = Net()
    data = reals(3, 4)
    one = net.input(data)
    for label in ("first", "second"):
        node = net.step("exp", [net.step("negate", [one], data, label=label)], data, label=label)
        one = net.node(
            "reduction", [node], np.empty((3, 4), "f4"), kind="sum", axes=[], label=label
        )
    expected = np.exp(-np.exp(-data.astype("f8"))).astype("f4")
    net.output(one, expected)
    plan = net.check(rtol=1e-5)
    assert [kernel.labels for kernel in plan.kernels][-1] == ("first", "second")
    assert len({kernel.function for kernel in plan.kernels}) <= len(plan.kernels)


def test_what_has_no_loops_is_declined_by_its_label():
    net = Net()
    data = reals(3)
    net.output(net.node("resize", [net.input(data)], data, label="resize2d@up"), data)
    with pytest.raises(Declined, match=r"^resize2d@up: the instruction set has no resize as one"):
        plan_of(net.region())
    region = Region({**net.data, "inputs": [], "outputs": []})
    assert reason(region.nodes[0], region) == (
        "resize2d@up: the instruction set has no resize as one operation"
    )


def test_a_question_about_a_node_needs_no_elements():
    net, *_ = network()
    for node in net.data["nodes"]:
        region = Region({**net.data, "nodes": [node], "inputs": [], "outputs": []})
        assert reason(region.nodes[0], region) is None


def test_each_kind_of_node_has_a_definition():
    kinds = {
        *("matmul", "convolution", "pool", "reduction", "copy", "gather", "scan", "order"),
        *("reshape", "lookup", "quantize", "dequantize", "concat", "softmax"),
        "transposed_convolution",
        "rescale",
    }
    assert set(DEFINITIONS) == kinds
