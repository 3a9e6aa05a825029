# SPDX-License-Identifier: Apache-2.0
"""NumPy references of the ops, independent of TVM's own kernels.

The expressions of `cases.py` call these functions; those of other modules are imported here. They
favour plainness over speed, and sum in float64.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...backend.api import Array
from .numpy_integers import (
    along_axis,
    dequantize,
    factors,
    quantize,
    requantize,
    rescale,
    to_nearest,
)
from .numpy_moves import (
    gather_elements,
    gather_nd,
    layout_transform,
    one_hot,
    order,
    pad,
    pixel_shuffle,
    scatter_elements,
    scatter_nd,
    split,
    squeeze,
    strided_slice,
    take,
    topk,
    update,
)
from .numpy_windows import (
    adaptive_counts,
    adaptive_pool,
    conv,
    conv_transpose,
    counts,
    pool,
    pool_counts,
    resize,
)

__all__ = [
    "adaptive_counts",
    "adaptive_pool",
    "along_axis",
    "attention",
    "batch_norm",
    "cast",
    "conv",
    "conv_transpose",
    "counts",
    "dequantize",
    "divide",
    "erf",
    "factors",
    "gather_elements",
    "gather_nd",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "layout_transform",
    "log_softmax",
    "one_hot",
    "order",
    "pad",
    "pixel_shuffle",
    "pool",
    "pool_counts",
    "quantize",
    "requantize",
    "rescale",
    "resize",
    "rms_norm",
    "running",
    "scatter_elements",
    "scatter_nd",
    "sigmoid",
    "softmax",
    "split",
    "squeeze",
    "strided_slice",
    "take",
    "to_nearest",
    "topk",
    "update",
]


def batch_norm(
    data: Array,
    gamma: Array,
    beta: Array,
    moving_mean: Array,
    moving_var: Array,
    axis: int,
    epsilon: float,
    center: bool,
    scale: bool,
) -> tuple[Array, Array, Array]:
    """Normalize with the given statistics, and return these too."""
    vectors = (np.atleast_1d(v).astype(np.float64) for v in (gamma, beta, moving_mean, moving_var))
    weight, bias, mean, variance = (along_axis(vector, axis, data.ndim) for vector in vectors)
    result = (data - mean) / np.sqrt(variance + epsilon)
    if scale:
        result = result * weight
    if center:
        result = result + bias
    return result, moving_mean, moving_var


def layer_norm(
    data: Array, gamma: Array, beta: Array, axes: Sequence[int], epsilon: float
) -> Array:
    """Normalize over axes."""
    data = data.astype(np.float64)
    axes = tuple(axis % data.ndim for axis in axes)
    shape = [data.shape[i] if i in axes else 1 for i in range(data.ndim)]
    mean = data.mean(axis=axes, keepdims=True)
    variance = ((data - mean) ** 2).mean(axis=axes, keepdims=True)
    normal = (data - mean) / np.sqrt(variance + epsilon)
    result: Array = normal * gamma.reshape(shape) + beta.reshape(shape)
    return result


def softmax(data: Array, axis: int) -> Array:
    """Exponentials that add up to one along an axis."""
    data = data.astype(np.float64)
    exponentials = np.exp(data - data.max(axis=axis, keepdims=True))
    result: Array = exponentials / exponentials.sum(axis=axis, keepdims=True)
    return result


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def erf(x: Array) -> Array:
    """The error function."""
    result: Array = np.vectorize(math.erf, otypes=[np.float64])(x)
    return result


def divide(x1: Array, x2: Array) -> Array:
    """Quotients; those of integers are rounded towards zero."""
    if np.issubdtype(x1.dtype, np.floating):
        return x1 / x2
    return np.abs(x1) // np.abs(x2) * np.sign(x1) * np.sign(x2)


def rms_norm(data: Array, weight: Array, axes: Sequence[int], epsilon: float) -> Array:
    """Divide by the root of the mean of the squares over axes."""
    data = data.astype(np.float64)
    axes = tuple(axis % data.ndim for axis in axes)
    shape = [data.shape[i] if i in axes else 1 for i in range(data.ndim)]
    mean = (data**2).mean(axis=axes, keepdims=True)
    result: Array = data / np.sqrt(mean + epsilon) * weight.reshape(shape)
    return result


def group_norm(
    data: Array,
    gamma: Array,
    beta: Array,
    num_groups: int,
    channel_axis: int,
    axes: Sequence[int],
    epsilon: float,
) -> Array:
    """Normalize the channels of each group, together with axes."""
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
    result: Array = normal * gamma.reshape(shape) + beta.reshape(shape)
    return result


def instance_norm(
    data: Array, gamma: Array, beta: Array, channel_axis: int, axes: Sequence[int], epsilon: float
) -> Array:
    """Normalize each channel over axes."""
    channels = data.shape[channel_axis]
    return group_norm(data, gamma, beta, channels, channel_axis, axes, epsilon)


def log_softmax(data: Array, axis: int) -> Array:
    """Logarithm of the softmax."""
    data = data.astype(np.float64)
    data = data - data.max(axis=axis, keepdims=True)
    result: Array = data - np.log(np.exp(data).sum(axis=axis, keepdims=True))
    return result


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    scale: float | None,
    causal_mask: str | None,
) -> Array:
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
    result: Array = np.einsum("bhqk,bkhd->bqhd", softmax(scores, -1), value)
    return result


class _Collect(Protocol):
    """Sums or products along an axis."""

    def __call__(self, data: Array, axis: int, /, *, dtype: npt.DTypeLike) -> Array: ...


def running(collect: _Collect, data: Array, axis: int | None, exclusive: bool) -> Array:
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


def cast(x: Array, dtype: str) -> Array:
    """Convert numbers; out-of-range integers are undefined and not tested."""
    result = x.astype(dtype)
    if x.dtype.kind == "f" and result.dtype.kind in "iu" and (np.trunc(x) != result).any():
        raise ValueError(f"some numbers are out of the range of {dtype}")
    return result
