# SPDX-License-Identifier: Apache-2.0
"""Steps of integers: exact, in int32 where that has all results, else in int64.

The limits of all integers are followed from the inputs on, so that the int64 of a region, which
only means that nothing overflows, costs nothing where sums of int8 are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx

from ...sdk.npu_region.region import Node
from .elements import Expr, elementwise, number, stored
from .graph import MANY, Graph, Limits, Operand, fits, products_of, stored_as, type_for


def _quotient_limits(a: Limits, b: Limits) -> Limits:
    most = max(map(abs, a)) + 1
    return -most, most


def _square_limits(a: Limits) -> Limits:
    least, most = sorted(map(abs, a))
    return (0 if a[0] <= 0 <= a[1] else least * least), most * most


def _size_limits(a: Limits) -> Limits:
    least, most = sorted(map(abs, a))
    return (0 if a[0] <= 0 <= a[1] else least), most


def _with_divisor(function: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    """Return a division whose result is 0 where the divisor is, and that divides by no 0."""

    def divided(a: Expr, b: Expr) -> Expr:
        kind = str(b.ty)
        zero, one, minus = (number(value, kind) for value in (0, 1, -1))
        is_zero = tirx.EQ(b, zero)
        # The least number has no quotient by -1.
        is_minus = tirx.EQ(b, minus)
        safe = tirx.Select(te.any(is_zero, is_minus), one, b)
        result = tirx.Select(is_minus, function(zero - a, one), function(a, safe))
        return tirx.Select(is_zero, zero, result)

    return divided


def _sign(a: Expr) -> Expr:
    zero, one, minus = (number(value, str(a.ty)) for value in (0, 1, -1))
    return tirx.Select(a > zero, one, tirx.Select(a < zero, minus, zero))


def _absolute(a: Expr) -> Expr:
    return te.max(a, number(0, str(a.ty)) - a)


def _relu(a: Expr) -> Expr:
    return te.max(a, number(0, str(a.ty)))


def _max(a: Limits, b: Limits) -> Limits:
    return max(a[0], b[0]), max(a[1], b[1])


def _min(a: Limits, b: Limits) -> Limits:
    return min(a[0], b[0]), min(a[1], b[1])


def _add(a: Limits, b: Limits) -> Limits:
    return a[0] + b[0], a[1] + b[1]


def _subtract(a: Limits, b: Limits) -> Limits:
    return a[0] - b[1], a[1] - b[0]


def _remainder_limits(a: Limits, b: Limits) -> Limits:
    most = max(map(abs, (*a, 1)))
    return -most, most


_STEPS: dict[str, tuple[Callable[..., Expr], Callable[..., Limits]]] = {
    "add": (lambda a, b: a + b, _add),
    "bias": (lambda a, b: a + b, _add),
    "residual": (lambda a, b: a + b, _add),
    "subtract": (lambda a, b: a - b, _subtract),
    "multiply": (lambda a, b: a * b, products_of),
    "scale": (lambda a, b: a * b, products_of),
    "divide": (_with_divisor(te.truncdiv), _quotient_limits),
    "floor_divide": (_with_divisor(te.floordiv), _quotient_limits),
    "remainder": (_with_divisor(te.truncmod), _remainder_limits),
    "maximum": (te.max, _max),
    "minimum": (te.min, _min),
    "absolute": (_absolute, _size_limits),
    "relu": (_relu, lambda a: _max(a, (0, 0))),
    "negate": (lambda a: number(0, str(a.ty)) - a, lambda a: (-a[1], -a[0])),
    "sign": (_sign, lambda a: (-1, 1)),
    "square": (lambda a: a * a, _square_limits),
    "cast": (lambda a: a, lambda a: a),
}
"""Of each step: an element of the result, and the limits of all."""


def integer_step(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a step of integers.

    Parameters
    ----------
    graph
        Where to add it.
    node
        The step.
    operands
        What it reads.

    Returns
    -------
    result
        Its result.

    Raises
    ------
    Declined
        There is no such step of integers.
    """
    limits = [operand.limits for operand in operands]
    if node.op in ("less", "equal"):
        compare: Callable[..., Expr] = tirx.LT if node.op == "less" else tirx.EQ
        return _exact(graph, node, operands, compare, [*limits, (0, 1)], (0, 1))
    if node.op == "select":
        found = min(limits[1][0], limits[2][0]), max(limits[1][1], limits[2][1])
        return _exact(graph, node, operands, _select, [*limits, found], found)
    if node.op == "clip":
        least, most = map(_integer, node.attributes["numbers"][1:3])
        found = _min(_max(limits[0], (least, least)), (most, most))

        def clip(a: Expr) -> Expr:
            kind = str(a.ty)
            return te.min(te.max(a, number(least, kind)), number(most, kind))

        return _exact(graph, node, operands, clip, [*limits, found, (least, most)], found)
    if node.op not in _STEPS:
        node.decline(f"the instruction set has no {node.op} of integers")
    compute, limits_after = _STEPS[node.op]
    found = limits_after(*limits)
    return _exact(graph, node, operands, compute, [*limits, found], found)


