# SPDX-License-Identifier: Apache-2.0
"""Steps of real numbers: what each computes of an element. They are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tvm import te, tirx

from ...sdk.npu_region.region import Node
from .elements import Expr, elementwise, number, real
from .graph import Graph, Operand

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _f32(value: float) -> Expr:
    return number(value, "float32")


def _sign(a: Expr) -> Expr:
    return tirx.Select(a > _f32(0), _f32(1), tirx.Select(a < _f32(0), _f32(-1), _f32(0)))


def _round_away(a: Expr) -> Expr:
    # a + 0.5 would round numbers just below a half up.
    whole = te.trunc(a)
    return whole + tirx.Select(te.abs(a - whole) >= _f32(0.5), _sign(a), _f32(0))


def _gelu(a: Expr) -> Expr:
    return _f32(0.5) * a * (_f32(1) + te.erf(a * _f32(math.sqrt(0.5))))


def _gelu_tanh(a: Expr) -> Expr:
    inner = _f32(math.sqrt(2 / math.pi)) * (a + _f32(0.044715) * (a * a * a))
    return _f32(0.5) * a * (_f32(1) + te.tanh(inner))


def _selu(a: Expr) -> Expr:
    below = _f32(_SELU_ALPHA) * (te.exp(a) - _f32(1))
    return _f32(_SELU_SCALE) * tirx.Select(a > _f32(0), a, below)


def _hard_swish(a: Expr) -> Expr:
    return a * te.min(te.max(a + _f32(3), _f32(0)), _f32(6)) / _f32(6)


REAL_STEPS: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "bias": lambda a, b: a + b,
    "residual": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "scale": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": te.max,
    "minimum": te.min,
    "floor_divide": lambda a, b: te.floor(a / b),
    "remainder": te.fmod,
    "less": lambda a, b: a < b,
    "equal": lambda a, b: tirx.EQ(a, b),
    "select": lambda a, b, c: tirx.Select(tirx.NE(a, _f32(0)), b, c),
    "absolute": te.abs,
    "power": te.power,
    "exp": te.exp,
    "log": te.log,
    "sqrt": te.sqrt,
    "tanh": te.tanh,
    "erf": te.erf,
    "sigmoid": te.sigmoid,
    "sin": te.sin,
    "cos": te.cos,
    "tan": te.tan,
    "atan": te.atan,
    "floor": te.floor,
    "ceil": te.ceil,
    "truncate": te.trunc,
    "round_even": te.nearbyint,
    "round_away": _round_away,
    "relu": lambda a: te.max(a, _f32(0)),
    "prelu": lambda a, b: tirx.Select(a > _f32(0), a, a * b),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda a: a * te.sigmoid(a),
    "selu": _selu,
    "rsqrt": lambda a: _f32(1) / te.sqrt(a),
    "square": lambda a: a * a,
    "negate": lambda a: -a,
    "sign": _sign,
    "cast": lambda a: a,
    "hard_swish": _hard_swish,
}
"""By the names of steps; their operands are float32."""


def _clip(numbers: Sequence[float]) -> Callable[[Expr], Expr]:
    return lambda a: te.min(te.max(a, _f32(numbers[1])), _f32(numbers[2]))


def _leaky_relu(numbers: Sequence[float]) -> Callable[[Expr], Expr]:
    return lambda a: tirx.Select(a > _f32(0), a, a * _f32(numbers[1]))


def _softplus(numbers: Sequence[float]) -> Callable[[Expr], Expr]:
    beta, threshold = _f32(numbers[1]), _f32(numbers[2])
    return lambda a: tirx.Select(a * beta > threshold, a, te.log(_f32(1) + te.exp(a * beta)) / beta)


NUMBER_STEPS: Mapping[str, Callable[[Sequence[float]], Callable[[Expr], Expr]]] = {
    "clip": _clip,
    "leaky_relu": _leaky_relu,
    "softplus": _softplus,
}
"""Steps with numbers of their own."""


def real_step(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a step of which an operand or the result is a real number.

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
        There is no such step of real numbers.
    """
    compute: Callable[..., Expr] | None
    if node.op in NUMBER_STEPS:
        compute = NUMBER_STEPS[node.op](node.attributes["numbers"])
    elif node.op == "equal" and node.inputs[0] == node.inputs[1]:
        # How models ask for NaN. TVM would simplify it to true.
        compute = lambda a, _: tirx.Not(te.isnan(a))  # noqa: E731
    else:
        compute = REAL_STEPS.get(node.op)
    if compute is None:
        node.decline(f"the instruction set has no {node.op} of real numbers")
    dtype, shape = graph.dtype_of(node), graph.region.value(node.output).shape
    if node.op == "cast" and not operands[0].is_real and dtype != "float16":
        # Of integers the nearest float32, as TVM rounds them.
        return elementwise(graph, "cast", operands, dtype, lambda a: a, shape=shape)
    return elementwise(
        graph, node.op, operands, dtype, lambda *given: compute(*map(real, given)), shape=shape
    )


def limited(graph: Graph, node: Node, operand: Operand) -> Operand:
    """Add the limits of a fused activation, if a node has any."""
    if node.least == -math.inf and node.most == math.inf:
        return operand
    dtype, ends = operand.dtype, []
    for limit in (node.least, node.most):
        ends.append(None if math.isinf(limit) else number(limit, "float32"))
    least, most = ends

    def limit_element(a: Expr) -> Expr:
        a = real(a) if operand.is_real else a.astype("float32")
        a = a if least is None else te.max(a, least)
        return a if most is None else te.min(a, most)

    is_relu = node.least == 0 and most is None
    return elementwise(graph, "relu" if is_relu else "clip", [operand], dtype, limit_element)
