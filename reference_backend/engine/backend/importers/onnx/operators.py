# SPDX-License-Identifier: Apache-2.0
"""Rewrites operators of an ONNX model that TVM's importer does not read, or reads wrongly."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, ModelProto

from ..attributes.onnx_unread import require_rule
from ..failures import refused_at
from . import (
    attention,
    attributes,
    caches,
    einsum,
    grouped_attention,
    multi_head_attention,
    norms,
    quantized_operators,
    recurrent,
    resize,
    rotary,
    windows,
)
from .graph import DOMAINS, NARROW, Graph, graphs_of, opset_of, reads, title_of
from .node import Node, Rule

RULES: Mapping[str, Rule] = {
    **attention.RULES,
    **attributes.RULES,
    **caches.RULES,
    **einsum.RULES,
    **grouped_attention.RULES,
    **multi_head_attention.RULES,
    **norms.RULES,
    **quantized_operators.RULES,
    **recurrent.RULES,
    **resize.RULES,
    **rotary.RULES,
    **windows.RULES,
}
"""What rewrites an operator, by its name. A rule may leave a node as it is."""


def normalize(model: ModelProto, outline: ModelProto, is_folded: bool = False) -> ModelProto:
    """Rewrite the operators of a model that have a rule.

    `outline`: the same with the types of its tensors, as `onnx_types.outline` returns it.
    `is_folded`: whether the outline has other nodes or constants than the model.

    A copy, in which each operator with a rule is one or more that TVM's importer reads rightly: a
    quantized one is an operator on floats between DequantizeLinear and QuantizeLinear. The model
    itself if there is nothing to rewrite.
    """
    given, outlined = (
        [value.SerializeToString() for value in graph.input]
        for graph in (model.graph, outline.graph)
    )
    if not is_folded and given == outlined and not _has_rules(model.graph):
        return model
    names = {tensor.name for tensor in model.graph.initializer}
    read = set(reads(outline.graph))
    result = ModelProto()
    result.CopyFrom(outline)
    del result.graph.initializer[:]
    result.graph.initializer.extend(i for i in model.graph.initializer if i.name in read)
    result.graph.initializer.extend(i for i in outline.graph.initializer if i.name not in names)
    _rewrite(result.graph, opset_of(result), None)
    for value in result.graph.output:
        if value.type.HasField("tensor_type"):
            # TVM runs ONNX's checker, which demands a shape.
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
        or quantized_operators.is_unknown(node)
        or any(_has_rules(inner) for inner in graphs_of(node))
        for node in graph.node
    )


def _rewrite(proto: GraphProto, opset: int, outer: Graph | None) -> None:
    graph = Graph(proto, opset, outer)
    for index, node in enumerate(proto.node):
        if index in graph.absorbed:
            continue
        for inner in graphs_of(node):
            _rewrite(inner, opset, graph)
        rule = RULES.get(node.op_type)
        if rule is not None and node.domain in DOMAINS:
            require_rule(node, opset, graph.constant)
            # For example, of a scale that is infinite, which no valid node has.
            with refused_at(f"ONNX node {title_of(node)}", str):
                rule(Node(node, graph))
        elif quantized_operators.is_unknown(node):
            quantized_operators.refuse_unknown(node)
        else:
            graph.nodes.append(node)
        if node.op_type in _MOVES:
            element_type = graph.element_type(next(iter(node.input), ""))
            for name in node.output if node.op_type == "Split" else node.output[:1]:
                graph.learn(name, element_type)
    graph.finish()


_MOVES = {
    *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad"),
    *("Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"),
    "Unsqueeze",
}
"""Operators whose first result, of Split each, has the type of their first input."""
