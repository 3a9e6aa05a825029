# SPDX-License-Identifier: Apache-2.0
"""Pools, reductions, softmax, scans and orders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as builder

from ...sdk.npu_region.region import REALS, Node
from .elements import Expr, elementwise, greatest, number, product, quotient, real, smallest, stored
from .graph import Graph, Limits, Operand, limits_of, stored_as, type_for
from .windows import Layout, padded, place_of, taps_of, windows

# ---- Pools --------------------------------------------------------------------------------------


def pool_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a pool."""
    data, kind = operands[0], node.attributes["kind"]
    out = graph.region.value(node.output)
    layout = Layout(len(out.shape), graph.region.channels_last)
    results = out.shape[layout.spatial]
    if kind == "average_adaptive":
        return _adaptive(graph, node, data, layout)
    window = list(node.attributes["window"])
    strides, dilations, begins, reach = windows(node, results, window)
    is_max = kind == "max"
    if not is_max and not data.is_real:
        node.decline(f"the instruction set has no {kind} pool of integers")
    fill = _pad_of(data) if is_max else number(0, data.dtype)

    def define(tensor: te.Tensor) -> te.Tensor:
        source = padded(tensor, layout, reach, begins, fill)
        taps, loops = taps_of(window)

        def element(*indices: Expr) -> Expr:
            batch, place, channel = layout.split(indices)
            at = place_of(place, taps, strides, dilations)
            value = source(*layout.joined(batch, at, channel))
            value = value if is_max else real(value)
            if not loops:
                return value
            return (greatest if is_max else te.sum)(value, axis=loops)

        return te.compute(out.shape, element, name="max_pool" if is_max else "pool")

    result = graph.add("max_pool" if is_max else "pool", define, [data], data.limits)
    if is_max:
        return result
    counts = [
        _counts(node, i, kind, size, result_size)
        for i, (size, result_size) in enumerate(
            zip(data.shape[layout.spatial], results, strict=True)
        )
    ]
    return _divided(graph, result, _outer(counts, layout), out.dtype)


def _pad_of(data: Operand) -> Expr:
    return number(-math.inf if data.is_real else limits_of(data.dtype)[0], data.dtype)


def _counts(node: Node, i: int, kind: str, size: int, results: int) -> Any:
    """Return how many elements of a dimension count in each window."""
    given = node.attributes
    place = np.arange(results)[:, None] * given["strides"][i] - given["pads_begin"][i]
    place = place + np.arange(given["window"][i])[None, :] * given["dilations"][i]
    low, high = 0, size
    if kind == "average_include_pad":
        low, high = -given["pads_begin"][i], size + given["pads_end"][i]
    return ((place >= low) & (place < high)).sum(1)


def _outer(counts: Sequence[Any], layout: Layout) -> Any:
    """Return products of counts by dimension, which broadcast to a result."""
    found = counts[0]
    for more in counts[1:]:
        found = found[..., None] * more
    found = np.maximum(found, 1).astype("float32")
    if (found == found.flat[0]).all():
        found = found.reshape(-1)[:1]
        return found
    return found[..., None] if layout.axis > 1 else found


def _divided(graph: Graph, sums: Operand, counts: Any, dtype: str) -> Operand:
    if counts.size == 1 and counts.item() == 1:
        if dtype == sums.dtype:
            return sums
        return elementwise(graph, "cast", [sums], dtype, lambda a: a)
    return elementwise(
        graph, "mean", [sums, graph.constant(counts)], dtype, lambda a, b: real(a) / b
    )


