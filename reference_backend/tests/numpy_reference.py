# Template-owned: 'copier update' brings changes and merges your edits.
# SPDX-License-Identifier: Apache-2.0
"""What the ops compute, in NumPy: the second opinion beside TVM's own kernels.

The expressions of `op_cases` call these functions. They favour plainness over speed, and sum in
float64.
"""

import itertools
import math

import numpy as np


def conv(data, weight, strides, padding, dilation, groups):
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
        values = data[(slice(None), slice(None), slice(None), *window)]
        out += np.einsum("ngc...,goc->ngo...", values, weight[(..., *tap)])
    return out.reshape(batch, outputs, *out_shape)


def pool(data, kind, pool_size, strides, padding, dilation, ceil_mode):
    """Two-dimensional pooling; `kind` is max, avg (without padding) or avg_padded."""
    out_shape, taps = [], []
    for axis in range(2):
        size, before, after = data.shape[2 + axis], padding[axis], padding[2 + axis]
        room = size + before + after - (pool_size[axis] - 1) * dilation[axis] - 1
        count = (room + (strides[axis] - 1 if ceil_mode else 0)) // strides[axis] + 1
        # A window that would start in the padding behind the data does not count.
        if ceil_mode and (count - 1) * strides[axis] >= size + before:
            count -= 1
        out_shape.append(count)
        # What ceil mode adds beyond the padding never counts.
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
    out = np.zeros([*data.shape[:2], *out_shape])
    for y, x in itertools.product(*(range(size) for size in out_shape)):
        rows = [at for at in taps[0][y] if 0 <= at < data.shape[2]]
        columns = [at for at in taps[1][x] if 0 <= at < data.shape[3]]
        window = data[:, :, rows][:, :, :, columns].astype(np.float64)
        if kind == "max":
            out[:, :, y, x] = window.max(axis=(2, 3))
        else:
            out[:, :, y, x] = window.sum(axis=(2, 3)) / (len(taps[0][y]) * len(taps[1][x]))
    return out


def adaptive_pool(data, output_size):
    """Two-dimensional mean over windows that share the data out evenly."""
    height, width = data.shape[2:]
    rows, columns = (height, width) if output_size is None else output_size
    out = np.zeros([*data.shape[:2], rows, columns])
    for y, x in itertools.product(range(rows), range(columns)):
        window = data[
            :,
            :,
            y * height // rows : -(-(y + 1) * height // rows),
            x * width // columns : -(-(x + 1) * width // columns),
        ]
        out[:, :, y, x] = window.mean(axis=(2, 3), dtype=np.float64)
    return out


def _along(values, axis, rank):
    """Reshape a vector so that it broadcasts along an axis; scalars stay."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


def batch_norm(data, gamma, beta, moving_mean, moving_var, axis, epsilon, center, scale):
    """Normalise with the given statistics, and hand these on."""
    vectors = (np.atleast_1d(v).astype(np.float64) for v in (gamma, beta, moving_mean, moving_var))
    weight, bias, mean, variance = (_along(vector, axis, data.ndim) for vector in vectors)
    result = (data - mean) / np.sqrt(variance + epsilon)
    if scale:
        result = result * weight
    if center:
        result = result + bias
    return result, moving_mean, moving_var


def layer_norm(data, gamma, beta, axes, epsilon):
    """Normalise over axes."""
    data = data.astype(np.float64)
    axes = tuple(axis % data.ndim for axis in axes)
    shape = [data.shape[i] if i in axes else 1 for i in range(data.ndim)]
    mean = data.mean(axis=axes, keepdims=True)
    variance = ((data - mean) ** 2).mean(axis=axes, keepdims=True)
    normal = (data - mean) / np.sqrt(variance + epsilon)
    return normal * gamma.reshape(shape) + beta.reshape(shape)


def softmax(data, axis):
    """Exponentials that add up to one along an axis."""
    data = data.astype(np.float64)
    exponentials = np.exp(data - data.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x.astype(np.float64)))


def erf(x):
    """The error function."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def quantize(data, scale, zero_point, axis, out_dtype):
    """Round(data / scale) + zero point, halves to even, saturated; the division is in float32."""
    steps = np.rint(data / _along(scale, axis, data.ndim))
    limits = np.iinfo(out_dtype)
    steps = steps.astype(np.float64) + _along(zero_point, axis, data.ndim)
    return np.clip(steps, limits.min, limits.max)


def dequantize(data, scale, zero_point, axis, out_dtype):
    """(data - zero point) * scale; float16 saturates."""
    steps = data.astype(np.float64) - _along(zero_point, axis, data.ndim)
    limits = np.finfo(out_dtype)
    result = steps * _along(scale, axis, data.ndim)
    return np.clip(result, float(limits.min), float(limits.max))
