# SPDX-License-Identifier: Apache-2.0
"""Scales that change every few elements of an axis: rows of a block each, with a scale per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

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
    if bits not in (2, 4, 8) or not is_whole or (zero is not None and zero.dtype != np.uint8):
        kind = "" if zero is None else f", zero points of {zero.dtype}"
        node.refuse(
            f"bits={bits}, K={depth}, block_size={size}{kind}; supported are 2, 4 and 8 bits, "
            "whole blocks, and zero points of uint8"
        )
    # Around 0 instead of 2, 8 or 128, so that the usual zero point is 0.
    middle = 1 << (bits - 1)
    values = _unpacked(weights, bits).reshape(-1, size) - middle
    points = np.zeros(len(values), "int16")
    if zero is not None:
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


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the numbers in bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1).astype("int16")
