# SPDX-License-Identifier: Apache-2.0
"""NumPy references of the ops that slide windows over images: convolutions, pools and resizing.

`numpy_reference` gathers the references of all ops.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ...backend.api import Array


def _behind(dimensions: int, index: Iterable[int | slice]) -> tuple[int | slice, ...]:
    """Return an index of the dimensions after the first ones, which are taken whole."""
    return (slice(None),) * dimensions + tuple(index)


def conv(
    data: Array,
    weight: Array,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Cross-correlation of [N, C, ...] with [O, C / groups, ...]."""
    spatial = data.ndim - 2
    kernel = weight.shape[2:]
    begin, end = padding[:spatial], padding[spatial:]
    data = np.pad(data.astype(np.float64), [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    out_shape = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, d, s in zip(data.shape[2:], kernel, dilation, strides, strict=True)
    ]
    batch, channels = data.shape[:2]
    outputs = weight.shape[0]
    out = np.zeros([batch, groups, outputs // groups, *out_shape])
    data = data.reshape(batch, groups, channels // groups, *data.shape[2:])
    weight = weight.reshape(groups, outputs // groups, channels // groups, *kernel)
    for tap in itertools.product(*(range(k) for k in kernel)):
        window = tuple(
            slice(t * d, t * d + (size - 1) * s + 1, s)
            for t, d, s, size in zip(tap, dilation, strides, out_shape, strict=True)
        )
        values, factors = data[_behind(3, window)], weight[_behind(3, tap)]
        out += np.einsum("ngc...,goc->ngo...", values, factors)
    return out.reshape(batch, outputs, *out_shape)


def conv_transpose(
    data: Array,
    weight: Array,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Add each element of [N, I, ...], times the kernels [I, O / groups, ...], to its window."""
    spatial = data.ndim - 2
    kernel = weight.shape[2:]
    begin, end = padding[:spatial], padding[spatial:]
    sizes = data.shape[2:]
    full = [
        (size - 1) * s + (k - 1) * d + 1 + extra
        for size, k, s, d, extra in zip(
            sizes, kernel, strides, dilation, output_padding, strict=True
        )
    ]
    batch, channels = data.shape[:2]
    out = np.zeros([batch, groups, weight.shape[1], *full])
    data = data.reshape(batch, groups, channels // groups, *sizes).astype(np.float64)
    weight = weight.reshape(groups, channels // groups, *weight.shape[1:])
    for tap in itertools.product(*(range(k) for k in kernel)):
        window = tuple(
            slice(t * d, t * d + (size - 1) * s + 1, s)
            for t, d, s, size in zip(tap, dilation, strides, sizes, strict=True)
        )
        values = np.einsum("ngc...,gco->ngo...", data, weight[_behind(3, tap)])
        out[_behind(3, window)] += values
    out = out.reshape(batch, -1, *full)
    inner = (slice(b, size - e) for b, e, size in zip(begin, end, full, strict=True))
    return out[_behind(2, inner)]


def _pool_taps(
    sizes: Sequence[int],
    kind: str,
    pool_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[list[list[int]]]:
    """The positions that each window has in each spatial dimension, those that count."""
    spatial = len(sizes)
    taps: list[list[list[int]]] = []
    for axis in range(spatial):
        size, before, after = sizes[axis], padding[axis], padding[spatial + axis]
        room = size + before + after - (pool_size[axis] - 1) * dilation[axis] - 1
        count = (room + (strides[axis] - 1 if ceil_mode else 0)) // strides[axis] + 1
        # Drop windows that would start in the padding after the data.
        if ceil_mode and (count - 1) * strides[axis] >= size + before:
            count -= 1
        # Elements that ceil mode adds beyond the padding never count.
        limit = size + after if kind == "avg_padded" else size
        first = -before if kind == "avg_padded" else 0
        taps.append(
            [
                [
                    at
                    for k in range(pool_size[axis])
                    for at in [i * strides[axis] - before + k * dilation[axis]]
                    if first <= at < limit
                ]
                for i in range(count)
            ]
        )
    return taps


def pool(
    data: Array,
    kind: str,
    pool_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Array:
    """Pooling of [N, C, ...]; `kind` is max, avg (without padding) or avg_padded."""
    taps = _pool_taps(data.shape[2:], kind, pool_size, strides, padding, dilation, ceil_mode)
    out = np.zeros([*data.shape[:2], *map(len, taps)])
    for position in itertools.product(*(range(len(windows)) for windows in taps)):
        window = data.astype(np.float64)
        count = 1
        for axis, i in enumerate(position):
            inside = [at for at in taps[axis][i] if 0 <= at < data.shape[2 + axis]]
            window = np.take(window, inside, 2 + axis)
            count *= len(taps[axis][i])
        axes = tuple(range(2, data.ndim))
        values = window.max(axes) if kind == "max" else window.sum(axes) / count
        out[_behind(2, position)] = values
    return out


def pool_counts(
    data: Array,
    pool_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    **_: object,
) -> Array:
    """How many elements each mean of a pool averages."""
    kind = "avg_padded" if count_include_pad else "avg"
    taps = _pool_taps(data.shape[2:], kind, pool_size, strides, padding, dilation, ceil_mode)
    return _products([[len(window) for window in windows] for windows in taps])


def _shares(sizes: Sequence[int], output_size: Sequence[int] | None) -> list[list[slice]]:
    """The windows that divide each dimension evenly."""
    pairs = zip(sizes, sizes if output_size is None else output_size, strict=True)
    return [
        [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        for size, count in pairs
    ]


def adaptive_counts(data: Array, output_size: Sequence[int] | None, **_: object) -> Array:
    """How many elements each mean of an adaptive pool averages."""
    shares = _shares(data.shape[2:], output_size)
    return _products([[one.stop - one.start for one in windows] for windows in shares])


def counts(data: Array, attributes: Mapping[str, Any]) -> Array | int:
    """How many elements each mean of a pool or a reduction averages."""
    if "pool_size" in attributes:
        return pool_counts(data, **attributes)
    if "output_size" in attributes:
        return adaptive_counts(data, **attributes)
    axes = attributes["axis"]
    return math.prod(data.shape if axes is None else [data.shape[axis] for axis in axes])


def _products(counts: Sequence[Sequence[int]]) -> Array:
    """The products of numbers that are given by dimension."""
    result = np.ones(())
    for of_dimension in counts:
        result = result[..., None] * np.asarray(of_dimension)
    return result


def adaptive_pool(data: Array, output_size: Sequence[int] | None) -> Array:
    """Mean of [N, C, ...] over windows that divide the data evenly."""
    shares = _shares(data.shape[2:], output_size)
    out = np.zeros([*data.shape[:2], *map(len, shares)])
    for position in itertools.product(*(range(len(windows)) for windows in shares)):
        window = tuple(windows[i] for i, windows in zip(position, shares, strict=True))
        values = data[_behind(2, window)]
        axes = tuple(range(2, data.ndim))
        out[_behind(2, position)] = values.mean(axes, dtype=np.float64)
    return out


def _resize_position(mode: str, i: int, old: int, new: int, start: float, end: float) -> Fraction:
    """Where element i of `new` lies among `old` elements; exact."""
    at, size = Fraction(i), Fraction(old)
    if mode == "pytorch_half_pixel" and new == 1:
        return Fraction(0)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (at + Fraction(1, 2)) * size / new - Fraction(1, 2)
    if mode == "tf_half_pixel_for_nn":
        return (at + Fraction(1, 2)) * size / new
    if mode == "asymmetric":
        return at * size / new
    if mode == "align_corners":
        return at * (size - 1) / (new - 1) if new > 1 else Fraction(0)
    first, last = Fraction(start), Fraction(end)
    if new == 1:
        return (first + last) / 2 * (size - 1)
    return first * (size - 1) + at * (last - first) * (size - 1) / (new - 1)


def _resize_taps(
    position: Fraction, old: int, mode: str, method: str, rounding: str, alpha: float, exclude: bool
) -> list[tuple[int, float]]:
    """The input elements of an output element, with their weights."""
    if method == "nearest_neighbor":
        half = Fraction(1, 2)
        rounded = {
            "round": round(position),
            "round_prefer_floor": math.ceil(position - half),
            "round_prefer_ceil": math.floor(position + half),
            "floor": math.floor(position),
            "ceil": math.ceil(position),
        }
        default = "round" if mode == "align_corners" else "floor"
        return [(min(max(rounded[rounding or default], 0), old - 1), 1.0)]
    first = math.floor(position)
    if method == "linear":
        taps = [(at, 1 - abs(float(position - at))) for at in (first, first + 1)]
    else:
        taps = []
        for at in range(first - 1, first + 3):
            x = abs(float(position - at))
            inner = (alpha + 2) * x**3 - (alpha + 3) * x**2 + 1
            outer = alpha * (x**3 - 5 * x**2 + 8 * x - 4)
            taps.append((at, inner if x <= 1 else outer))
        if exclude:
            taps = [(at, weight) for at, weight in taps if 0 <= at < old]
            total = sum(weight for _, weight in taps)
            taps = [(at, weight / total) for at, weight in taps]
    return [(min(max(at, 0), old - 1), weight) for at, weight in taps]


def resize(
    data: Array,
    size: Sequence[int],
    roi: Sequence[float] | None,
    layout: str,
    method: str,
    mode: str,
    rounding: str,
    alpha: float,
    exclude: bool,
    extrapolation: float,
) -> Array:
    """Images in another size; all positions are exact fractions."""
    outside = np.zeros([1, 1, 1, 1], bool)
    for spatial in range(2):
        axis = layout.index("HW"[spatial])
        old, new = data.shape[axis], int(size[spatial])
        start, end = (roi[spatial], roi[2 + spatial]) if roi else (0, 1)
        positions = [_resize_position(mode, i, old, new, start, end) for i in range(new)]
        slices = []
        for position in positions:
            taps = _resize_taps(position, old, mode, method, rounding, alpha, exclude)
            slices.append(sum(np.take(data, [at], axis) * weight for at, weight in taps))
        data = np.concatenate(slices, axis)
        if mode == "tf_crop_and_resize":
            shape = [1] * 4
            shape[axis] = new
            beyond = [not 0 <= position <= old - 1 for position in positions]
            outside = outside | np.reshape(beyond, shape)
    return np.where(outside, extrapolation, data)
