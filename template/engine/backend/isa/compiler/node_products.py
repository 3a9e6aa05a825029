# SPDX-License-Identifier: Apache-2.0
"""Matmul, and what it has in common with convolutions.

All are `result[..., n] += data[..., k] * weight[..., k, n]`, with channels last: constant weights
are stored as that needs it, and zero points of integers, whose effect on a result is a number for
each channel then, are part of the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import te

from ...sdk.npu_region.region import Node
from .elements import Expr, elementwise, number, real
from .graph import Array, Graph, Limits, Operand, fits, limits_of


@dataclass(frozen=True)
class Product:
    """Data times weights.

    `define` is the function of loops, of data and weights as tensors, an accumulator's type and
    the factors' zero points. `weights` are the elements of a constant weight as [k, n], where `n`
    counts the channels of the result along `axis`, and `depth` is the size of k.
    """

    define: Callable[[te.Tensor, te.Tensor, str, tuple[int, int]], te.Tensor]
    data: Operand
    weight: Operand
    weights: Array | None
    depth: int
    axis: int
    zeros: tuple[int, int]


def added_product(graph: Graph, node: Node, product: Product, bias: Operand | None) -> Operand:
    """Add a product, and its bias.

    Parameters
    ----------
    graph
        Where to add it.
    node
        The node that it belongs to.
    product
        The product.
    bias
        What is added to the channels of the result, or None.

    Returns
    -------
    result
        Its result.

    Raises
    ------
    Declined
        The instruction set has no product of such elements.
    """
    data, weight = product.data, product.weight
    if not graph.region.has_elements:
        product = replace(product, weights=None)
    if data.is_real != weight.is_real:
        node.decline("the instruction set has no product of real numbers and integers")
    if data.is_real:
        result = _sum_of(graph, node, product, "float32", (0, 0), None)
        if bias is not None:
            result = _with_bias(graph, product, result, bias, "float32", None)
        dtype = graph.dtype_of(node)
        if dtype == "float32":
            return result
        return elementwise(graph, "cast", [result], dtype, lambda a: a)
    kind = "int64" if "int16" in (data.dtype, weight.dtype) else "int32"
    zeros, bound, total = product.zeros, *_bounds(product)
    added, added_limits = np.zeros(1, np.int64), (0, 0)
    limits = total
    is_exact = fits(bound, "int32") and fits(total, "int32")
    if zeros[0] and not zeros[1] and product.weights is not None and is_exact:
        # The zero point of the data times all weights of a channel, which is a constant.
        added = -zeros[0] * product.weights.sum(0, dtype=np.int64)
        zeros, limits = (0, 0), bound
    accumulator = "int32" if fits(limits, "int32") else kind
    limits = limits if fits(limits, accumulator) else limits_of(accumulator)
    result = _sum_of(graph, node, product, accumulator, zeros, limits)
    exact = total if is_exact else limits
    if bias is not None and bias.array is not None:
        added, added_limits = added + bias.array.astype(np.int64).reshape(-1), bias.limits
        bias = None
    if added.any():
        exact = exact[0] + added_limits[0], exact[1] + added_limits[1]
        result = _with_bias(graph, product, result, graph.constant(_narrow(added)), "", exact)
    if bias is not None:
        exact = result.limits[0] + bias.limits[0], result.limits[1] + bias.limits[1]
        result = _with_bias(graph, product, result, bias, "", exact)
    return result


def _narrow(array: Array) -> Array:
    limits = int(array.min()), int(array.max())
    return array.astype("int32") if fits(limits, "int32") else array


def _bounds(product: Product) -> tuple[Limits, Limits]:
    """Return the limits of the sums of elements, and of elements less their zero points."""
    # Padding is a zero point.
    ends = (*product.data.limits, product.zeros[0])
    reaches = [
        _reach(product, zero) * max(abs(end - of_data) for end in ends)
        for of_data, zero in ((0, 0), product.zeros)
    ]
    return (-reaches[0], reaches[0]), (-reaches[1], reaches[1])


def _reach(product: Product, zero: int) -> int:
    """Return the largest sum of the absolute values of a channel's weights."""
    if product.weights is None:
        return product.depth * max(abs(end - zero) for end in product.weight.limits)
    sizes = np.abs(product.weights.astype(np.int32) - zero)
    return int(sizes.sum(0, dtype=np.int64).max())


def _sum_of(
    graph: Graph,
    node: Node,
    product: Product,
    kind: str,
    zeros: tuple[int, int],
    limits: Limits | None,
) -> Operand:
    return graph.add(
        node.op,
        lambda data, weight: product.define(data, weight, kind, zeros),
        [product.data, product.weight],
        limits,
    )


def _with_bias(
    graph: Graph,
    product: Product,
    result: Operand,
    bias: Operand,
    dtype: str,
    limits: Limits | None,
) -> Operand:
    shape = [1] * (len(result.shape) - product.axis)
    shape[0] = bias.shape[0] if bias.shape else 1
    bias = graph.reshaped(bias, shape)
    if limits is None:
        return elementwise(graph, "bias", [result, bias], dtype, lambda a, b: real(a) + real(b))
    kind = "int32" if fits(limits, "int32") else "int64"
    return elementwise(
        graph, "bias", [result, bias], kind, lambda a, b: a.astype(kind) + b.astype(kind), limits
    )


def factor(element: Expr, kind: str, zero: int) -> Expr:
    """Return an element less its zero point in the type of an accumulator."""
    element = real(element) if kind == "float32" else element.astype(kind)
    return element - number(zero, kind) if zero else element


# ---- Matmul -------------------------------------------------------------------------------------


def matmul_node(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a matmul."""
    data, weight, *bias = operands
    transpose_a, transpose_b = (node.attributes[f"transpose_{side}"] for side in "ab")
    if transpose_b and weight.array is not None:
        weight = graph.constant(weight.array.swapaxes(-1, -2))
        transpose_b = False
    depth = data.shape[-2 if transpose_a else -1]
    shape = graph.region.value(node.output).shape

    def define(a: te.Tensor, b: te.Tensor, kind: str, zeros: tuple[int, int]) -> te.Tensor:
        k = te.reduce_axis((0, depth), "k")

        def batch_of(tensor: te.Tensor, batch: Sequence[Expr]) -> list[Expr]:
            sizes = [int(size) for size in tensor.shape][:-2]
            own = batch[len(batch) - len(sizes) :]
            zero = number(0, "int64")
            return [zero if size == 1 else i for size, i in zip(sizes, own, strict=True)]

        def element(*indices: Expr) -> Expr:
            *batch, m, n = indices
            left = a(*batch_of(a, batch), *((k, m) if transpose_a else (m, k)))
            right = b(*batch_of(b, batch), *((n, k) if transpose_b else (k, n)))
            factors = (factor(left, kind, zeros[0]), factor(right, kind, zeros[1]))
            return te.sum(factors[0] * factors[1], axis=[k])

        return te.compute(shape, element, name="matmul")

    weights = (
        weight.array.reshape(-1, *weight.array.shape[-2:]) if weight.array is not None else None
    )
    if weights is not None and len(weights) > 1:
        # The zero point of the data counts otherwise in each.
        weights = None
    zeros = (int(node.attributes["a_zero_point"]), int(node.attributes["b_zero_point"]))
    product = Product(
        define,
        data,
        weight,
        None if weights is None else weights[0],
        depth,
        len(shape) - 1,
        zeros,
    )
    return added_product(graph, node, product, bias[0] if bias else None)
