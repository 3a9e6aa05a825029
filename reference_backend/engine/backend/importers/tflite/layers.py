# SPDX-License-Identifier: Apache-2.0
"""Layers of TFLite networks whose options TVM's importer drops or misreads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import tflite
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import TensorWrapper

from ...shared.aliases import Array
from .tensors import Tensors, constant


class Layers(Tensors):
    """Converters of products, images and activations."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.convert_map |= {
            "BATCH_MATMUL": self._batch_matmul,
            "BATCH_TO_SPACE_ND": self._batch_to_space,
            "FULLY_CONNECTED": self._fully_connected,
            "GELU": self._gelu,
            "L2_NORMALIZATION": self._l2_normalization,
            "LOCAL_RESPONSE_NORMALIZATION": self._local_response_normalization,
            "RESIZE_BILINEAR": self._resize_bilinear,
            "RESIZE_NEAREST_NEIGHBOR": self._resize_nearest,
            "SOFTMAX": self._softmax,
            "SPACE_TO_BATCH_ND": self._space_to_batch,
            "TRANSPOSE_CONV": self._transpose_conv,
        }

    def _batch_matmul(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.BatchMatMulOptions)
        turned = (options.AdjX(), options.AdjY())
        factors = []
        for tensor, is_turned in zip(self.get_input_tensors(op), turned, strict=True):
            factor, rank = self.get_tensor_expr(tensor), len(self.get_tensor_shape(tensor))
            order = [*range(rank - 2), rank - 1, rank - 2]
            factors.append(relax.op.permute_dims(factor, order) if is_turned else factor)
        return relax.op.matmul(*factors)

    def _fully_connected(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.FullyConnectedOptions)
        data, weight, *bias = self.get_input_tensors(op)
        if options.WeightsFormat() != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
            raise ValueError("its weights are shuffled; supported is the default format")
        shape, (_, depth) = self.get_tensor_shape(data), self.get_tensor_shape(weight)
        value = self.get_tensor_expr(data)
        if not options.KeepNumDims() and (len(shape) != 2 or shape[1] != depth):
            value = relax.op.reshape(value, [math.prod(shape) // depth, depth])
        turned = relax.op.permute_dims(self.get_tensor_expr(weight), [1, 0])
        result = self._with_bias(relax.op.matmul(value, turned), bias)
        return self.convert_fused_activation_function(result, options.FusedActivationFunction())

    def _with_bias(self, value: relax.Expr, bias: Sequence[TensorWrapper]) -> relax.Expr:
        if not bias or bias[0].tensor_idx < 0:
            return value
        return relax.op.add(value, self.get_tensor_expr(bias[0]))

    def _transpose_conv(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.TransposeConvOptions)
        size, weight, data, *bias = self.get_input_tensors(op)
        sizes, strides = self.integers(size)[1:3], [options.StrideH(), options.StrideW()]
        kernels, given = self.get_tensor_shape(weight)[1:3], self.get_tensor_shape(data)[1:3]
        first, last, missing = [], [], []
        for wanted, kernel, stride, count in zip(sizes, kernels, strides, given, strict=True):
            total = 0
            if options.Padding() == tflite.Padding.SAME:
                total = max((-(-wanted // stride) - 1) * stride + kernel - wanted, 0)
            first.append(total // 2)
            rest = (count - 1) * stride + kernel - first[-1] - wanted
            last.append(max(rest, 0))
            missing.append(max(-rest, 0))
        padded = any(lack >= stride for lack, stride in zip(missing, strides, strict=True))
        result = relax.op.nn.conv2d_transpose(
            self.get_tensor_expr(data),
            relax.op.permute_dims(self.get_tensor_expr(weight), [3, 0, 1, 2]),
            strides=strides,
            padding=[*first, *last],
            output_padding=[0, 0] if padded else missing,
            data_layout="NHWC",
            kernel_layout="IOHW",
        )
        if padded:
            # The op pads its result by less than a stride.
            result = relax.op.nn.pad(result, [0, 0, 0, missing[0], 0, missing[1], 0, 0])
        result = self._with_bias(result, bias)
        return self.convert_fused_activation_function(result, options.FusedActivationFunction())

    def _softmax(self, op: tflite.Operator) -> relax.Expr:
        beta = self.options(op, tflite.SoftmaxOptions).Beta()
        value = self.get_tensor_expr(self.get_input_tensors(op)[0])
        if beta != 1:
            value = relax.op.multiply(value, relax.const(beta, "float32"))
        return relax.op.nn.softmax(value, -1)

    def _gelu(self, op: tflite.Operator) -> relax.Expr:
        is_approximate = self.options(op, tflite.GeluOptions).Approximate()
        gelu = relax.op.nn.gelu_tanh if is_approximate else relax.op.nn.gelu
        return gelu(self.get_tensor_expr(self.get_input_tensors(op)[0]))

    def _l2_normalization(self, op: tflite.Operator) -> relax.Expr:
        fused = self.options(op, tflite.L2NormOptions).FusedActivationFunction()
        value = self.get_tensor_expr(self.get_input_tensors(op)[0])
        norm = relax.op.sqrt(relax.op.sum(relax.op.square(value), -1, keepdims=True))
        result = relax.op.divide(value, relax.op.maximum(norm, relax.const(1e-6, "float32")))
        return self.convert_fused_activation_function(result, fused)

    def _local_response_normalization(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.LocalResponseNormalizationOptions)
        (data,) = self.get_input_tensors(op)
        places = np.arange(self.get_tensor_shape(data)[-1])
        # A product with this matrix sums over neighbouring channels.
        near = np.abs(places[:, None] - places) <= options.Radius()
        value = self.get_tensor_expr(data)
        sums = relax.op.matmul(relax.op.square(value), constant(near.astype("float32")))
        scaled = relax.op.multiply(sums, relax.const(options.Alpha(), "float32"))
        total = relax.op.add(scaled, relax.const(options.Bias(), "float32"))
        power = relax.op.power(total, relax.const(-options.Beta(), "float32"))
        return relax.op.multiply(value, power)

    def _resize_bilinear(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.ResizeBilinearOptions)
        data, size = self.get_input_tensors(op)
        value, (_, *given, _) = self.get_tensor_expr(data), self.get_tensor_shape(data)
        sizes = self.integers(size)
        if options.HalfPixelCenters():
            if options.AlignCorners():
                raise ValueError("it has both align_corners and half_pixel_centers")
            return _resized(value, sizes, "linear", "half_pixel")
        if not options.AlignCorners():
            return _resized(value, sizes, "linear", "asymmetric")
        # TVM divides by zero for a result of one row: it is the first row of a result of two.
        single = [axis for axis, size in enumerate(sizes, 1) if size == 1]
        for axis in single:
            if given[axis - 1] == 1:
                value = relax.op.concat([value, value], axis)
            sizes[axis - 1] = max(given[axis - 1], 2)
        value = _resized(value, sizes, "linear", "align_corners")
        ones = [1] * len(single)
        return relax.op.strided_slice(value, single, [0] * len(single), ones) if single else value

    def _resize_nearest(self, op: tflite.Operator) -> relax.Expr:
        options = self.options(op, tflite.ResizeNearestNeighborOptions)
        aligned, centred = options.AlignCorners(), options.HalfPixelCenters()
        data, size = self.get_input_tensors(op)
        value, (_, *given, _) = self.get_tensor_expr(data), self.get_tensor_shape(data)
        sizes = self.integers(size)
        both = list(zip(given, sizes, strict=True))
        nearest = [_nearest(*pair, aligned, centred) for pair in both]
        if not aligned:
            exact = [_exact_nearest(*pair, centred) for pair in both]
            if all(map(np.array_equal, nearest, exact)):
                how = ("half_pixel", "round_prefer_ceil") if centred else ("asymmetric", "floor")
                return _resized(value, sizes, "nearest_neighbor", *how)
        # Relax has no op with this rounding.
        for axis, places in enumerate(nearest, 1):
            value = relax.op.take(value, constant(places), axis)
        return value

    def _space_to_batch(self, op: tflite.Operator) -> relax.Expr:
        data, block, padding = self.get_input_tensors(op)
        blocks, widths = self.integers(block), self.integers(padding)
        count, value = len(blocks), self.get_tensor_expr(data)
        shape = self.get_tensor_shape(data)
        padded = list(shape)
        for axis in range(count):
            padded[axis + 1] += widths[2 * axis] + widths[2 * axis + 1]
        if padded != shape:
            rest = [0] * (2 * (len(shape) - count - 1))
            value = relax.op.nn.pad(value, [0, 0, *widths, *rest])
        sizes = [size // step for size, step in zip(padded[1:], blocks, strict=False)]
        inner = [part for pair in zip(sizes, blocks, strict=True) for part in pair]
        value = relax.op.reshape(value, [padded[0], *inner, *padded[count + 1 :]])
        outer, steps = range(1, 2 * count, 2), range(2, 2 * count + 1, 2)
        rest = list(range(2 * count + 1, count + len(padded)))
        value = relax.op.permute_dims(value, [*steps, 0, *outer, *rest])
        batch = padded[0] * math.prod(blocks)
        return relax.op.reshape(value, [batch, *sizes, *padded[count + 1 :]])

    def _batch_to_space(self, op: tflite.Operator) -> relax.Expr:
        data, block, crop = self.get_input_tensors(op)
        blocks, crops = self.integers(block), self.integers(crop)
        count, shape = len(blocks), self.get_tensor_shape(data)
        batch, rest = shape[0] // math.prod(blocks), shape[count + 1 :]
        value = relax.op.reshape(self.get_tensor_expr(data), [*blocks, batch, *shape[1:]])
        pairs = [place for axis in range(count) for place in (count + 1 + axis, axis)]
        last = list(range(2 * count + 1, count + len(shape)))
        value = relax.op.permute_dims(value, [count, *pairs, *last])
        sizes = [size * step for size, step in zip(shape[1:], blocks, strict=False)]
        value = relax.op.reshape(value, [batch, *sizes, *rest])
        if not any(crops):
            return value
        ends = [size - end for size, end in zip(sizes, crops[1::2], strict=True)]
        return relax.op.strided_slice(value, list(range(1, count + 1)), crops[::2], ends)


def _resized(
    value: relax.Expr, sizes: Sequence[int], method: str, coordinates: str, rounding: str = ""
) -> relax.Expr:
    return relax.op.image.resize2d(value, tuple(sizes), None, "NHWC", method, coordinates, rounding)


def _nearest(given: int, count: int, aligned: bool, centred: bool) -> Array:
    """Return the place that each pixel is read from, in the arithmetic of LiteRT."""
    single = np.float32
    scale = single(given) / single(count)
    if aligned and count > 1:
        scale = single(given - 1) / single(count - 1)
    exact = (np.arange(count, dtype=single) + single(0.5 if centred else 0)) * scale
    # Halves are rounded away from zero.
    places = np.floor(exact + single(0.5)) if aligned else np.floor(exact)
    clipped: Array = np.clip(places, 0, given - 1).astype("int64")
    return clipped


def _exact_nearest(given: int, count: int, centred: bool) -> Array:
    offset = Fraction(1, 2) if centred else 0
    places = [math.floor((place + offset) * Fraction(given, count)) for place in range(count)]
    clipped: Array = np.clip(np.array(places, "int64"), 0, given - 1)
    return clipped
