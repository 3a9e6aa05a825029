# SPDX-License-Identifier: Apache-2.0
"""NumPy references of the ops, independent of TVM's own kernels.

The expressions of `cases.py` call these functions. They favour plainness over speed, and sum in
float64. Arrays and attributes are `Any`: whatever an expression passes.
"""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import tirx


def _behind(dimensions: int, index: Any) -> Any:
    """Return an index of the dimensions behind the first ones, which are taken whole."""
    return (slice(None),) * dimensions + tuple(index)


def conv(data: Any, weight: Any, strides: Any, padding: Any, dilation: Any, groups: Any) -> Any:
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


def _pool_taps(
    sizes: Any, kind: Any, pool_size: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> list[list[list[int]]]:
    """The positions that each window has in each spatial dimension, those that count."""
    spatial = len(sizes)
    taps: list[list[list[int]]] = []
    for axis in range(spatial):
        size, before, after = sizes[axis], padding[axis], padding[spatial + axis]
        room = size + before + after - (pool_size[axis] - 1) * dilation[axis] - 1
        count = (room + (strides[axis] - 1 if ceil_mode else 0)) // strides[axis] + 1
        # Drop windows that would start in the padding behind the data.
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
    data: Any, kind: Any, pool_size: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> Any:
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
    data: Any,
    pool_size: Any,
    strides: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
    count_include_pad: Any,
    **_: Any,
) -> Any:
    """How many elements each mean of a pool is made of."""
    kind = "avg_padded" if count_include_pad else "avg"
    taps = _pool_taps(data.shape[2:], kind, pool_size, strides, padding, dilation, ceil_mode)
    return _products([[len(window) for window in windows] for windows in taps])


