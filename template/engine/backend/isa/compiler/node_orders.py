# SPDX-License-Identifier: Apache-2.0
"""The order of elements along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import te, tirx

from ...sdk.npu_region.region import REALS, Node
from .elements import Expr, elementwise, greatest, number, real, smallest, stored
from .graph import Graph, Operand, type_for


def order_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add the order of elements, without branches: each counts those that come before it."""
    data, axis = operands[0], int(node.attributes["axis"])
    out, descending = graph.region.value(node.output), bool(node.attributes["descending"])
    size = data.shape[axis]
    limits = (0, size - 1)
    if size > 1 and out.shape[axis] == 1:
        return _extreme(graph, data, axis, descending, out.dtype)
    whole = list(data.shape)
    numbers = _numbers(graph, size)

    def ranks(tensor: te.Tensor, number_of: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")

        def element(*indices: Expr) -> Expr:
            other = [*indices[:axis], k, *indices[axis + 1 :]]
            is_earlier = number_of(k) < number_of(indices[axis])
            counts = _before(tensor(*other), tensor(*indices), is_earlier, descending)
            return te.sum(counts.astype("int32"), axis=[k])

        return te.compute(whole, element, name="rank")

    def places(rank: te.Tensor, number_of: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")

        def element(*indices: Expr) -> Expr:
            other = [*indices[:axis], k, *indices[axis + 1 :]]
            is_it = tirx.EQ(rank(*other), number_of(indices[axis]))
            return te.sum(tirx.Select(is_it, number_of(k), number(0, "int32")), axis=[k])

        return te.compute(out.shape, element, name="order")

    found = graph.add("rank", ranks, [data, numbers], limits)
    found = graph.add("order", places, [found, numbers], limits)
    return (
        found
        if out.dtype == "int32"
        else elementwise(graph, "cast", [found], out.dtype, lambda a: a, limits)
    )


def _numbers(graph: Graph, size: int) -> Operand:
    """Return the numbers of elements, which vectors do not have in the variables of loops."""
    return graph.constant(np.arange(size, dtype="int32"))


def _before(a: Expr, b: Expr, is_earlier: Expr, descending: bool) -> Expr:
    """Whether a comes before b: equal elements keep their order; NaN is more than any number."""
    one, other = (b, a) if descending else (a, b)
    kind = str(a.ty)
    if kind not in REALS:
        one, other = (item.astype("int32") if kind == "bool" else item for item in (one, other))
        return te.any(one < other, te.all(tirx.EQ(one, other), is_earlier))
    one, other = real(one), real(other)
    less = te.any(one < other, te.all(te.isnan(other), tirx.Not(te.isnan(one))))
    equal = te.any(tirx.EQ(one, other), te.all(te.isnan(one), te.isnan(other)))
    return te.any(less, te.all(equal, is_earlier))


def _extreme(graph: Graph, data: Operand, axis: int, descending: bool, dtype: str) -> Operand:
    """Add the place of the first smallest, or largest element."""
    size, limits = data.shape[axis], (0, data.shape[axis] - 1)
    rows = [1 if i == axis else length for i, length in enumerate(data.shape)]
    kind = "float32" if data.is_real else type_for(data.limits)

    def value(element: Expr) -> Expr:
        element = real(element) if data.is_real else stored(element, kind)
        if data.is_real and not descending:
            # NaN is more than any number.
            return tirx.Select(te.isnan(element), number(math.inf, "float32"), element)
        return element

    def ends(tensor: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")
        reduce = greatest if descending else smallest
        return te.compute(
            rows,
            lambda *i: reduce(value(tensor(*i[:axis], k, *i[axis + 1 :])), axis=[k]),
            name="extreme",
        )

    def places(tensor: te.Tensor, end: te.Tensor, number_of: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, size), "k")

        def element(*i: Expr) -> Expr:
            given = tensor(*i[:axis], k, *i[axis + 1 :])
            given = real(given) if data.is_real else stored(given, kind)
            is_it = tirx.EQ(given, end(*i))
            if data.is_real and descending:
                is_it = te.any(is_it, te.isnan(given))
            return smallest(tirx.Select(is_it, number_of(k), number(size, "int32")), axis=[k])

        return te.compute(rows, element, name="place")

    end = graph.add("extreme", ends, [data], data.limits)
    found = graph.add("place", places, [data, end, _numbers(graph, size)], (0, size))
    # Where all are NaN, none is found.
    return elementwise(
        graph,
        "first",
        [found],
        dtype if dtype != "int64" else "int32",
        lambda a: tirx.Select(a < number(size, "int32"), a, number(0, "int32")),
        limits,
    )
