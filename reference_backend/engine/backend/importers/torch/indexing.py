# SPDX-License-Identifier: Apache-2.0
"""Indexing, joining and moving of elements in PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax, tirx

from ...ir.updates import emit_update
from .call import ITEM, Call, Rule, inverse, op_name, part_of, permuted, sizes_of
from .item_places import computed_places, number_of_item


def _axis(op: Call, value: relax.Expr) -> int:
    """Return the axis of an op, counted from the front."""
    rank: int = value.ty.ndim
    return int(op["dim"]) % max(rank, 1)


# ---- Several indices ----------------------------------------------------------------------------


def _given(op: Call) -> dict[int, torch.fx.Node]:
    """Return the indices of `index` and `index_put`, which has None for a whole axis."""
    given = {axis: node for axis, node in enumerate(op["indices"]) if node is not None}
    if not given:
        op.refuse("it has no index; supported is one or more")
    return given


class _Indices:
    """Indices of several axes, which may count from the end if it says so."""

    def __init__(
        self,
        op: Call,
        data: relax.Expr,
        by_axis: Mapping[int, torch.fx.Node],
        from_end: bool = True,
    ) -> None:
        self._op = op
        self.data = data
        given = by_axis.items()
        for _, node in given:
            if node.meta["val"].dtype in (torch.bool, torch.uint8):
                op.refuse(
                    "an index of booleans selects as many elements as are true, which only the run "
                    "knows; supported are indices of integers, and torch.where"
                )
        self.axes = [axis for axis, _ in given]
        rank = data.ty.ndim
        self.rest = [axis for axis in range(rank) if axis not in self.axes]
        is_block = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        self.place = self.axes[0] if is_block else 0
        """Where the axes of the indices are in what they select."""
        self.shapes = [node.meta["val"].shape for _, node in given]
        self.rank = max(map(len, self.shapes))
        """How many axes the indices have together."""
        sizes = sizes_of(data)
        self.tensors = [
            self._positive(node, sizes[axis]) if from_end else op.as_type(node, "int64")
            for axis, node in given
        ]

    def _positive(self, given: torch.fx.Node, size: Any) -> relax.Expr:
        """Return an index with what counts from the end counted from the front."""
        op = self._op
        value = op.as_type(given, "int64")
        array = op.known(given)
        if array is not None:
            if isinstance(size, int):
                return relax.const(np.where(array < 0, array + size, array), "int64")
            if (array >= 0).all():
                return value
        if str(given.target).startswith("aten.arange"):
            return value
        zero = relax.const(0, "int64")
        length = relax.const(size, "int64") if isinstance(size, int) else op.scalar(size)
        later = op.emit(relax.op.add(value, length))
        return op.emit(relax.op.where(relax.op.less(value, zero), later, value))

    def order(self) -> list[int]:
        """Return the axes of the data, with those of indices in front."""
        return [*self.axes, *self.rest]

    def front(self) -> list[int]:
        """Return the axes of what is selected, with those of the indices in front."""
        chosen = list(range(self.place, self.place + self.rank))
        kept = (axis for axis in range(self.rank + len(self.rest)) if axis not in chosen)
        return [*chosen, *kept]

    def fixed_shape(self) -> list[int]:
        """Return the sizes of the indices together, which must be known."""
        if not all(isinstance(size, int) for shape in self.shapes for size in shape):
            self._op.refuse(
                "indices whose sizes are open are not supported; supported are fixed ones"
            )
        return list(torch.broadcast_shapes(*self.shapes))


def _index(op: Call) -> relax.Expr:
    indices = _Indices(op, op.value("self"), _given(op))
    if len(indices.tensors) == 1:
        return relax.op.take(indices.data, indices.tensors[0], axis=indices.axes[0])
    data = permuted(op, indices.data, indices.order())
    chosen = op.emit(relax.op.index_tensor(data, indices.tensors))
    return permuted(op, chosen, inverse(indices.front()))


def _index_put(op: Call) -> relax.Expr:
    data, dtype = op.value("self"), op.result_type
    if _is_one_at_mask(op):
        return _masked(op, data, dtype)
    indices = _Indices(op, data, _given(op))
    if dtype == "bool" and op["accumulate"]:
        op.refuse("accumulate=True of booleans is not supported; supported are numbers")
    return _put(op, indices, op.operand("values", dtype), bool(op["accumulate"]))


def _index_copy(op: Call) -> relax.Expr:
    """Read what replaces slices, at places that PyTorch refuses to count from the end."""
    data = op.value("self")
    values = op.operand("source", op.result_type)
    if not data.ty.ndim:
        # The index is 0, and the source has one element.
        return relax.op.reshape(values, ())
    indices = _Indices(op, data, {_axis(op, data): op["index"]}, from_end=False)
    if not indices.rank and values.ty.ndim:
        values = op.emit(relax.op.squeeze(values, axis=indices.axes))
    return _put(op, indices, values, accumulate=False)


def _put(op: Call, indices: _Indices, values: relax.Expr, accumulate: bool) -> relax.Expr:
    data, sizes = indices.data, sizes_of(indices.data)
    shape = indices.fixed_shape()
    has_one = len(indices.axes) == 1 and len(shape) < 2 and not accumulate
    if has_one and shape in ([], [1]):
        op.fixed_sizes(data, indices.axes)
        behind = data.ty.ndim - indices.axes[0] - 1
        if not shape and values.ty.ndim >= behind:
            # Values that are selected by a scalar index lack the axis.
            values = op.emit(relax.op.expand_dims(values, axis=values.ty.ndim - behind))
        return emit_update(op.emit, data, values, indices.tensors[0], indices.axes[0])
    selected = [sizes[axis] for axis in indices.rest]
    selected[indices.place : indices.place] = shape
    values = op.emit(relax.op.broadcast_to(values, selected))
    if has_one and isinstance(sizes[indices.axes[0]], int):
        return emit_update(op.emit, data, values, indices.tensors[0], indices.axes[0])
    values = permuted(op, values, indices.front())
    index = [op.emit(relax.op.broadcast_to(tensor, shape)) for tensor in indices.tensors]
    stacked = op.emit(relax.op.stack(index, axis=len(shape)))
    moved = permuted(op, data, indices.order())
    reduction = "add" if accumulate else "update"
    result = op.emit(relax.op.scatter_nd(moved, stacked, values, reduction))
    return permuted(op, result, inverse(indices.order()))


def _is_one_at_mask(op: Call) -> bool:
    """Whether one number replaces what a tensor of booleans selects."""
    masks = [node.meta["val"] for node in op["indices"] if node is not None]
    values = op["values"].meta["val"].shape
    return (
        len(masks) == 1
        and masks[0].dtype == torch.bool
        and not op["accumulate"]
        and all(isinstance(size, int) and size == 1 for size in values)
    )


def _masked(op: Call, data: relax.Expr, dtype: str) -> relax.Expr:
    axis = next(axis for axis, node in enumerate(op["indices"]) if node is not None)
    mask = op.expression(op["indices"][axis])
    rest = data.ty.ndim - axis - mask.ty.ndim
    if rest:
        mask = op.emit(relax.op.reshape(mask, [*sizes_of(mask), *([1] * rest)]))
    value = op.operand("values", dtype)
    if value.ty.ndim:
        value = op.emit(relax.op.reshape(value, ()))
    return relax.op.where(mask, value, data)


def _index_select(op: Call) -> relax.Expr:
    data, index = op.value("self"), op.value("index")
    if data.ty.ndim == 0:
        return data if index.ty.ndim == 0 else relax.op.reshape(data, (1,))
    if index.ty.ndim == 0:
        index = op.emit(relax.op.reshape(index, (1,)))
    return relax.op.take(data, index, axis=_axis(op, data))


# ---- One index along an axis --------------------------------------------------------------------


def _require_axes(op: Call, *tensors: relax.Expr) -> None:
    if any(tensor.ty.ndim == 0 for tensor in tensors):
        op.refuse("tensors without axes are not supported; supported is one axis or more")


def _gather(op: Call) -> relax.Expr:
    data, index = op.value("self"), op.value("index")
    _require_axes(op, data, index)
    data = _cropped(op, data, index, _axis(op, data))
    return relax.op.gather_elements(data, index, axis=_axis(op, data))


def _cropped(op: Call, value: relax.Expr, index: relax.Expr, but: int | None) -> relax.Expr:
    """Return the part of a tensor that an index reaches: of all axes but one."""
    sizes, counts = sizes_of(value), sizes_of(index)
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if axis != but and str(size) != str(count):
            value = op.emit(part_of(value, axis, 0, count))
    return value


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add"}
_SCATTERED = {**_REDUCTIONS, "multiply": "mul"}


def _scatter(op: Call) -> relax.Expr:
    data, index, dtype = op.value("self"), op.value("index"), op.result_type
    reduction = "update"
    named = op["reduce"]
    if op.name == "scatter_add":
        named = "sum"
    if named is not None:
        if named not in _SCATTERED or op["include_self"] is False or dtype == "bool":
            op.refuse(
                f"reduce={named!r}, include_self={op['include_self']} of {dtype} is not supported; "
                f"supported are {', '.join(_SCATTERED)} of numbers with include_self=True"
            )
        reduction = _SCATTERED[named]
    _require_axes(op, data, index)
    if "src" in op.arguments:
        source = _cropped(op, op.value("src"), index, None)
    else:
        source = op.emit(relax.op.broadcast_to(op.operand("value", dtype), sizes_of(index)))
    axis = _axis(op, data)
    places = _of_slices(op, data, axis) if reduction == "update" else None
    if places is not None:
        return emit_update(op.emit, data, source, places, axis)
    return relax.op.scatter_elements(data, index, source, axis, reduction)


def _of_slices(op: Call, data: relax.Expr, axis: int) -> relax.Expr | None:
    """Return the places of whole slices: an index that is the same along all other axes."""
    index = op["index"]
    sizes = [*sizes_of(data)]
    sizes[axis] = index.meta["val"].shape[axis]
    fixed = all(isinstance(size, int) for size in (*sizes, sizes_of(data)[axis]))
    if op_name(index) != "aten.expand" or not fixed or sizes != [*index.meta["val"].shape]:
        return None
    repeated = index.args[0].meta["val"]
    if repeated.numel() != sizes[axis] or repeated.shape[axis - len(sizes)] != sizes[axis]:
        return None
    return op.emit(relax.op.reshape(op.as_type(index.args[0], "int64"), (-1,)))


def _slice_scatter(op: Call) -> relax.Expr:
    data, source = op.value("self"), op.value("src")
    axis = _axis(op, data)
    bounds = (op["start"], op["end"], op["step"])
    if (bounds[0] or 0) == 0 and bounds[1] in (None, sys.maxsize) and bounds[2] == 1:
        return source
    if not isinstance(sizes_of(data)[axis], int):
        return _between(op, data, source, axis)
    (size,) = op.fixed_sizes(data, [axis])
    places = computed_places(op)
    if places is not None:
        return emit_update(op.emit, data, source, places, axis)
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        op.refuse(
            "bounds that the run computes are supported if the slice has a fixed size and begins "
            "at an item() for which torch._check tells that it is 0 or more, or always less; else "
            "they are numbers"
        )
    start, end, step = slice(*bounds).indices(size)
    if start >= end:
        return data
    return relax.op.slice_scatter(data, source, start, end, step, axis=axis)


def _between(op: Call, data: relax.Expr, source: relax.Expr, axis: int) -> relax.Expr:
    """Put a tensor between parts of another, along an axis whose size is open."""
    size, count, start = sizes_of(data)[axis], sizes_of(source)[axis], op["start"] or 0
    if op["step"] != 1 or not isinstance(start, int):
        op.refuse(
            "a step other than 1, and a start that the run computes, are not supported along an "
            "axis whose size is open; supported are step 1 and a number"
        )
    first = start if start >= 0 else size + start
    parts = [
        op.emit(part_of(data, axis, 0, first)),
        source,
        op.emit(part_of(data, axis, first + count, size)),
    ]
    parts = parts[1:] if start == 0 else parts
    parts = parts[:-1] if op["end"] in (None, sys.maxsize) else parts
    return relax.op.concat(parts, axis=axis)


def _select(op: Call) -> relax.Expr:
    data, index = op.value("self"), op["index"]
    axis = _axis(op, data)
    if not isinstance(index, int):
        return relax.op.take(data, op.as_type(index, "int64"), axis=axis)
    sizes = sizes_of(data)
    size = sizes[axis]
    if isinstance(size, int):
        index %= size
    elif index < 0:
        last = size if index == -1 else index + 1
        part = op.emit(part_of(data, axis, index, last))
        # The part is empty if the axis is too short.
        part = op.checked(part, [*sizes[:axis], 1, *sizes[axis + 1 :]])
        return relax.op.squeeze(part, [axis])
    elif not op.is_natural(size - (index + 1)):
        # TVM would read behind the end of an axis that is too short.
        op.checked(data, [*sizes[:axis], tirx.max(size, index + 1), *sizes[axis + 1 :]])
    return relax.op.take(data, relax.const(index, "int64"), axis=axis)


# ---- Parts and joints ---------------------------------------------------------------------------


def _cat(op: Call) -> relax.Expr:
    # PyTorch skips operands of shape (0,), whatever the shape of the others.
    nodes = [node for node in op["tensors"] if not _is_empty(node.meta["val"].shape)]
    parts = [op.converted(op.expression(node)) for node in nodes or op["tensors"][:1]]
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=op["dim"])


def _is_empty(shape: Sequence[object]) -> bool:
    return len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 0


def _unfold(op: Call) -> relax.Expr:
    """Return windows along an axis, with their elements along a new last axis."""
    data = op.value("self")
    if data.ty.ndim == 0:
        op.refuse("a tensor without axes is not supported; supported is one axis or more")
    axis = int(op["dimension"]) % data.ty.ndim
    size, step = op["size"], op["step"]
    (length,) = op.fixed_sizes(data, [axis])
    count = (length - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    index = relax.const(places.reshape(-1).astype("int64"), "int64")
    taken = op.emit(relax.op.take(data, index, axis=axis))
    sizes = sizes_of(data)
    shape = [*sizes[:axis], count, size, *sizes[axis + 1 :]]
    windows = op.emit(relax.op.reshape(taken, shape))
    order = [place for place in range(len(shape)) if place != axis + 1]
    return permuted(op, windows, [*order, axis + 1])


def _as_strided(op: Call) -> relax.Expr:
    """Take elements at places that are known, of a tensor whose elements are in order."""
    given = op["self"].meta["val"]
    sizes, strides, offset = op["size"], op["stride"], op["storage_offset"] or 0
    numbers = [*sizes, *strides, offset, *given.shape]
    if not all(isinstance(number, int) for number in numbers):
        op.refuse("sizes that are open are not supported; supported are fixed ones")
    if not given.is_contiguous() or given.storage_offset():
        op.refuse("a view whose elements are not in order is not supported; call contiguous()")
    places = np.full((), offset, "int64")
    for size, stride in zip(sizes, strides, strict=True):
        places = np.add.outer(places, np.arange(size) * stride)
    if places.size and places.max() >= given.numel():
        op.refuse("places outside of the tensor are not supported; supported are those in it")
    flat = op.emit(relax.op.reshape(op.value("self"), (-1,)))
    if places.size == given.numel() and np.array_equal(places.reshape(-1), np.arange(places.size)):
        return relax.op.reshape(flat, list(sizes))
    return relax.op.take(flat, relax.const(places, "int64"), axis=0)


def _narrowed(op: Call) -> relax.Expr:
    data = op.value("self")
    axis = _axis(op, data)
    start, length = op["start"], op["length"]
    if not isinstance(start, int) or not isinstance(length, int):
        op.refuse("bounds that the run computes are not supported; supported are numbers")
    if start < 0:
        start += op.fixed_sizes(data, [axis])[0]
    return part_of(data, axis, start, start + length)


def _slice(op: Call) -> relax.Expr:
    """Take a part of an axis."""
    data = op.value("self")
    sizes, axis = sizes_of(data), _axis(op, data)
    start, end, step = op["start"], op["end"], op["step"]
    places = computed_places(op)
    if places is not None:
        return relax.op.take(data, places, axis=axis, mode="clip")
    if all(bound is None or isinstance(bound, int) for bound in (sizes[axis], start, end)):
        first, last, _ = slice(start, end, step).indices(sizes[axis])
        if (first, last, step) == (0, sizes[axis], 1):
            return data
        return part_of(data, axis, first, max(first, last), step)
    if end is None or end == sys.maxsize:
        if (start or 0) == 0 and step == 1:
            return data
        if isinstance(start or 0, int):
            return part_of(data, axis, start or 0, sizes[axis], step)
    return op.by_tvm()


RULES: dict[str, Rule] = {
    "aten.index": _index,
    "aten.index_put": _index_put,
    "aten.index_copy": _index_copy,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    **dict.fromkeys(("aten.scatter", "aten.scatter_add", "aten.scatter_reduce"), _scatter),
    "aten.slice_scatter": _slice_scatter,
    ITEM: number_of_item,
    "aten.select": _select,
    "aten.slice": _slice,
    "aten.narrow": _narrowed,
    "aten.cat": _cat,
    "aten.unfold": _unfold,
    "aten.as_strided": _as_strided,
}
