# SPDX-License-Identifier: Apache-2.0
"""Pools of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...shared.aliases import Array
from .call import Call, Rule, sizes_of
from .products import each

_MAX = (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d)
_MEAN = (relax.op.nn.avg_pool1d, relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d)
_LAYOUTS = ("NCW", "NCHW", "NCDHW")


def _with_batch(op: Call, axes: int) -> tuple[relax.Expr, bool]:
    """Return the data with a batch, and whether it had none."""
    x = op.value("input" if "input" in op.arguments else "self")
    if x.ty.ndim == axes + 2:
        return x, False
    return op.emit(relax.op.expand_dims(x, axis=0)), True


def _without_batch(op: Call, x: relax.Expr, is_added: bool) -> relax.Expr:
    return op.emit(relax.op.squeeze(x, axis=[0])) if is_added else x


def _dimensions(op: Call) -> int:
    """Return how many axes are pooled: the digit in the name."""
    return next(int(letter) for letter in op.name if letter.isdigit())


def _mean_pool(op: Call) -> relax.Expr:
    axes = _dimensions(op)
    x, is_added = _with_batch(op, axes)
    kernel, padding = each(op["kernel_size"], axes), each(op["padding"], axes)
    stride = each(op["stride"], axes) if op["stride"] else kernel
    divisor = op["divisor_override"]
    includes = bool(op["count_include_pad"]) or divisor is not None
    ceil = bool(op["ceil_mode"])
    before, after = padding, list(padding)
    if ceil:
        # What the last window reads beyond the padding never counts, whereas Relax counts it.
        result = op.result.shape[-axes:]
        sizes = op.fixed_sizes(x, range(2, axes + 2))
        beyond = [
            max(0, (int(count) - 1) * step + width - size - 2 * pad)
            for count, step, width, size, pad in zip(
                result, stride, kernel, sizes, padding, strict=True
            )
        ]
        after = [pad + more for pad, more in zip(padding, beyond, strict=True)]
        if any(beyond) and includes:
            return _without_batch(
                op, _counted_pool(op, x, kernel, stride, padding, beyond, divisor), is_added
            )
    result = op.emit(
        _MEAN[axes - 1](
            x,
            pool_size=kernel,
            strides=stride,
            padding=[*before, *after],
            ceil_mode=False,
            count_include_pad=includes,
            layout=_LAYOUTS[axes - 1],
        )
    )
    if divisor is not None:
        factor = math.prod(kernel) / divisor
        result = op.emit(relax.op.multiply(result, relax.const(factor, op.result_type)))
    return _without_batch(op, result, is_added)


def _counted_pool(
    op: Call,
    x: relax.Expr,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    beyond: list[int],
    divisor: int | None,
) -> relax.Expr:
    """Divide the sum of each window by a number of its own."""
    axes = len(kernel)
    pool = op.emit(
        _MEAN[axes - 1](
            x,
            pool_size=kernel,
            strides=stride,
            padding=[*padding, *(pad + more for pad, more in zip(padding, beyond, strict=True))],
            ceil_mode=False,
            count_include_pad=True,
            layout=_LAYOUTS[axes - 1],
        )
    )
    sizes = op.fixed_sizes(x, range(2, axes + 2))
    counts = np.ones(())
    for axis in range(axes):
        starts = np.arange(int(op.result.shape[axis - axes])) * stride[axis] - padding[axis]
        ends = np.minimum(starts + kernel[axis], sizes[axis] + padding[axis])
        counts = np.multiply.outer(counts, ends - starts)
    if divisor is not None:
        counts = np.full_like(counts, divisor)
    return op.emit(relax.op.multiply(pool, relax.const(math.prod(kernel) / counts, op.result_type)))


def _max_pool(op: Call) -> relax.Expr:
    axes = _dimensions(op)
    x, is_added = _with_batch(op, axes)
    kernel, padding = each(op["kernel_size"], axes), each(op["padding"], axes)
    stride = each(op["stride"], axes) if op["stride"] else kernel
    dilation = each(op["dilation"], axes)
    ceil = bool(op["ceil_mode"])
    if str(x.ty.dtype) == "bool":
        op.refuse("elements of type bool are not supported; supported are numbers")
    values = op.emit(
        _MAX[axes - 1](
            x,
            pool_size=kernel,
            strides=stride,
            padding=padding,
            dilation=dilation,
            ceil_mode=ceil,
            layout=_LAYOUTS[axes - 1],
        )
    )
    values = _without_batch(op, values, is_added)
    if not _reads_index(op):
        return values
    places = []
    for axis, size in enumerate(op.fixed_sizes(x, range(2, axes + 2))):
        count = int(op.result.shape[axis - axes])
        starts = np.arange(count) * stride[axis] - padding[axis]
        window = starts[:, None] + np.arange(kernel[axis]) * dilation[axis]
        places.append(_inside(window, size))
    index = _index_of_largest(op, x, places)
    return relax.Tuple([values, _without_batch(op, index, is_added)])


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


def _adaptive_max_pool(op: Call) -> relax.Expr:
    axes = _dimensions(op)
    x, is_added = _with_batch(op, axes)
    sizes = op.fixed_sizes(x, range(2, axes + 2))
    counts = [int(count) for count in op.result.shape[-axes:]]
    places = [_adaptive(size, count) for size, count in zip(sizes, counts, strict=True)]
    if all(size % count == 0 for size, count in zip(sizes, counts, strict=True)):
        kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
        make, layout = _MAX[axes - 1], _LAYOUTS[axes - 1]
        values = op.emit(make(x, pool_size=kernel, strides=kernel, layout=layout))
    else:
        values = op.emit(relax.op.max(_windows(op, x, places), -1))
    values = _without_batch(op, values, is_added)
    if not _reads_index(op):
        return values
    index = _index_of_largest(op, x, places)
    return relax.Tuple([values, _without_batch(op, index, is_added)])


def _adaptive(size: int, count: int) -> Array:
    """Return the places that each of some windows reads along an axis."""
    starts = [item * size // count for item in range(count)]
    ends = [-(-(item + 1) * size // count) for item in range(count)]
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
    x = op.emit(relax.op.reshape(x, (*sizes_of(x)[:2], *shape)))
    order = [0, 1, *range(2, 2 * axes + 2, 2), *range(3, 2 * axes + 2, 2)]
    x = op.emit(relax.op.permute_dims(x, order))
    sizes = sizes_of(x)[: axes + 2]
    return op.emit(relax.op.reshape(x, (*sizes, math.prod(item.shape[1] for item in places))))


def _index_of_largest(op: Call, x: relax.Expr, places: Sequence[Array]) -> relax.Expr:
    """Return the place of the largest element of each window, counted through all axes."""
    emit, axes = op.emit, len(places)
    chosen = emit(relax.op.argmax(_windows(op, x, places), -1))
    sizes = op.fixed_sizes(x, range(2, axes + 2))
    widths = [window.shape[1] for window in places]
    # A table of the place by window and element in it.
    table = np.zeros((), "int64")
    for axis, window in enumerate(places):
        table = np.add.outer(table, window.astype("int64") * math.prod(sizes[axis + 1 :]))
    order = [*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)]
    table = table.transpose(order).reshape(-1, math.prod(widths))
    first = np.arange(len(table), dtype="int64") * table.shape[1]
    counts = [len(window) for window in places]
    offsets = relax.const(first.reshape(counts), "int64")
    chosen = emit(relax.op.add(chosen, offsets))
    return emit(relax.op.take(relax.const(table.reshape(-1), "int64"), chosen, axis=0))


RULES: dict[str, Rule] = {
    **{f"aten.avg_pool{axes}d": _mean_pool for axes in (1, 2, 3)},
    **{f"aten.max_pool{axes}d": _max_pool for axes in (1, 2, 3)},
    **{f"aten.max_pool{axes}d_with_indices": _max_pool for axes in (1, 2, 3)},
    **{f"aten.adaptive_max_pool{axes}d": _adaptive_max_pool for axes in (1, 2, 3)},
}
"""What converts an op, by its name without the overload."""
