# SPDX-License-Identifier: Apache-2.0
"""Finds that two values are the same function of one value, spelled differently.

ONNX Runtime and the importers spell activations in several ways: hard_sigmoid as a clip and then a
division, or as a product and then a clip. A function is known by its results at some points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
from tvm import relax

from ...backend.ir.calls import Constant, attributes_of
from ...backend.passes.rewriting import op_name
from ...backend.shared.aliases import Array, Attributes
from .model_values import Graph
from .moves import shape_of

_POINTS: Array = np.linspace(-12, 12, 97)
_MOST = 8
"""How many calls a function may consist of."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "abs": np.abs,
    "add": np.add,
    "divide": np.divide,
    "erf": np.vectorize(math.erf),
    "exp": np.exp,
    "log": np.log,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negative": np.negative,
    "nn.relu": lambda x: np.maximum(x, 0),
    "nn.silu": lambda x: x * _sigmoid(x),
    "power": np.power,
    "sigmoid": _sigmoid,
    "sqrt": np.sqrt,
    "square": np.square,
    "subtract": np.subtract,
    "tanh": np.tanh,
}


def same_function(
    quantized: Graph, expr: relax.Expr, real: Graph, real_expr: relax.Expr
) -> tuple[relax.Expr, relax.Expr] | None:
    """Return the arguments of two values that are the same function of one value, else None."""
    pairs = product(_functions_of(quantized, expr), _functions_of(real, real_expr))
    for (argument, results), (real_argument, real_results) in pairs:
        if np.allclose(results, real_results, rtol=1e-4, atol=1e-5):
            return argument, real_argument
    return None


def _functions_of(graph: Graph, expr: relax.Expr) -> list[tuple[relax.Expr, Array]]:
    """Return each argument of which a value is a function, with the results at the points."""
    steps: list[relax.Var] = []
    front = [graph.origin(expr)[0]]
    functions = []
    for _ in range(_MOST):
        last = max(front, key=lambda var: graph.positions.get(var, -1))
        operands = _operands(graph, last)
        if operands is None:
            break
        steps.append(last)
        front = list(dict.fromkeys([var for var in front if not var.same_as(last)] + operands))
        if len(front) == 1:
            functions.append((front[0], _results(graph, steps, front[0])))
    return functions


def _operands(graph: Graph, expr: relax.Expr) -> list[relax.Expr] | None:
    """Return the operands of an element-wise op, without numbers; None for other ops."""
    call = graph.value(expr)
    name = op_name(call).removeprefix("relax.")
    if name != "clip" and name not in _FUNCTIONS:
        return None
    operands = [graph.origin(operand)[0] for operand in _tensors(call) if _number(operand) is None]
    is_alike = all(shape_of(operand) == shape_of(expr) for operand in operands)
    return operands if is_alike and not any(map(graph.is_constant, operands)) else None


def _tensors(call: relax.Call) -> list[relax.Expr]:
    """Return the tensors among the operands; the limits of a clip are none."""
    return [operand for operand in call.args if isinstance(operand.ty, relax.TensorType)]


def _number(expr: relax.Expr) -> Array | None:
    is_number = isinstance(expr, Constant) and math.prod(shape_of(expr) or ()) == 1
    return expr.value.numpy().reshape(()).astype("float64") if is_number else None


def _results(graph: Graph, steps: list[relax.Var], source: relax.Expr) -> Array:
    results: dict[relax.Expr, Array] = {source: _POINTS}
    for var in reversed(steps):
        call = graph.value(var)
        name = op_name(call).removeprefix("relax.")
        operands = [
            results[graph.origin(operand)[0]] if (number := _number(operand)) is None else number
            for operand in _tensors(call)
        ]
        with np.errstate(all="ignore"):
            if name == "clip":
                limits: Attributes = attributes_of(call, {})
                results[var] = np.clip(operands[0], limits["min"], limits["max"])
            else:
                results[var] = _FUNCTIONS[name](*operands)
    return results[steps[0]]
