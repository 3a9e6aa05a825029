# SPDX-License-Identifier: Apache-2.0
"""Scales that change every few elements of an axis: rows of a block each, with a scale per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from ...shared.aliases import Array
from .node import Node


class Blocks:
    """A tensor whose scale changes every few elements of an axis, as rows of one block each.

    `node`: the node, with the attribute `block_size`.
    `x`, `scale`: the names of its tensor and its scales.
    """

    def __init__(self, node: Node, x: str, scale: str) -> None:
        self._node = node
        shape, scales = node.shape(x), node.shape(scale)
        if shape is None or scales is None:
            node.refuse(
                f"block_size needs the shapes of {x!r} and {scale!r}, which are not known; "
                "supported are constants, and tensors whose shape ONNX can infer"
            )
        axis = node.attributes.get("axis", 1)
        axis += len(shape) if axis < 0 else 0
        self._size = node.attributes["block_size"]
        whole = [*shape]
        whole[axis] = shape[axis] // self._size
        if shape[axis] % self._size or list(scales) != whole:
            node.refuse(
                f"block_size={self._size} on axis {axis} of the shape {list(shape)}, with scales "
                f"of the shape {list(scales)}; supported are whole blocks, with a scale for each"
            )
        self._last = [index for index in range(len(shape)) if index != axis] + [axis]
        self._shape = [shape[index] for index in self._last]

    def _ordered(self, name: str, rows: Sequence[int]) -> str:
        """Return a tensor with the axis of the blocks last, in another shape."""
        node = self._node
        array = node.constant(name)
        if array is not None:
            array = np.ascontiguousarray(array.transpose(self._last)).reshape(rows)
            return node.literal(array, name=f"{name}_blocks")
        return node.reshape(node.transpose(name, self._last), rows)

    def split(self, name: str) -> str:
        """Return the rows of a tensor, a block in each."""
        return self._ordered(name, [math.prod(self._shape) // self._size, self._size])

    def flat(self, name: str) -> str:
        """Return scales or zero points as a vector."""
        return self._ordered(name, [math.prod(self._shape) // self._size])

    def join(self, rows: str, output: str) -> None:
        """Put rows back into the shape of the tensor."""
        node, order = self._node, self._last
        if order == sorted(order):
            node.reshape(rows, self._shape, output)
            return
        back = [order.index(axis) for axis in range(len(order))]
        node.transpose(node.reshape(rows, self._shape), back, output)


def matmul_nbits(node: Node) -> None:
    """Write a product with packed weights, which are constants, as dequantize and matmul."""
    a, b, scales, zeros, order, bias = node.inputs(6)
    weights, scale = node.constant(b), node.constant(scales)
    zero = node.constant(zeros) if zeros else None
    if weights is None or scale is None or (zeros and zero is None) or order:
        node.refuse("supported are constant weights, scales and zero points, and no g_idx")
    bits, size, rows, depth = (
        node.attributes.get(name, default)
        for name, default in (("bits", 4), ("block_size", 0), ("N", 0), ("K", 0))
    )
    is_whole = size > 0 and depth % size == 0
    is_integer = zero is None or zero.dtype == np.uint8 or bool((zero == zero.round()).all())
    if bits not in (2, 4, 8) or not is_whole or not is_integer:
        kind = "" if is_integer else ", zero points that are no integers"
        node.refuse(
            f"bits={bits}, K={depth}, block_size={size}{kind}; supported are 2, 4 and 8 bits, "
            "whole blocks, and zero points that are integers"
        )
    # Around 0 instead of 2, 8 or 128, so that the usual zero point is 0.
    middle = 1 << (bits - 1)
    values = _unpacked(weights, bits).reshape(-1, size) - middle
    points = np.zeros(len(values), "int16")
    if zero is not None and zero.dtype != np.uint8:
        points = zero.reshape(-1).astype("int16") - middle
    elif zero is not None:
        points = _unpacked(zero.reshape(rows, -1), bits)[:, : depth // size].reshape(-1) - middle
    inputs = [
        node.literal(values, "int8", f"{b}_blocks"),
        node.literal(scale.reshape(-1), name=f"{b}_scales"),
        node.literal(points, "int8", f"{b}_zeros"),
    ]
    w = node.write("DequantizeLinear", *inputs, axis=0)
    if size != depth:
        w = node.reshape(w, (rows, depth))
    w = node.transpose(w, (1, 0))
    node.matmul(a, w, bias)


def gather_block_quantized(node: Node) -> None:
    """Write rows of a packed table, which is a constant, as rows of integers and of scales."""
    data, indices, scales, zeros = node.inputs(4)
    table, scale = node.constant(data), node.constant(scales)
    zero = node.constant(zeros) if zeros else None
    rank = node.sizes(indices)
    if table is None or scale is None or (zeros and zero is None) or rank is None:
        node.refuse("supported are constant data, scales and zero points, and indices of a rank")
    bits, size, along, axis = (
        node.attributes.get(name, default)
        for name, default in (
            ("bits", 4), ("block_size", 128), ("quantize_axis", 1), ("gather_axis", 0)
        )
    )  # fmt: skip
    is_packed = node.element_type(data) == TensorProto.UINT8
    if bits not in (4, 8) or table.ndim != 2 or axis not in (0, -2) or along not in (1, -1):
        node.refuse(
            f"bits={bits}, gather_axis={axis} and quantize_axis={along} of {table.ndim} axes; "
            "supported are 4 and 8 bits, gather_axis=0 and quantize_axis=1 of 2 axes"
        )
    # Around 0, so that the usual zero point is 0.
    middle = 0 if node.element_type(data) == TensorProto.INT4 else 1 << (bits - 1)
    points = np.full(scale.shape, middle if is_packed else 0, "int16")
    if is_packed:
        table = _unpacked(table, bits)
        points = points if zero is None else _unpacked(zero, bits)[:, : scale.shape[1]]
    elif zero is not None:
        points = zero
    if table.shape != (len(scale), scale.shape[1] * size):
        node.refuse(
            f"block_size={size} for rows of {table.shape[1]} elements, with scales of the shape "
            f"{list(scale.shape)}; supported are whole blocks"
        )
    values = node.literal(table.astype("int16") - middle, "int8", f"{data}_rows")
    kind = node.element_type(scales)
    rows = node.cast(node.write("Gather", values, indices, axis=0), kind)
    blocks = [0] * len(rank)
    rows = node.reshape(rows, (*blocks, scale.shape[1], size))
    if (points != middle).any():
        zero_rows = node.literal(points.astype("int16") - middle, "int8", f"{data}_zeros")
        zero_rows = node.cast(node.write("Gather", zero_rows, indices, axis=0), kind)
        rows = node.write("Sub", rows, node.unsqueeze(zero_rows, len(rank) + 1))
    factors = node.unsqueeze(node.write("Gather", scales, indices, axis=0), len(rank) + 1)
    node.reshape(node.write("Mul", rows, factors), (*blocks, table.shape[1]), node.proto.output[0])


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the numbers in bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1).astype("int16")
