# SPDX-License-Identifier: Apache-2.0
"""Pools of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import relax

from ...shared.aliases import Array
from .call import Call, Rule, sizes_of
from .products import LAYOUTS, each

_MAX = (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d)
_MEAN = (relax.op.nn.avg_pool1d, relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d)


def _dimensions(op: Call) -> int:
    """Return how many axes are pooled: the digit in the name."""
    return next(int(letter) for letter in op.name if letter.isdigit())


def _batched(pool: Callable[[Call, relax.Expr], list[relax.Expr]], op: Call) -> relax.Expr:
    """Pool data that may lack a batch; return the values, and the index if something reads it."""
    x = op.value("input" if "input" in op.arguments else "self")
    has_batch = x.ty.ndim == _dimensions(op) + 2
    results = pool(op, x if has_batch else op.emit(relax.op.expand_dims(x, axis=0)))
    if not has_batch:
        results = [relax.op.squeeze(result, axis=[0]) for result in results]
    return relax.Tuple(results) if len(results) > 1 else results[0]


class _Window:
    """How the window of a pool moves, each as a list by axis."""

    def __init__(self, op: Call) -> None:
        axes = _dimensions(op)
        self.size = each(op["kernel_size"], axes)
        self.padding = each(op["padding"], axes)
        self.stride = each(op["stride"], axes) if op["stride"] else self.size
        self.dilation = each(op["dilation"] or 1, axes)
        self.counts = op.result.shape[-axes:]
        """How many windows there are."""

    def starts(self, axis: int) -> Array:
        """Return where each window begins along an axis."""
        return np.arange(int(self.counts[axis])) * self.stride[axis] - self.padding[axis]


def _mean_pool(op: Call, x: relax.Expr) -> list[relax.Expr]:
    axes, window = _dimensions(op), _Window(op)
    divisor = op["divisor_override"]
    includes = bool(op["count_include_pad"]) or divisor is not None
    beyond = [0] * axes
    if op["ceil_mode"]:
        # What the last window reads beyond the padding never counts, whereas Relax counts it.
        sizes = op.fixed_sizes(x, range(2, axes + 2))
        parts = zip(window.counts, window.stride, window.size, sizes, window.padding, strict=True)
        beyond = [
            max(0, (int(count) - 1) * step + width - size - 2 * pad)
            for count, step, width, size, pad in parts
        ]
    after = [pad + more for pad, more in zip(window.padding, beyond, strict=True)]
    result = _MEAN[axes - 1](
        x,
        pool_size=window.size,
        strides=window.stride,
        padding=[*window.padding, *after],
        ceil_mode=False,
        count_include_pad=includes,
        layout=LAYOUTS[axes - 1],
    )
    counts: Array | None = None if divisor is None else np.array(divisor)
    if any(beyond) and includes:
        # The sum of each window is divided by a number of its own.
        own = np.ones(())
        for axis, size in enumerate(sizes):
            starts = window.starts(axis)
            ends = np.minimum(starts + window.size[axis], size + window.padding[axis])
            own = np.multiply.outer(own, ends - starts)
        counts = own if counts is None else np.full_like(own, divisor)
    if counts is None:
        return [result]
    factors = relax.const(math.prod(window.size) / counts, op.result_type)
    return [relax.op.multiply(result, factors)]


def _max_pool(op: Call, x: relax.Expr) -> list[relax.Expr]:
    axes, window = _dimensions(op), _Window(op)
    if str(x.ty.dtype) == "bool":
        op.refuse("elements of type bool are not supported; supported are numbers")
    values = _MAX[axes - 1](
        x,
        pool_size=window.size,
        strides=window.stride,
        padding=window.padding,
        dilation=window.dilation,
        ceil_mode=bool(op["ceil_mode"]),
        layout=LAYOUTS[axes - 1],
    )
    if not _reads_index(op):
        return [values]
    values, places = op.emit(values), []
    for axis, size in enumerate(op.fixed_sizes(x, range(2, axes + 2))):
        offsets = np.arange(window.size[axis]) * window.dilation[axis]
        places.append(_inside(window.starts(axis)[:, None] + offsets, size))
    return [values, _index_of_largest(op, x, places)]


def _inside(window: Array, size: int) -> Array:
    """Return places of a window, where the first or last inside stands for those outside."""
    is_inside = (window >= 0) & (window < size)
    first = np.where(is_inside, window, size).min(axis=1, keepdims=True)
    last = np.where(is_inside, window, -1).max(axis=1, keepdims=True)
    places: Array = np.clip(window, first, last)
    return places


def _reads_index(op: Call) -> bool:
    """Whether the program reads the second result."""
    return any(user.args[1:] == (1,) for user in op.node.users)


def _adaptive_max_pool(op: Call, x: relax.Expr) -> list[relax.Expr]:
    axes = _dimensions(op)
    sizes = op.fixed_sizes(x, range(2, axes + 2))
    counts = [int(count) for count in op.result.shape[-axes:]]
    places = [_adaptive(size, count) for size, count in zip(sizes, counts, strict=True)]
    if all(size % count == 0 for size, count in zip(sizes, counts, strict=True)):
        kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
        make, layout = _MAX[axes - 1], LAYOUTS[axes - 1]
        values = make(x, pool_size=kernel, strides=kernel, layout=layout)
    else:
        values = relax.op.max(_windows(op, x, places), -1)
    values = op.emit(values)
    return [values, _index_of_largest(op, x, places)] if _reads_index(op) else [values]


def _adaptive(size: int, count: int) -> Array:
    """Return the places that each of some windows reads along an axis."""
    starts = [number * size // count for number in range(count)]
    ends = [-(-(number + 1) * size // count) for number in range(count)]
    widest = max(end - start for start, end in zip(starts, ends, strict=True))
    window = np.array(starts)[:, None] + np.arange(widest)
    places: Array = np.minimum(window, np.array(ends)[:, None] - 1)
    return places


def _windows(op: Call, x: relax.Expr, places: Sequence[Array]) -> relax.Expr:
    """Return what windows read: (n, c, counts of windows, elements of a window)."""
    axes = len(places)
    for axis, window in enumerate(places):
        index = relax.const(window.reshape(-1).astype("int64"), "int64")
        x = op.emit(relax.op.take(x, index, axis=axis + 2))
    shape = [size for window in places for size in window.shape]
    x = relax.op.reshape(x, (*sizes_of(x)[:2], *shape))
    order = [0, 1, *range(2, 2 * axes + 2, 2), *range(3, 2 * axes + 2, 2)]
    x = op.emit(relax.op.permute_dims(x, order))
    sizes = sizes_of(x)[: axes + 2]
    return relax.op.reshape(x, (*sizes, math.prod(window.shape[1] for window in places)))


def _index_of_largest(op: Call, x: relax.Expr, places: Sequence[Array]) -> relax.Expr:
    """Return the place of the largest element of each window, counted through all axes."""
    axes, chosen = len(places), relax.op.argmax(_windows(op, x, places), -1)
    sizes = op.fixed_sizes(x, range(2, axes + 2))
    widths = [window.shape[1] for window in places]
    # A table of places: by window, and by element of the window.
    table = np.zeros((), "int64")
    for axis, window in enumerate(places):
        table = np.add.outer(table, window.astype("int64") * math.prod(sizes[axis + 1 :]))
    order = [*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)]
    table = table.transpose(order).reshape(-1, math.prod(widths))
    first = np.arange(len(table), dtype="int64") * table.shape[1]
    counts = [len(window) for window in places]
    offsets = relax.const(first.reshape(counts), "int64")
    chosen = relax.op.add(chosen, offsets)
    return relax.op.take(relax.const(table.reshape(-1), "int64"), chosen, axis=0)


RULES: dict[str, Rule] = {
    f"aten.{name.replace('?', str(axes))}": partial(_batched, pool)
    for axes in (1, 2, 3)
    for name, pool in (
        ("avg_pool?d", _mean_pool),
        ("max_pool?d", _max_pool),
        ("max_pool?d_with_indices", _max_pool),
        ("adaptive_max_pool?d", _adaptive_max_pool),
    )
}
