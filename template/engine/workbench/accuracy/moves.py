# SPDX-License-Identifier: Apache-2.0
"""Looks through ops that only move elements: importers reshape and slice in different places.

A view is a value with the places of some of its elements, counted over all dimensions. Moving
composes places, so that two models may move the same elements by different ops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...backend.passes.evaluate import Undefined, constant_of, fixed_shape
from ...backend.passes.quantized_form import SPLIT
from ...backend.passes.rewriting import is_call_of, op_name
from ...backend.table.elements import CHOSEN, MOVED
from .model_values import Graph

Places = npt.NDArray[np.int64]

_MOVES = MOVED.difference((*CHOSEN, "relax.nn.batch_flatten"))


@dataclass(frozen=True, eq=False)
class View:
    """Elements of the value `expr`: those at `places` in order, or all if that is None."""

    expr: relax.Expr
    places: Places | None = None

    def at(self, places: Places | None) -> View:
        """Return the elements at these places among its own, or all."""
        if places is None:
            return self
        return View(self.expr, places if self.places is None else self.places[places])


def shape_of(expr: relax.Expr) -> tuple[int, ...] | None:
    """Return the sizes of a tensor, or None if they are unknown."""
    dtype_and_shape = fixed_shape(expr.ty)
    return None if dtype_and_shape is None else dtype_and_shape[1]


def source_of(graph: Graph, value: relax.Expr | None) -> relax.Expr | None:
    """Return the value whose elements a call moves to fixed places; None for other calls."""
    call = _call_of(graph, value)
    if call is None or not all(graph.is_constant(operand) for operand in call.args[1:]):
        return None
    return call.args[0]


def _call_of(graph: Graph, value: relax.Expr | None) -> relax.Call | None:
    if isinstance(value, relax.TupleGetItem):
        split = graph.value(value.tuple_value)
        return split if is_call_of(split, SPLIT) else None
    return value if op_name(value) in _MOVES else None


def unmoved(graph: Graph, view: View) -> View:
    """Return the same elements as part of the computed value from which they were moved."""
    while True:
        value = graph.value(graph.origin(view.expr)[0])
        source = source_of(graph, value)
        places = None if source is None else _places(graph, value, source)
        if source is None or places is None:
            return view
        view = View(source, places).at(view.places)


def _places(graph: Graph, value: relax.Expr, source: relax.Expr) -> Places | None:
    """Return the places of the elements of a moved value in its source."""
    call, shape = _call_of(graph, value), shape_of(source)
    if call is None or shape is None:
        return None
    numbers = relax.const(np.arange(math.prod(shape)).reshape(shape), "int64")
    moved = relax.Call(call.op, [numbers, *call.args[1:]], call.attrs, call.ty_args)
    try:
        indices = constant_of(relax.BlockBuilder().normalize(moved))
    except Undefined:
        return None
    if isinstance(indices, relax.Tuple):
        indices = indices.fields[value.index]
    return None if indices is None else indices.value.numpy().reshape(-1)


def read_by(result: relax.Expr, operand: relax.Expr) -> View:
    """Return the elements of an operand that an element-wise op reads, as broadcast."""
    shape, read = shape_of(result), shape_of(operand)
    if shape is None or read is None or shape == read:
        return View(operand)
    numbers = np.arange(math.prod(read)).reshape(read)
    return View(operand, np.broadcast_to(numbers, shape).reshape(-1))


def aligned(first: View, second: View) -> Places | None:
    """Return the place in the second value of each element of the first; None if unknown.

    Empty if both values have the same elements in the same order.
    """
    shapes = shape_of(first.expr), shape_of(second.expr)
    straight = first.places is None and second.places is None
    if shapes[0] is None or shapes[1] is None:
        return _SAME if straight else None
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    if straight:
        return _SAME if sizes[0] == sizes[1] else None
    sources, targets = (
        np.arange(size) if view.places is None else view.places
        for view, size in zip((first, second), sizes, strict=True)
    )
    if len(sources) != len(targets):
        return None
    if sizes[0] == sizes[1] and np.array_equal(sources, targets):
        return _SAME
    places = np.full(sizes[0], -1)
    places[sources] = targets
    if (places < 0).any():
        return None
    in_order = sizes[0] == sizes[1] and np.array_equal(places, np.arange(sizes[0]))
    return _SAME if in_order else places


_SAME: Places = np.empty(0, "int64")


def moved(graph: Graph, var: relax.Var, places: Places, ty: relax.TensorType) -> relax.Var:
    """Return a value of the float model in the type and order of the quantized model."""
    name = str(var.name)
    if str(var.ty.dtype) != str(ty.dtype):
        var = graph.add(name, relax.op.astype(var, ty.dtype))
    if len(places):
        var = graph.add(name, relax.op.reshape(var, (-1,)))
        var = graph.add(name, relax.op.take(var, relax.const(places), 0))
    if str(var.ty) != str(ty):
        var = graph.add(name, relax.op.reshape(var, ty.shape))
    return var
