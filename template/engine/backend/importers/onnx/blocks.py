# SPDX-License-Identifier: Apache-2.0
"""Scales that change every few elements of an axis: rows of a block each, with a scale per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...shared.aliases import Array
from .graph import Graph, Node


class Blocks:
    """A tensor whose scale changes every few elements of an axis, as rows of one block each.

    `graph`: the graph.
    `node`: the node with the attribute `block_size`.
    `x`: the name of its tensor.
    `scale`: the name of its scales.
    """

    def __init__(self, graph: Graph, node: Node, x: str, scale: str) -> None:
        self._graph, self._node = graph, node
        shape, scales = graph.shape(x), graph.shape(scale)
        if shape is None or scales is None:
            node.refuse(
                f"block_size needs the shapes of {x!r} and {scale!r}, which are not known; "
                "supported are constants, and tensors whose shape ONNX can infer"
            )
        axis = node.attributes.get("axis", 1)
        axis += len(shape) if axis < 0 else 0
        self._size = node.attributes["block_size"]
        wanted = [*shape]
        wanted[axis] = shape[axis] // self._size
        if shape[axis] % self._size or list(scales) != wanted:
            node.refuse(
                f"block_size={self._size} on axis {axis} of the shape {list(shape)}, with scales "
                f"of the shape {list(scales)}; supported are whole blocks, with a scale for each"
            )
        self._last = [index for index in range(len(shape)) if index != axis] + [axis]
        self._shape = [shape[index] for index in self._last]

    def _ordered(self, name: str, rows: Sequence[int]) -> str:
        """Return a tensor with the axis of the blocks last, in another shape."""
        graph = self._graph
        array = graph.constant(name)
        if array is not None:
            array = np.ascontiguousarray(array.transpose(self._last)).reshape(rows)
            return graph.add_constant(f"{name}_blocks", array)
        if self._last != sorted(self._last):
            name = graph.emit("Transpose", [name], {"perm": self._last}, like=self._node)
        shape = graph.add_constant(f"{name}_shape", np.array(rows, "int64"))
        return graph.emit("Reshape", [name, shape], like=self._node)

    def split(self, name: str) -> str:
        """Return the rows of a tensor, a block in each."""
        return self._ordered(name, [math.prod(self._shape) // self._size, self._size])

    def flat(self, name: str) -> str:
        """Return scales or zero points as a vector."""
        return self._ordered(name, [math.prod(self._shape) // self._size])

    def join(self, rows: str, output: str) -> None:
        """Put rows back into the shape of the tensor."""
        graph, order = self._graph, self._last
        shape = graph.add_constant(f"{rows}_shape", np.array(self._shape, "int64"))
        if order == sorted(order):
            graph.emit("Reshape", [rows, shape], output=output, like=self._node)
            return
        last = graph.emit("Reshape", [rows, shape], like=self._node)
        back = [order.index(index) for index in range(len(order))]
        graph.emit("Transpose", [last], {"perm": back}, output, like=self._node)


def matmul_nbits(graph: Graph, node: Node) -> None:
    """Write a product with packed weights, which are constants, as dequantize and matmul."""
    a, b, scales, zeros, order, bias = node.inputs(6)
    weights, scale = graph.constant(b), graph.constant(scales)
    zero = graph.constant(zeros) if zeros else None
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
        graph.add_constant(f"{b}_blocks", values.astype("int8")),
        graph.add_constant(f"{b}_scales", scale.reshape(-1)),
        graph.add_constant(f"{b}_zeros", points.astype("int8")),
    ]
    w = graph.emit("DequantizeLinear", inputs, {"axis": 0}, like=node)
    if size != depth:
        shape = graph.add_constant(f"{b}_shape", np.array([rows, depth], "int64"))
        w = graph.emit("Reshape", [w, shape], like=node)
    w = graph.emit("Transpose", [w], {"perm": [1, 0]}, like=node)
    output = node.proto.output[0]
    product = graph.emit("MatMul", [a, w], output="" if bias else output, like=node)
    if bias:
        graph.emit("Add", [product, bias], output=output, like=node)


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the numbers in bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return values.reshape(*packed.shape[:-1], -1).astype("int16")
