# SPDX-License-Identifier: Apache-2.0
"""NumPy references of the ops that select, move or sort elements.

`numpy_reference` gathers the references of all ops.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from tvm import tirx

from ...backend.api import Array


def pixel_shuffle(data: Array, upscale_factor: int) -> Array:
    """Move factor * factor channels to the pixels of one."""
    *batch, channels, height, width = data.shape
    factor = upscale_factor
    out = np.empty([*batch, channels // factor**2, height * factor, width * factor], data.dtype)
    for y, x in itertools.product(range(factor), repeat=2):
        out[..., y::factor, x::factor] = data[..., y * factor + x :: factor**2, :, :]
    return out


def squeeze(x: Array, axis: Sequence[int] | None) -> Array:
    """Drop dimensions of size 1; as in PyTorch, others that are named stay."""
    axes = range(x.ndim) if axis is None else [item % x.ndim for item in axis]
    return np.squeeze(x, tuple(item for item in axes if x.shape[item] == 1))


def split(x: Array, indices_or_sections: int | Sequence[int], axis: int) -> tuple[Array, ...]:
    """Cut at indices, or into sections of which the last may be smaller."""
    cuts = indices_or_sections
    if isinstance(cuts, int):
        size = -(-x.shape[axis] // cuts)
        cuts = range(size, x.shape[axis], size)
    return tuple(np.split(x, list(cuts), axis))


def strided_slice(
    x: Array,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None,
) -> Array:
    """Slice some axes as Python does."""
    slices = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, begin, end, strides or [1] * len(axes), strict=True):
        slices[axis] = slice(*bounds)
    return x[tuple(slices)]


def take(x: Array, indices: Array, axis: int | None, mode: str) -> Array:
    """Pick slices; an index outside picks the nearest one, but is an error in mode "fast"."""
    size = x.size if axis is None else x.shape[axis]
    if mode == "fast" and not ((indices >= 0) & (indices < size)).all():
        raise IndexError('what an index outside picks is undefined in mode "fast"')
    return np.take(x, indices, axis, mode="wrap" if mode == "wrap" else "clip")


def gather_elements(data: Array, indices: Array, axis: int) -> Array:
    """Pick elements; an index outside picks the nearest one."""
    # In other dimensions, data may exceed the indices: then the first elements count.
    kept = [slice(size) for size in indices.shape]
    kept[axis] = slice(None)
    indices = np.clip(indices, 0, data.shape[axis] - 1)
    return np.take_along_axis(data[tuple(kept)], indices, axis)


def gather_nd(data: Array, indices: Array, batch_dims: int) -> Array:
    """Pick slices by indices of the dimensions after those of the batch."""
    batch, count = data.shape[:batch_dims], indices.shape[-1]
    if indices.shape[:batch_dims] != batch:
        raise ValueError("there is no index for each member of the batch")
    rest = data.shape[batch_dims + count :]
    result = np.empty(indices.shape[:-1] + rest, data.dtype)
    for member in np.ndindex(*batch):
        result[member] = data[member][tuple(np.moveaxis(indices[member], -1, 0))]
    return result


def pad(data: Array, pad_width: Sequence[int], pad_value: float, pad_mode: str) -> Array:
    """Add a border."""
    widths = np.reshape(pad_width, (-1, 2))
    if pad_mode == "constant":
        return np.pad(data, widths, constant_values=np.asarray(pad_value).astype(data.dtype))
    if pad_mode == "replicate":
        return np.pad(data, widths, "edge")
    return np.pad(data, widths, "wrap" if pad_mode == "circular" else "reflect")


class _IndexMap(Protocol):
    """The indices that an element moves to."""

    def __call__(self, *indices: int) -> tuple[int, ...]: ...


def layout_transform(x: Array, index_map: _IndexMap, pad_value: float | None) -> Array:
    """Move each element to a function of its indices."""
    sizes = tirx.IndexMap.from_func(index_map, index_dtype="int64").map_shape(x.shape)
    out = np.full([int(size) for size in sizes], pad_value or 0, x.dtype)
    for index in np.ndindex(*x.shape):
        out[index_map(*index)] = x[index]
    return out


_COMBINED: dict[str, Callable[[Array, Array], Array]] = {
    "update": lambda data, update: update,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def scatter_elements(
    data: Array, indices: Array, updates: Array, axis: int, reduction: str
) -> Array:
    """Replace or combine elements; of several for a place, the last comes last."""
    result: Array = data.copy()
    for place in np.ndindex(*indices.shape):
        target = list(place)
        target[axis] = indices[place]
        combined = _COMBINED[reduction](result[tuple(target)], updates[place])
        result[tuple(target)] = combined
    return result


def scatter_nd(data: Array, indices: Array, updates: Array, reduction: str) -> Array:
    """Replace or combine slices; of several for a place, the last comes last."""
    result: Array = data.copy()
    for place in np.ndindex(*indices.shape[:-1]):
        target = tuple(indices[place])
        result[target] = _COMBINED[reduction](result[target], updates[place])
    return result


def update(data: Array, value: Array, positions: Array, axis: int) -> Array:
    """Replace slices, the last of several for a place; a position outside replaces nothing."""
    result: Array = data.copy()
    value = value.reshape((1,) * (data.ndim - value.ndim) + value.shape)
    slices, values = np.moveaxis(result, axis, 0), np.moveaxis(value, axis, 0)
    if values.shape[1:] != slices.shape[1:]:
        raise ValueError("what replaces a slice has another shape")
    for position, slice_ in zip(positions.reshape(-1), values, strict=True):
        if 0 <= position < len(slices):
            slices[position] = slice_
    return result


def one_hot(
    indices: Array, on_value: float, off_value: float, depth: int, axis: int | None
) -> Array:
    """Compare each index with all classes, which lie along a new axis."""
    hot = np.asarray(indices)[..., None] == np.arange(depth)
    axis = -1 if axis is None else axis
    return np.moveaxis(np.where(hot, on_value, off_value), -1, axis)


def order(data: Array, axis: int, descending: bool) -> Array:
    """Sort indices by their elements; equal ones keep their order."""
    if not descending:
        return np.argsort(data, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(data, axis), axis, kind="stable"), axis)
    indices: Array = data.shape[axis] - 1 - backwards
    return indices


def topk(
    data: Array, k: int, axis: int, ret_type: str, largest: bool
) -> Array | tuple[Array, Array]:
    """Pick the first elements in order."""
    indices = np.take(order(data, axis, largest), range(k), axis)
    values = np.take_along_axis(data, indices, axis)
    if ret_type == "both":
        return values, indices
    return values if ret_type == "values" else indices