def _adaptive(graph: Graph, node: Node, data: Operand, layout: Layout) -> Operand:
    """Add a mean of windows whose sizes may differ."""
    out = graph.region.value(node.output)
    if not data.is_real:
        node.decline("the instruction set has no average_adaptive pool of integers")
    sizes, results = data.shape[layout.spatial], out.shape[layout.spatial]
    begins = [np.arange(r) * s // r for s, r in zip(sizes, results, strict=True)]
    ends = [-(-(np.arange(r) + 1) * s // r) for s, r in zip(sizes, results, strict=True)]
    counts = [end - begin for begin, end in zip(begins, ends, strict=True)]
    window = [int(count.max()) for count in counts]
    is_even = [size % result == 0 for size, result in zip(sizes, results, strict=True)]

    def define(tensor: te.Tensor) -> te.Tensor:
        taps, loops = taps_of(window)

        def element(*indices: Expr) -> Expr:
            batch, place, channel = layout.split(indices)
            at, conditions = [], []
            for i, tap, size, result, even in zip(
                place, taps, sizes, results, is_even, strict=True
            ):
                first = i * (size // result) if even else quotient(i * size, result)
                at.append(first + tap)
                if not even:
                    end = quotient((i + 1) * size + (result - 1), result)
                    conditions.append(first + tap < end)
            value = real(tensor(*layout.joined(batch, at, channel)))
            if conditions:
                value = te.if_then_else(te.all(*conditions), value, number(0, "float32"))
            return te.sum(value, axis=loops) if loops else value

        return te.compute(out.shape, element, name="pool")

    result = graph.add("pool", define, [data])
    return _divided(graph, result, _outer(counts, layout), out.dtype)


# ---- Reductions ---------------------------------------------------------------------------------


def reduction_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a reduction."""
    data, axes = operands[0], list(node.attributes["axes"])
    out, kind = graph.region.value(node.output), node.attributes["kind"]
    kept = [axis for axis in range(len(data.shape)) if axis not in axes]
    has_all = len(out.shape) == len(data.shape)
    count = math.prod(data.shape[axis] for axis in axes)
    limits = _reduced_limits(data, kind, count)
    computed = "float32" if data.is_real else type_for(limits)
    if data.is_real and out.dtype not in ("float32", "float16"):
        node.decline(f"the instruction set has no {kind} of real numbers that is {out.dtype}")
    reduce: Callable[..., Expr] = {
        "sum": te.sum,
        "mean": te.sum,
        "max": greatest,
        "min": smallest,
        "product": product,
    }[kind]

    def define(tensor: te.Tensor) -> te.Tensor:
        loops = {axis: te.reduce_axis((0, data.shape[axis]), f"k{axis}") for axis in axes}

        def element(*indices: Expr) -> Expr:
            own = iter([indices[axis] for axis in kept] if has_all else indices)
            at = [loops[axis] if axis in loops else next(own) for axis in range(len(data.shape))]
            value = tensor(*at)
            value = real(value) if data.is_real else stored(value, computed)
            return reduce(value, axis=[*loops.values()]) if loops else value

        return te.compute(out.shape, element, name="sum" if kind == "mean" else kind)

    name = "sum" if kind == "mean" else kind
    result = graph.add(name, define, [data], None if data.is_real else limits)
    if kind == "mean":
        return _divided(graph, result, np.array([count], "float32"), graph.dtype_of(node))
    if data.is_real:
        dtype = graph.dtype_of(node)
        if dtype == "float32":
            return result
        return elementwise(graph, "cast", [result], dtype, lambda a: a)
    if out.dtype in REALS:
        return elementwise(graph, "cast", [result], out.dtype, lambda a: a)
    dtype, found = stored_as(out.dtype, limits)
    if dtype == result.dtype:
        return result
    return elementwise(graph, "cast", [result], dtype, lambda a: a, found)


def _reduced_limits(data: Operand, kind: str, count: int) -> Limits:
    if data.is_real or kind in ("max", "min"):
        return data.limits
    if kind == "product":
        most = max(map(abs, data.limits))
        reach = most**count if most < 2 or count * math.log2(most) < 64 else 1 << 63
        return -reach, reach
    least, most = data.limits
    return least * count, most * count


# ---- Softmax ------------------------------------------------------------------------------------


def softmax_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a softmax, or its logarithm."""
    data, axis = operands[0], int(node.attributes["axis"])
    out, logarithm = graph.region.value(node.output), node.attributes["logarithm"]
    if not data.is_real:
        node.decline("the instruction set has no softmax of integers")
    rows = [size for i, size in enumerate(data.shape) if i != axis]
    size = data.shape[axis]

    def define(tensor: te.Tensor) -> te.Tensor:
        def at(row: Sequence[Expr], k: Expr) -> list[Expr]:
            return [*row[:axis], k, *row[axis:]]

        def row_of(indices: Sequence[Expr]) -> list[Expr]:
            return [*indices[:axis], *indices[axis + 1 :]]

        k = te.reduce_axis((0, size), "k")
        most = te.compute(
            rows, lambda *row: greatest(real(tensor(*at(row, k))), axis=[k]), name="most"
        )
        shifted = te.compute(
            data.shape, lambda *i: real(tensor(*i)) - most(*row_of(i)), name="shifted"
        )
        power = te.compute(data.shape, lambda *i: te.exp(shifted(*i)), name="power")
        k = te.reduce_axis((0, size), "k")
        total = te.compute(rows, lambda *row: te.sum(power(*at(row, k)), axis=[k]), name="total")
        if logarithm:
            logarithms = te.compute(rows, lambda *row: te.log(total(*row)), name="logarithm")
            return te.compute(
                data.shape,
                lambda *i: stored(shifted(*i) - logarithms(*row_of(i)), out.dtype),
                name="log_softmax",
            )
        return te.compute(
            data.shape,
            lambda *i: stored(power(*i) / total(*row_of(i)), out.dtype),
            name="softmax",
        )

    return graph.add("log_softmax" if logarithm else "softmax", define, [data])


# ---- Scans --------------------------------------------------------------------------------------


def scan_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add running sums or products."""
    data, axis = operands[0], int(node.attributes["axis"])
    out, is_product = graph.region.value(node.output), node.attributes["kind"] == "product"
    exclusive = bool(node.attributes["exclusive"])
    kind = "float32" if data.is_real else "int64"
    size = data.shape[axis]
    shape = [math.prod(data.shape[:axis]), size, math.prod(data.shape[axis + 1 :])]
    flat = graph.reshaped(data, shape)

    def loops(sources: Sequence[Any], results: Sequence[Any]) -> Any:
        source, result = (builder.buffer_proxy(item[0]) for item in (sources, results))
        with IRBuilder() as made:
            one = number(1 if is_product else 0, kind)

            def value(i: Expr, k: Expr, j: Expr) -> Expr:
                element = source[i, k, j]
                return real(element) if data.is_real else element.astype("int64")

            with builder.serial(0, shape[0]) as i:
                with builder.serial(0, shape[2]) as j:
                    result[i, 0, j] = one if exclusive else value(i, tirx.const(0, "int32"), j)
                with builder.serial(0, size - 1) as before, builder.serial(0, shape[2]) as j:
                    more = value(i, before if exclusive else before + 1, j)
                    old = result[i, before, j]
                    result[i, before + 1, j] = old * more if is_product else old + more
            return made.get()

    def define(tensor: te.Tensor) -> te.Tensor:
        return te.extern([shape], [tensor], loops, name="scan", dtype=kind)

    result = graph.reshaped(graph.add("scan", define, [flat]), out.shape)
    if out.dtype == kind:
        return result
    return elementwise(graph, "cast", [result], out.dtype, lambda a: a)