def _integer(item: float) -> int:
    """Return the nearest integer of 64 bits."""
    if math.isinf(item):
        return MANY[1] if item > 0 else MANY[0]
    return max(MANY[0], min(round(item), MANY[1]))


def _select(a: Expr, b: Expr, c: Expr) -> Expr:
    return tirx.Select(tirx.NE(a, number(0, str(a.ty))), b, c)


def _exact(
    graph: Graph,
    node: Node,
    operands: Sequence[Operand],
    compute: Callable[..., Expr],
    all_limits: Sequence[Limits],
    limits: Limits,
) -> Operand:
    """Add a step in a type that has all operands and the result."""
    union = min(least for least, _ in all_limits), max(most for _, most in all_limits)
    # What 64 bits do not have wraps around, which TVM promises of unsigned numbers only.
    kind = type_for(union) if fits(union, "int64") else "uint64"
    if kind == "uint64" and node.op not in ("add", "subtract", "multiply", "square"):
        kind = "int64"
    value = graph.region.value(node.output)
    out, found = stored_as(value.dtype, limits)

    def element(*given: Expr) -> Expr:
        result = compute(*(stored(item, kind) for item in given))
        return result.astype("int64") if kind == "uint64" else result

    return elementwise(graph, node.op, operands, out, element, found, value.shape)


# ---- Quantizing ---------------------------------------------------------------------------------


def quantize_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add the conversion of real numbers to integers of a scale."""
    data, scale, zero_point = _with_scales(graph, node, operands)
    out = graph.region.value(node.output).dtype
    if not data.is_real:
        node.decline("the instruction set has no quantize of integers")

    def element(a: Expr, s: Expr, z: Expr) -> Expr:
        return te.nearbyint(a / s) + z.astype("float32")

    return elementwise(graph, "quantize", [data, scale, zero_point], out, element, shape=data.shape)


def dequantize_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add the conversion of integers to the real numbers that they stand for."""
    data, scale, zero_point = _with_scales(graph, node, operands)

    def element(a: Expr, s: Expr, z: Expr) -> Expr:
        return (a.astype("int32") - z.astype("int32")).astype("float32") * s

    return elementwise(
        graph, "dequantize", [data, scale, zero_point], "float32", element, shape=data.shape
    )


def _with_scales(
    graph: Graph, node: Node, operands: Sequence[Operand]
) -> tuple[Operand, Operand, Operand]:
    """Return data, scales and zero points, which broadcast."""
    data = operands[0]
    given = {"scale": "float32", "zero_point": "int32"}
    found = []
    for key, dtype in given.items():
        parameter, axis = node.attributes[key], node.attributes["axis"]
        if isinstance(parameter, str) and parameter in graph.region.values:
            array = graph.read(parameter).array
            if array is None:
                node.decline("scales and zero points are constants")
            shape = [1] * len(data.shape)
            shape[axis] = -1
            array = array.reshape(shape)
        else:
            array = np.array([float(parameter)])
        found.append(graph.constant(array.astype(dtype)))
    return data, found[0], found[1]
