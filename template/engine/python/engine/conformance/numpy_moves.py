# SPDX-License-Identifier: Apache-2.0
"""NumPy references of the ops that select, move or sort elements.

`numpy_reference` gathers the references of all ops.
"""

import itertools
from typing import Any

import numpy as np
from tvm import tirx


def pixel_shuffle(data: Any, upscale_factor: Any) -> Any:
    """Move factor * factor channels to the pixels of one."""
    *batch, channels, height, width = data.shape
    factor = upscale_factor
    out = np.empty([*batch, channels // factor**2, height * factor, width * factor], data.dtype)
    for y, x in itertools.product(range(factor), repeat=2):
        out[..., y::factor, x::factor] = data[..., y * factor + x :: factor**2, :, :]
    return out


def squeeze(x: Any, axis: Any) -> Any:
    """Drop dimensions of size 1; as in PyTorch, others that are named stay."""
    axes = range(x.ndim) if axis is None else [item % x.ndim for item in axis]
    return np.squeeze(x, tuple(item for item in axes if x.shape[item] == 1))


def split(x: Any, indices_or_sections: Any, axis: Any) -> Any:
    """Cut at indices, or into sections of which the last may be smaller."""
    cuts = indices_or_sections
    if isinstance(cuts, int):
        size = -(-x.shape[axis] // cuts)
        cuts = range(size, x.shape[axis], size)
    return tuple(np.split(x, list(cuts), axis))


def strided_slice(x: Any, axes: Any, begin: Any, end: Any, strides: Any) -> Any:
    """Slice some axes as Python does."""
    slices = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, begin, end, strides or [1] * len(axes), strict=True):
        slices[axis] = slice(*bounds)
    return x[tuple(slices)]


def take(x: Any, indices: Any, axis: Any, mode: Any) -> Any:
    """Pick slices; an index outside picks the nearest one, but is undefined in mode "fast"."""
    return np.take(x, indices, axis, mode="wrap" if mode == "wrap" else "clip")


def gather_elements(data: Any, indices: Any, axis: Any) -> Any:
    """Pick elements; an index outside picks the nearest one."""
    # In other dimensions, data may exceed the indices: then the first elements count.
    kept = [slice(size) for size in indices.shape]
    kept[axis] = slice(None)
    indices = np.clip(indices, 0, data.shape[axis] - 1)
    return np.take_along_axis(data[tuple(kept)], indices, axis)


def gather_nd(data: Any, indices: Any, batch_dims: Any) -> Any:
    """Pick slices by indices of the dimensions behind those of the batch."""
    batch, count = data.shape[:batch_dims], indices.shape[-1]
    if indices.shape[:batch_dims] != batch:
        raise ValueError("there is no index for each member of the batch")
    rest = data.shape[batch_dims + count :]
    result = np.empty(indices.shape[:-1] + rest, data.dtype)
    for member in np.ndindex(*batch):
        result[member] = data[member][tuple(np.moveaxis(indices[member], -1, 0))]
    return result


def pad(data: Any, pad_width: Any, pad_value: Any, pad_mode: Any) -> Any:
    """Add a border."""
    widths = np.reshape(pad_width, (-1, 2))
    if pad_mode == "constant":
        return np.pad(data, widths, constant_values=np.asarray(pad_value).astype(data.dtype))
    return np.pad(data, widths, {"replicate": "edge", "circular": "wrap"}.get(pad_mode, pad_mode))


def layout_transform(x: Any, index_map: Any, pad_value: Any) -> Any:
    """Move each element to a function of its indices."""
    sizes = tirx.IndexMap.from_func(index_map, index_dtype="int64").map_shape(x.shape)
    out = np.full([int(size) for size in sizes], pad_value or 0, x.dtype)
    for index in np.ndindex(*x.shape):
        out[index_map(*index)] = x[index]
    return out


def one_hot(indices: Any, on_value: Any, off_value: Any, depth: Any, axis: Any) -> Any:
    """Compare each index with all classes, which lie along a new axis."""
    hot = np.asarray(indices)[..., None] == np.arange(depth)
    axis = -1 if axis is None else axis
    return np.moveaxis(np.where(hot, on_value, off_value), -1, axis)


def order(data: Any, axis: Any, descending: Any) -> Any:
    """Sort indices by their elements; equal ones keep their order."""
    if not descending:
        return np.argsort(data, axis, kind="stable")
    last = data.shape[axis] - 1
    return last - np.flip(np.argsort(np.flip(data, axis), axis, kind="stable"), axis)


def topk(data: Any, k: Any, axis: Any, ret_type: Any, largest: Any) -> Any:
    """Pick the first elements in order."""
    indices = np.take(order(data, axis, largest), range(k), axis)
    values = np.take_along_axis(data, indices, axis)
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]
