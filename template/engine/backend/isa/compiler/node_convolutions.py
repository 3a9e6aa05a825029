# SPDX-License-Identifier: Apache-2.0
"""Convolutions: products of windows and weights.

Constant weights are stored as [taps..., channels of the data, channels of the result].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import te

from ...sdk.npu_region.region import Node
from .elements import Expr, is_multiple, number, quotient, rest
from .graph import Graph, Operand
from .node_products import Product, added_product, factor
from .windows import Layout, Taps, padded, place_of, taps_of, windows


def convolution_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a convolution."""
    data, weight, *bias = operands
    out = graph.region.value(node.output)
    rank = len(out.shape)
    layout = Layout(rank, graph.region.channels_last)
    window = list(weight.shape[layout.spatial])
    outputs, inner = weight.shape[0], weight.shape[layout.axis]
    strides, dilations, begins, reach = windows(node, out.shape[layout.spatial], window)

    zeros = (int(node.attributes["data_zero_point"]), int(node.attributes["weight_zero_point"]))

    def padded_data(tensor: te.Tensor) -> te.Tensor:
        # The zero point, also where its effect is part of the bias.
        return padded(tensor, layout, reach, begins, number(zeros[0], data.dtype))

    if weight.array is not None:
        # As [taps..., channels of the data, channels of the result].
        order = [*range(rank)[layout.spatial], layout.axis, 0]
        weight = graph.constant(weight.array.transpose(order))

    def weight_at(tensor: te.Tensor, taps: Taps, c: Expr, o: Expr) -> Expr:
        if operands[1].array is not None:
            return tensor(*taps, c, o)
        return tensor(*layout.joined(o, taps, c))

    groups = int(node.attributes["groups"])
    define = _convolution(
        out.shape,
        layout,
        (window, strides, dilations),
        (groups, outputs, inner),
        padded_data,
        weight_at,
    )
    product = Product(
        define,
        data,
        weight,
        None if weight.array is None else weight.array.reshape(-1, outputs),
        math.prod(window) * inner,
        layout.axis,
        zeros,
    )
    return added_product(graph, node, product, bias[0] if bias else None)


def _convolution(
    shape: Sequence[int],
    layout: Layout,
    geometry: tuple[Sequence[int], Sequence[int], Sequence[int]],
    channels: tuple[int, int, int],
    padded_data: Callable[[te.Tensor], te.Tensor],
    weight_at: Callable[[te.Tensor, Taps, Expr, Expr], Expr],
) -> Callable[[te.Tensor, te.Tensor, str, tuple[int, int]], te.Tensor]:
    window, strides, dilations = geometry
    groups, outputs, inner = channels
    each = outputs // groups

    def define(a: te.Tensor, w: te.Tensor, kind: str, zeros: tuple[int, int]) -> te.Tensor:
        data = padded_data(a)
        taps, loops = taps_of(window)
        if inner > 1 or not loops:
            c = te.reduce_axis((0, inner), "c")
            loops = [*loops, c]
        else:
            c = number(0, "int32")

        def element(*indices: Expr) -> Expr:
            batch, place, o = layout.split(indices)
            group = number(0, "int32") if groups == 1 else o if each == 1 else quotient(o, each)
            at = place_of(place, taps, strides, dilations)
            left = data(*layout.joined(batch, at, group * inner + c))
            right = weight_at(w, taps, c, o)
            factors = (factor(left, kind, zeros[0]), factor(right, kind, zeros[1]))
            return te.sum(factors[0] * factors[1], axis=loops)

        return te.compute(shape, element, name="convolution")

    return define


def transposed_convolution_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a transposed convolution: a convolution of data that zeros are between."""
    data, weight, *bias = operands
    out = graph.region.value(node.output)
    rank = len(out.shape)
    layout = Layout(rank, graph.region.channels_last)
    if not data.is_real:
        node.decline("the instruction set has no transposed convolution of integers")
    given = node.attributes
    strides, dilations = list(given["strides"]), list(given["dilations"])
    groups = int(given["groups"])
    # Channels first: [C, O / groups, taps...]; last: [O / groups, taps..., C].
    window = list(weight.shape[layout.spatial])
    each = weight.shape[1 if layout.axis == 1 else 0]
    inner = data.shape[layout.axis] // groups
    begins = [
        (size - 1) * dilation - pad
        for size, dilation, pad in zip(window, dilations, given["pads_begin"], strict=True)
    ]
    reach = [
        result + (size - 1) * dilation
        for result, size, dilation in zip(out.shape[layout.spatial], window, dilations, strict=True)
    ]
    if weight.array is not None:
        spatial = [*range(rank)[layout.spatial]]
        order = [*spatial, 0, 1] if layout.axis == 1 else [*spatial, rank - 1, 0]
        array = weight.array.transpose(order)
        weight = graph.constant(np.flip(array, tuple(range(len(window)))))

    def spread(tensor: te.Tensor) -> te.Tensor:
        return _spread(tensor, layout, reach, begins, strides, number(0, data.dtype))

    def weight_at(tensor: te.Tensor, taps: Taps, c: Expr, o: Expr) -> Expr:
        place = rest(o, each) if groups > 1 else o
        if groups > 1:
            c = c + (o if each == 1 else quotient(o, each)) * inner
        if operands[1].array is not None:
            return tensor(*taps, c, place)
        back = [size - 1 - tap for size, tap in zip(window, taps, strict=True)]
        return tensor(*((c, place, *back) if layout.axis == 1 else (place, *back, c)))

    define = _convolution(
        out.shape,
        layout,
        (window, [1] * len(window), dilations),
        (groups, each * groups, inner),
        spread,
        weight_at,
    )
    product = Product(define, data, weight, None, math.prod(window) * inner, layout.axis, (0, 0))
    return added_product(graph, node, product, bias[0] if bias else None)


def _spread(
    tensor: te.Tensor,
    layout: Layout,
    sizes: Sequence[int],
    begins: Sequence[int],
    strides: Sequence[int],
    fill: Expr,
) -> te.Tensor:
    """Return a padded tensor with zeros between its elements."""
    if all(stride == 1 for stride in strides):
        return padded(tensor, layout, sizes, begins, fill)
    shape = [int(size) for size in tensor.shape]
    have = shape[layout.spatial]
    shape[layout.spatial] = list(sizes)

    def element(*indices: Expr) -> Expr:
        batch, place, channel = layout.split(indices)
        found, conditions = [], []
        for i, old, begin, stride in zip(place, have, begins, strides, strict=True):
            at = i - begin
            conditions += [at >= 0, at < (old - 1) * stride + 1]
            if stride > 1:
                conditions.append(is_multiple(at, stride))
            found.append(quotient(at, stride) if stride > 1 else at)
        return te.if_then_else(
            te.all(*conditions), tensor(*layout.joined(batch, found, channel)), fill
        )

    return te.compute(shape, element, name="spread")