def _shares(sizes: Any, output_size: Any) -> list[list[slice]]:
    """The windows that share each dimension out evenly."""
    pairs = zip(sizes, sizes if output_size is None else output_size, strict=True)
    return [
        [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        for size, count in pairs
    ]


def adaptive_counts(data: Any, output_size: Any, **_: Any) -> Any:
    """How many elements each mean of an adaptive pool is made of."""
    shares = _shares(data.shape[2:], output_size)
    return _products([[one.stop - one.start for one in windows] for windows in shares])


def counts(data: Any, attributes: Any) -> Any:
    """How many elements each mean of a pool or a reduction is made of."""
    if "pool_size" in attributes:
        return pool_counts(data, **attributes)
    if "output_size" in attributes:
        return adaptive_counts(data, **attributes)
    axes = attributes["axis"]
    return math.prod(data.shape if axes is None else [data.shape[axis] for axis in axes])


def _products(counts: Any) -> Any:
    """The products of numbers that are given by dimension."""
    result = np.ones(())
    for of_dimension in counts:
        result = result[..., None] * np.asarray(of_dimension)
    return result


def adaptive_pool(data: Any, output_size: Any) -> Any:
    """Mean of [N, C, ...] over windows that share the data out evenly."""
    shares = _shares(data.shape[2:], output_size)
    out = np.zeros([*data.shape[:2], *map(len, shares)])
    for position in itertools.product(*(range(len(windows)) for windows in shares)):
        window = tuple(windows[i] for i, windows in zip(position, shares, strict=True))
        values = data[_behind(2, window)]
        axes = tuple(range(2, data.ndim))
        out[_behind(2, position)] = values.mean(axes, dtype=np.float64)
    return out


def _along(values: Any, axis: Any, rank: Any) -> Any:
    """Reshape a vector so that it broadcasts along an axis; scalars stay."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


def batch_norm(
    data: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    axis: Any,
    epsilon: Any,
    center: Any,
    scale: Any,
) -> Any:
    """Normalize with the given statistics, and return these too."""
    vectors = (np.atleast_1d(v).astype(np.float64) for v in (gamma, beta, moving_mean, moving_var))
    weight, bias, mean, variance = (_along(vector, axis, data.ndim) for vector in vectors)
    result = (data - mean) / np.sqrt(variance + epsilon)
    if scale:
        result = result * weight
    if center:
        result = result + bias
    return result, moving_mean, moving_var


def layer_norm(data: Any, gamma: Any, beta: Any, axes: Any, epsilon: Any) -> Any:
    """Normalise over axes."""
    data = data.astype(np.float64)
    axes = tuple(axis % data.ndim for axis in axes)
    shape = [data.shape[i] if i in axes else 1 for i in range(data.ndim)]
    mean = data.mean(axis=axes, keepdims=True)
    variance = ((data - mean) ** 2).mean(axis=axes, keepdims=True)
    normal = (data - mean) / np.sqrt(variance + epsilon)
    return normal * gamma.reshape(shape) + beta.reshape(shape)


def softmax(data: Any, axis: Any) -> Any:
    """Exponentials that add up to one along an axis."""
    data = data.astype(np.float64)
    exponentials = np.exp(data - data.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def erf(x: Any) -> Any:
    """The error function."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def quantize(data: Any, scale: Any, zero_point: Any, axis: Any, out_dtype: Any) -> Any:
    """Round(data / scale) + zero point, halves to even, saturated; the division is in float32."""
    scale = _along(scale.astype(np.float32), axis, data.ndim)
    steps = np.rint(data.astype(np.float32) / scale)
    limits = np.iinfo(out_dtype)
    steps = steps.astype(np.float64) + _along(zero_point, axis, data.ndim)
    return np.clip(steps, limits.min, limits.max)


def dequantize(data: Any, scale: Any, zero_point: Any, axis: Any, out_dtype: Any) -> Any:
    """(data - zero point) * scale; float16 saturates."""
    steps = data.astype(np.float64) - _along(zero_point, axis, data.ndim)
    limits = np.finfo(out_dtype)
    result = steps * _along(scale, axis, data.ndim)
    return np.clip(result, float(limits.min), float(limits.max))


def rescale(values: Any, multiplier: int, shift: int, rounding: str) -> list[int]:
    """Integers times multiplier / 2^shift, in exact arithmetic; TOSA's RESCALE for "half_up"."""
    results = []
    for value in values:
        product = int(value) * multiplier
        if shift == 0:
            results.append(product)
            continue
        down, rest = divmod(product, 1 << shift)
        half = 1 << (shift - 1)
        if rounding == "double" and shift > 31:
            down = (product + half + ((1 << 30) if value >= 0 else -(1 << 30))) >> shift
        elif rounding in ("half_up", "double"):
            down += rest >= half
        elif rounding == "half_even":
            down += rest > half or (rest == half and down % 2 == 1)
        elif rounding == "half_away":
            down += rest > half or (rest == half and product > 0)
        elif rounding == "to_zero":
            down += product < 0 and rest > 0
        results.append(down)
    return results


def factors(factor: float, bits: int) -> tuple[int, int]:
    """The multiplier of `bits` bits and the shift that are nearest to a positive number."""
    exact = Fraction(factor)
    shift = 0
    while exact * 2**shift >= 2**bits:
        shift -= 1
    while exact * 2 ** (shift + 1) < 2**bits:
        shift += 1
    multiplier = round(exact * Fraction(2) ** shift)
    return (multiplier // 2, shift - 1) if multiplier == 2**bits else (multiplier, shift)


def requantize(sums: Any, factor: Any, rule: Any, wide: bool = False) -> Any:
    """Integers in another scale: `factor` broadcasts, and the rule of the chip says how.

    `wide` ones are sums of int16, of 48 bits.
    """
    bits = rule.wide_multiplier_bits if wide else rule.multiplier_bits
    rounding = "half_up" if wide and rule.rounding == "double" else rule.rounding
    sums, factor = np.broadcast_arrays(sums, factor)
    result = np.empty(sums.shape)
    for number in np.unique(factor):
        chosen = factor == number
        result[chosen] = rescale(sums[chosen], *factors(float(number), bits), rounding)
    return result


# ---- Arithmetic ----


def divide(x1: Any, x2: Any) -> Any:
    """Quotients; those of integers are rounded towards zero."""
    if np.issubdtype(x1.dtype, np.floating):
        return x1 / x2
    return np.abs(x1) // np.abs(x2) * np.sign(x1) * np.sign(x2)


# ---- Neural networks ----


def conv_transpose(
    data: Any,
    weight: Any,
    strides: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
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


def rms_norm(data: Any, weight: Any, axes: Any, epsilon: Any) -> Any:
    """Divide by the root of the mean of the squares over axes."""
    data = data.astype(np.float64)
    axes = tuple(axis % data.ndim for axis in axes)
    shape = [data.shape[i] if i in axes else 1 for i in range(data.ndim)]
    mean = (data**2).mean(axis=axes, keepdims=True)
    return data / np.sqrt(mean + epsilon) * weight.reshape(shape)


def group_norm(
    data: Any, gamma: Any, beta: Any, num_groups: Any, channel_axis: Any, axes: Any, epsilon: Any
) -> Any:
    """Normalise the channels of each group, together with axes."""
    channel_axis %= data.ndim
    axes = [axis % data.ndim for axis in axes]
    groups = []
    for group in np.split(data.astype(np.float64), num_groups, channel_axis):
        over = (channel_axis, *axes)
        mean = group.mean(axis=over, keepdims=True)
        variance = ((group - mean) ** 2).mean(axis=over, keepdims=True)
        groups.append((group - mean) / np.sqrt(variance + epsilon))
    normal = np.concatenate(groups, channel_axis)
    shape = [data.shape[i] if i == channel_axis else 1 for i in range(data.ndim)]
    return normal * gamma.reshape(shape) + beta.reshape(shape)


def instance_norm(
    data: Any, gamma: Any, beta: Any, channel_axis: Any, axes: Any, epsilon: Any
) -> Any:
    """Normalise each channel over axes."""
    channels = data.shape[channel_axis]
    return group_norm(data, gamma, beta, channels, channel_axis, axes, epsilon)


def log_softmax(data: Any, axis: Any) -> Any:
    """Logarithm of the softmax."""
    data = data.astype(np.float64)
    data = data - data.max(axis=axis, keepdims=True)
    return data - np.log(np.exp(data).sum(axis=axis, keepdims=True))


def attention(query: Any, key: Any, value: Any, bias: Any, scale: Any, causal_mask: Any) -> Any:
    """Attention of [batch, sequence, heads, size]; heads of the queries may share keys."""
    group = query.shape[2] // key.shape[2]
    key, value = (np.repeat(tensor, group, axis=2) for tensor in (key, value))
    scores = np.einsum("bqhd,bkhd->bhqk", query.astype(np.float64), key)
    scores = scores / np.sqrt(query.shape[3]) if scale is None else scores * scale
    if bias is not None:
        scores = scores + bias
    if causal_mask is not None:
        queries, keys = scores.shape[2:]
        offset = keys - queries if causal_mask == "BottomRight" else 0
        hidden = np.arange(keys) > np.arange(queries)[:, None] + offset
        scores = np.where(hidden, -np.inf, scores)
    return np.einsum("bhqk,bkhd->bqhd", softmax(scores, -1), value)


def pixel_shuffle(data: Any, upscale_factor: Any) -> Any:
    """Move factor * factor channels to the pixels of one."""
    *batch, channels, height, width = data.shape
    factor = upscale_factor
    out = np.empty([*batch, channels // factor**2, height * factor, width * factor], data.dtype)
    for y, x in itertools.product(range(factor), repeat=2):
        out[..., y::factor, x::factor] = data[..., y * factor + x :: factor**2, :, :]
    return out


def running(collect: Any, data: Any, axis: Any, exclusive: Any) -> Any:
    """Sums or products of the elements up to each one, or (exclusive) before it."""
    if axis is None:
        data, axis = data.reshape(-1), 0
    # NumPy would widen int32.
    result = collect(data, axis, dtype=data.dtype)
    if exclusive:
        start = np.full_like(np.take(result, [0], axis), 1 if collect is np.cumprod else 0)
        rest = np.take(result, range(data.shape[axis] - 1), axis)
        result = np.concatenate([start, rest], axis)
    return result


def _resize_position(mode: Any, i: Any, old: Any, new: Any, start: Any, end: Any) -> Any:
    """Where element i of `new` lies among `old` elements; exact."""
    i, old, new = Fraction(i), Fraction(old), Fraction(new)
    if mode == "pytorch_half_pixel" and new == 1:
        return Fraction(0)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (i + Fraction(1, 2)) * old / new - Fraction(1, 2)
    if mode == "tf_half_pixel_for_nn":
        return (i + Fraction(1, 2)) * old / new
    if mode == "asymmetric":
        return i * old / new
    if mode == "align_corners":
        return i * (old - 1) / (new - 1) if new > 1 else Fraction(0)
    start, end = Fraction(start), Fraction(end)
    if new == 1:
        return (start + end) / 2 * (old - 1)
    return start * (old - 1) + i * (end - start) * (old - 1) / (new - 1)


def _resize_taps(
    position: Any, old: Any, mode: Any, method: Any, rounding: Any, alpha: Any, exclude: Any
) -> Any:
    """The elements that one of the output is made of, with their weights."""
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
    data: Any,
    size: Any,
    roi: Any,
    layout: Any,
    method: Any,
    mode: Any,
    rounding: Any,
    alpha: Any,
    exclude: Any,
    extrapolation: Any,
) -> Any:
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


def cast(x: Any, dtype: Any) -> Any:
    """Convert numbers; out-of-range integers are undefined and not tested."""
    result = x.astype(dtype)
    if x.dtype.kind == "f" and result.dtype.kind in "iu" and (np.trunc(x) != result).any():
        raise ValueError(f"some numbers are out of the range of {dtype}")
    return result


# ---- Shapes and indices ----


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
