# SPDX-License-Identifier: Apache-2.0
"""Nodes that only move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te

from ...sdk.npu_region.region import REALS, Node
from .elements import Expr, all_of, is_multiple, number, quotient
from .graph import Array, Graph, Operand, limits_of


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


def _of_part(i: Expr, ends: Sequence[int], value_of: Callable[[int], Expr]) -> Expr:
    """Return what the part has that an index is in; parts have numbers, and their ends."""
    found = value_of(len(ends) - 1)
    for part in reversed(range(len(ends) - 1)):
        found = te.if_then_else(i < ends[part], value_of(part), found)
    return found


def concat_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add tensors one after the other."""
    axis, out = int(node.attributes["axis"]), graph.region.value(node.output)
    dtypes = {operand.dtype for operand in operands}
    ends = np.cumsum([operand.shape[axis] for operand in operands]).tolist()

    def define(*tensors: te.Tensor) -> te.Tensor:
        def element(*indices: Expr) -> Expr:
            i = indices[axis]

            def part(index: int) -> Expr:
                tensor = tensors[index]
                begin = ends[index] - int(tensor.shape[axis])
                at = i - begin if begin else i
                value = tensor(*indices[:axis], at, *indices[axis + 1 :])
                return value if len(dtypes) == 1 else value.astype(out.dtype)

            return _of_part(i, ends, part)

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
    limits = None if data.is_real else data.limits
    if graph.region.has_elements and places.array is not None and not elementwise:
        runs = _runs(np.clip(places.array.reshape(-1).astype(np.int64), 0, most))
        if 0 < len(runs) <= _MOST_RUNS:
            return graph.reshaped(_picked(graph, data, axis, runs, limits), out.shape)
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

    return graph.add("gather", define, operands, limits)


_MOST_RUNS = 8
"""Constant places that are so many runs are moves; more are read as a table."""


def _runs(places: Array) -> list[tuple[int, int, int]]:
    """Cut places into runs: the first place, the step, and how many there are of each."""
    runs: list[tuple[int, int, int]] = []
    for place in places.tolist():
        first, step, count = runs[-1] if runs else (0, 0, 0)
        if count == 1 or (count > 1 and place == first + step * count):
            runs[-1] = (first, place - first if count == 1 else step, count + 1)
        else:
            runs.append((place, 0, 1))
    return runs


def _picked(
    graph: Graph,
    data: Operand,
    axis: int,
    runs: Sequence[tuple[int, int, int]],
    limits: tuple[int, int] | None,
) -> Operand:
    """Add a gather at places that are known: a copy of each run behind the one before."""
    ends = np.cumsum([count for *_, count in runs]).tolist()
    shape = (*data.shape[:axis], ends[-1], *data.shape[axis + 1 :])

    def define(tensor: te.Tensor) -> te.Tensor:
        def element(*at: Expr) -> Expr:
            i = at[axis]

            def run(index: int) -> Expr:
                first, step, count = runs[index]
                place = (i - (ends[index] - count)) * step + first if step else first
                return tensor(*at[:axis], place, *at[axis + 1 :])

            return _of_part(i, ends, run)

        return te.compute(shape, element, name="gather")

    return graph.add("gather", define, [data], limits)


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
