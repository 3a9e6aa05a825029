# SPDX-License-Identifier: Apache-2.0
"""Shapes of PyTorch's tensors: repeats, borders, parts and other orders of sizes that are open."""

from __future__ import annotations

import math
from itertools import accumulate

from tvm import relax

from ..sizes import tiled
from .call import Call, Rule, part_of, sizes_of


def _repeated(op: Call) -> relax.Expr:
    """Repeat each axis; TVM's tile takes numbers only."""
    data = op.value("self")
    counts = op.sizes(op["repeats"] if "repeats" in op.arguments else op["dims"])
    if all(isinstance(count, int) for count in counts):
        return relax.op.tile(data, counts)
    rank = max(len(counts), data.ty.ndim)
    counts = [1] * (rank - len(counts)) + counts
    sizes = [1] * (rank - data.ty.ndim) + sizes_of(data)
    joined = [count * size for count, size in zip(counts, sizes, strict=True)]
    return tiled(data, sizes, counts, joined)


def _padded(op: Call) -> relax.Expr:
    """Add a border of one number; TVM's pad takes numbers only."""
    widths = op.sizes(op["pad"])
    if all(isinstance(width, int) for width in widths):
        return op.by_tvm()
    if not all(map(op.is_natural, widths)):
        op.refuse(
            "its border has an open width that may be negative; supported are fixed widths, and "
            "open ones that are not. If the open sizes are why, export the model with fixed ones"
        )
    data, dtype = op.value("self"), op.result_type
    filled = op.as_type(op["value"] or 0, dtype)
    for number in range(len(widths) // 2):
        axis = data.ty.ndim - 1 - number
        shape = sizes_of(data)
        sides: list[list[relax.Expr]] = []
        for width in widths[2 * number : 2 * number + 2]:
            shape[axis] = width
            is_empty = isinstance(width, int) and width == 0
            sides.append([] if is_empty else [op.emit(relax.op.full(shape, filled, dtype))])
        before, after = sides
        if before or after:
            data = op.emit(relax.op.concat([*before, data, *after], axis=axis))
    return data


def _split(op: Call) -> relax.Expr:
    data = op.value("self")
    lengths = op.sizes(op["split_sizes"])
    if all(isinstance(length, int) for length in lengths):
        return op.by_tvm()
    axis = int(op["dim"]) % data.ty.ndim
    ends = list(accumulate(lengths))
    parts = [
        op.emit(part_of(data, axis, start, end))
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    return relax.Tuple(parts)


def _reshaped(op: Call) -> relax.Expr:
    """Return the elements in another shape; the run compares the counts if they are open."""
    if op["dtype"] is not None:
        value = op.computed()
        if value is None:
            op.refuse(
                "it reads the bytes of a tensor as another type; supported are those of weights "
                "and of what is computed of them"
            )
        return value
    data = op.value("self")
    sizes = op.known_sizes(op.result.shape)
    if sizes is None:
        return op.by_tvm()
    given = sizes_of(data)
    if len(given) == len(sizes) and all(map(op.is_same, given, sizes)):
        return data
    count, count_of_result = math.prod(given), math.prod(sizes)
    if not op.is_same(count, count_of_result):
        data = op.emit(relax.op.reshape(data, (-1,)))
        data = op.checked(data, [count_of_result])
    return relax.op.reshape(data, sizes)


def _squeezed(op: Call) -> relax.Expr:
    """Drop axes of one element; PyTorch keeps those whose size is open."""
    data, sizes = op.value("self"), op["self"].meta["val"].shape
    given = op["dim"] if "dim" in op.arguments else range(len(sizes))
    named = {axis % max(len(sizes), 1) for axis in ([given] if isinstance(given, int) else given)}
    is_one = [isinstance(size, int) and size == 1 for size in sizes]
    axes = [axis for axis in range(len(sizes)) if axis in named and is_one[axis]]
    return relax.op.squeeze(data, axes) if axes else data


def _unshuffled(op: Call) -> relax.Expr:
    """Move blocks of pixels to channels; PyTorch's own sizes of it are `n // (n // 2)`."""
    data, block = op.value("self"), op["downscale_factor"]
    *rest, channels, height, width = sizes_of(data)
    rows, columns = height // block, width // block
    if not op.is_same(rows * block, height) or not op.is_same(columns * block, width):
        data = op.checked(data, [*rest, channels, rows * block, columns * block])
    data = relax.op.reshape(data, [*rest, channels, rows, block, columns, block])
    first = len(rest)
    order = [*range(first), *(first + axis for axis in (0, 2, 4, 1, 3))]
    data = relax.op.permute_dims(data, order)
    return relax.op.reshape(data, [*rest, channels * block * block, rows, columns])


def _counted(op: Call) -> relax.Expr:
    """Count; of an open range that counts down, TVM finds another size."""
    step = op["step"]
    sizes = op.known_sizes(op.result.shape)
    if not isinstance(step, int) or step > 0 or sizes is None or isinstance(sizes[0], int):
        return op.by_tvm()
    dtype = op.result_type
    count = relax.op.arange(0, sizes[0], 1, dtype=dtype)
    steps = op.emit(relax.op.multiply(count, relax.const(step, dtype)))
    return relax.op.add(steps, op.as_type(op["start"], dtype))


RULES: dict[str, Rule] = {
    "aten.arange": _counted,
    **dict.fromkeys(("aten.repeat", "aten.tile"), _repeated),
    "aten.constant_pad_nd": _padded,
    "aten.split_with_sizes": _split,
    "aten.pixel_unshuffle": _unshuffled,
    "aten.squeeze": _squeezed,
    **dict.fromkeys(("aten.reshape", "aten.view", "aten._unsafe_view"), _reshaped),
}
