# SPDX-License-Identifier: Apache-2.0
"""Nodes that only move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te

from ...sdk.npu_region.region import REALS, Node
from .elements import Expr, all_of, is_multiple, number, quotient
from .graph import Graph, Operand, limits_of


def reshape_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add another shape."""
    return graph.reshaped(operands[0], graph.region.value(node.output).shape)


def _fill(value: float, dtype: str) -> Expr:
    if dtype in REALS:
        return number(value, dtype)
    if dtype == "bool":
        return number(value != 0, dtype)
    least, most = limits_of(dtype)
    whole = 0 if value != value else max(min(value, float(most)), float(least))
    return number(max(min(int(np.rint(whole)), most), least), dtype)


def copy_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a copy of a box, into a result that is filled, or into another tensor."""
    data, given = operands[0], node.attributes
    other = operands[1] if len(operands) > 1 else None
    out = graph.region.value(node.output)
    rank, order = len(out.shape), given["permutation"]
    offsets, steps = given["out_offset"], given["out_step"]
    counts = []
    for d in range(rank):
        begin, step = given["data_offset"][order[d]], given["data_step"][order[d]]
        size = data.shape[order[d]]
        left = -(-(size - begin) // step) if step > 0 else begin // -step + 1
        room = -(-(out.shape[d] - offsets[d]) // steps[d])
        counts.append(max(min(left, room), 0))
    is_whole = all(
        offset == 0 and step == 1 and count == size
        for offset, step, count, size in zip(offsets, steps, counts, out.shape, strict=True)
    )
    # Without a fill, what is outside is written later.
    fill = _fill(float(given["fill_value"]) if given["fill"] else 0, data.dtype)

    def define(tensor: te.Tensor, *others: te.Tensor) -> te.Tensor:
        def outside(*indices: Expr) -> Expr:
            return others[0](*indices).astype(data.dtype) if others else fill

        def element(*indices: Expr) -> Expr:
            places: list[Expr] = [None] * rank
            conditions: list[Expr] = []
            for d, i in enumerate(indices):
                at = i - offsets[d] if offsets[d] else i
                end = offsets[d] + (counts[d] - 1) * steps[d] + 1
                if offsets[d]:
                    conditions.append(i >= offsets[d])
                if end < out.shape[d]:
                    conditions.append(i < end)
                if steps[d] > 1:
                    conditions.append(is_multiple(at, steps[d]))
                    at = quotient(at, steps[d])
                step, begin = given["data_step"][order[d]], given["data_offset"][order[d]]
                at = at if step == 1 else at * step
                places[order[d]] = at + begin if begin else at
            value = tensor(*places)
            if not conditions:
                return value
            return te.if_then_else(all_of(conditions), value, outside(*indices))

        return te.compute(out.shape, element if min(counts, default=1) else outside, name="copy")

    limits = None
    if not data.is_real:
        ends = [] if is_whole else [int(fill.value)] if other is None else [*other.limits]
        limits = min([data.limits[0], *ends]), max([data.limits[1], *ends])
    return graph.add("copy", define, operands, limits)


def concat_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add tensors one after the other."""
    axis, out = int(node.attributes["axis"]), graph.region.value(node.output)
    dtypes = {operand.dtype for operand in operands}
    ends = np.cumsum([operand.shape[axis] for operand in operands]).tolist()

    def define(*tensors: te.Tensor) -> te.Tensor:
        def element(*indices: Expr) -> Expr:
            i = indices[axis]
            found = None
            for tensor, end in reversed([*zip(tensors, ends, strict=True)]):
                begin = end - int(tensor.shape[axis])
                at = i - begin if begin else i
                value = tensor(*indices[:axis], at, *indices[axis + 1 :])
                value = value if len(dtypes) == 1 else value.astype(out.dtype)
                found = value if found is None else te.if_then_else(i < end, value, found)
            return found

        return te.compute(out.shape, element, name="concat")

    limits = None
    if out.dtype not in REALS:
        limits = min(o.limits[0] for o in operands), max(o.limits[1] for o in operands)
    return graph.add("concat", define, operands, limits)


def gather_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a gather."""
    data, places = operands
    axis, out = int(node.attributes["axis"]), graph.region.value(node.output)
    most = data.shape[axis] - 1
    elementwise = bool(node.attributes["elementwise"])
    is_inside = places.limits[0] >= 0 and places.limits[1] <= most

    def define(tensor: te.Tensor, indices: te.Tensor) -> te.Tensor:
        count = len(indices.shape)

        def element(*at: Expr) -> Expr:
            own = at if elementwise else at[axis : axis + count]
            place = indices(*own).astype("int64")
            if not is_inside:
                place = te.max(te.min(place, number(most, "int64")), number(0, "int64"))
            after = at[axis + (1 if elementwise else count) :]
            return tensor(*at[:axis], place, *after)

        return te.compute(out.shape, element, name="gather")

    return graph.add("gather", define, operands, None if data.is_real else data.limits)


def lookup_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a function of integers of 8 bits as a table."""
    data, table = operands
    least = -limits_of(data.dtype)[0]
    flat = graph.reshaped(table, (256,))

    def define(tensor: te.Tensor, elements: te.Tensor) -> te.Tensor:
        def element(*indices: Expr) -> Expr:
            place = tensor(*indices).astype("int64")
            return elements(place + least if least else place)

        return te.compute(data.shape, element, name="lookup")

    result = graph.add("lookup", define, [data, flat], None if flat.is_real else flat.limits)
    return graph.reshaped(result, graph.region.value(node.output).shape)
