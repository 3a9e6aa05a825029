# SPDX-License-Identifier: Apache-2.0
"""Normalizations of ONNX Runtime, in operators of each version of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from onnx import TensorProto

from .node import Node, Rule


def _simplified(node: Node) -> None:
    x, weight = node.inputs(2)
    node.require_first_alone()
    axis = node.attributes.get("axis", -1)
    sizes, rank = node.sizes(x), len(node.sizes(weight) or ())
    if axis not in (-1, len(sizes or ()) - 1) or rank != 1:
        node.refuse(
            f"axis={axis}, with a scale of {rank} axes; supported is the last axis, with a scale "
            "for each of its elements"
        )
    if node.attributes.get("stash_type", 1) != 1:
        node.refuse("supported is stash_type=1 (float)")
    _root_mean_square(node, x, weight, 1e-5)


def _skip(is_centred: bool, node: Node) -> None:
    """Write the sum of two tensors, which is a result, too, and its normalization."""
    if is_centred:
        x, skip, weight, shift, bias = node.inputs(5)
    else:
        x, skip, weight, bias = node.inputs(4)
    _, *statistics, total = [*node.proto.output, "", "", ""][:4]
    for name in statistics:
        if node.graph.uses[name]:
            node.refuse(
                f"its result {name!r} is not supported; supported are the first one and the sum"
            )
    if bias:
        x = node.add(x, bias)
    total = node.write("Add", x, skip, output=total)
    if is_centred:
        _layer_norm(node, total, weight, shift)
    else:
        _root_mean_square(node, total, weight, 1e-12)


def _root_mean_square(node: Node, x: str, weight: str, epsilon: float) -> None:
    dtype = node.dtype(node.proto.input[0])
    if dtype in ("float32", "float64"):
        node.result("Mul", node.write("Div", x, _root(node, x, epsilon, dtype)), weight)
        return
    # ONNX Runtime computes the root of float16 in float32.
    wide = node.cast(x, TensorProto.FLOAT)
    scaled = node.write("Div", wide, _root(node, wide, epsilon, "float32"))
    narrow = node.cast(scaled, node.element_type(node.proto.input[0]))
    node.result("Mul", narrow, weight)


def _layer_norm(node: Node, x: str, weight: str, shift: str) -> None:
    epsilon = node.attributes.get("epsilon", 1e-12)
    if node.graph.opset >= 17:
        inputs = [x, weight, shift][: 3 if shift else 2]
        node.result("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
        return
    centred = node.write("Sub", x, _mean(node, x))
    dtype = node.dtype(node.proto.input[0])
    scaled = node.write(
        "Mul", node.write("Div", centred, _root(node, centred, 1e-12, dtype)), weight
    )
    node.result("Add", scaled, shift or node.literal(0, dtype))


def _root(node: Node, x: str, epsilon: float, dtype: str) -> str:
    """Return the root of the mean square along the last axis."""
    mean = _mean(node, node.write("Mul", x, x))
    least = node.literal(node.attributes.get("epsilon", epsilon), dtype)
    return node.write("Sqrt", node.write("Add", mean, least))


def _mean(node: Node, x: str) -> str:
    if node.graph.opset < 18:
        return node.write("ReduceMean", x, axes=[-1], keepdims=1)
    return node.write("ReduceMean", x, node.integers(-1), keepdims=1)


RULES: Mapping[str, Rule] = {
    "SimplifiedLayerNormalization": _simplified,
    "SkipLayerNormalization": partial(_skip, True),
    "SkipSimplifiedLayerNormalization": partial(_skip, False),
}
