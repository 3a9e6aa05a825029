# SPDX-License-Identifier: Apache-2.0
"""Rewrites operators of an ONNX model that TVM's importer does not read, or reads wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, GraphProto, ModelProto

from . import onnx_quantised
from .onnx_graph import DOMAINS, NARROW, Graph, Node, Rule

RULES: Mapping[str, Rule] = {**onnx_quantised.RULES}
"""What rewrites an operator, by its name. A rule may leave a node as it is."""


def normalize(model: ModelProto, outline: ModelProto) -> ModelProto:
    """Rewrite the operators of a model that have a rule.

    Parameters
    ----------
    model
        A model, which is not changed.
    outline
        The same with the types of its tensors, as `onnx_types.outline` returns it.

    Returns
    -------
    model
        A copy, in which quantised operators are QuantizeLinear, DequantizeLinear and operators on
        floats; the model itself if there is nothing to rewrite.
    """
    if not _has_rules(model.graph):
        return model
    result = ModelProto()
    result.CopyFrom(outline)
    del result.graph.initializer[:]
    result.graph.initializer.extend(model.graph.initializer)
    opsets = {item.domain: item.version for item in result.opset_import}
    _rewrite(result.graph, opsets.get("", opsets.get("ai.onnx", 1)), None)
    for value in result.graph.output:
        if value.type.HasField("tensor_type"):
            # ONNX's checker, which TVM asks, wants one.
            value.type.tensor_type.shape.SetInParent()
    # Before version 4, constants had to be inputs too.
    result.ir_version = max(result.ir_version, 4)
    return result


def _has_rules(graph: GraphProto) -> bool:
    values = (*graph.input, *graph.output)
    if any(tensor.data_type in NARROW for tensor in graph.initializer):
        return True
    if any(value.type.tensor_type.elem_type in NARROW for value in values):
        return True
    return any(
        node.op_type in RULES
        or onnx_quantised.is_unknown(node)
        or any(_has_rules(inner) for item in node.attribute for inner in _inner(item))
        for node in graph.node
    )


def _inner(item: AttributeProto) -> Sequence[GraphProto]:
    return [item.g] if item.type == AttributeProto.GRAPH else item.graphs


def _rewrite(proto: GraphProto, opset: int, outer: Graph | None) -> None:
    graph = Graph(proto, opset, outer)
    for index, item in enumerate(proto.node):
        if index in graph.absorbed:
            continue
        node = Node(item)
        for attribute in item.attribute:
            for inner in _inner(attribute):
                _rewrite(inner, opset, graph)
        rule = RULES.get(item.op_type)
        if rule is not None and item.domain in DOMAINS:
            rule(graph, node)
        elif onnx_quantised.is_unknown(item):
            onnx_quantised.refuse_unknown(node)
        else:
            graph.nodes.append(item)
            if item.op_type in _MOVES:
                for name in item.output:
                    graph.learn(name, graph.element_type(item.input[0]))
    graph.finish()


_MOVES = {
    *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad"),
    *("Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"),
    "Unsqueeze",
}
"""Operators whose results have the type of their first input."""
