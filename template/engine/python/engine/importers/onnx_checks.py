# SPDX-License-Identifier: Apache-2.0
"""What makes an ONNX graph none that can be computed, before anyone reads it."""

from __future__ import annotations

from collections.abc import Collection

from onnx import GraphProto, ModelProto, NodeProto

from .onnx_einsum import equation_of
from .onnx_graph import Node


def require_sound(model: ModelProto) -> None:
    """Refuse a model whose nodes do not come each after those that it reads.

    Parameters
    ----------
    model
        The model.

    Raises
    ------
    ValueError
        It is none; the message names the node and the tensor.
    """
    _require_graph(model.graph, ())
    versions = {item.domain or "ai.onnx" for item in model.opset_import}
    own = [node for node in model.graph.node if node.domain in ("", "ai.onnx")]
    if own and "ai.onnx" not in versions:
        Node(own[0]).refuse(
            "the model does not say which version of ONNX's operators it has; write it into its "
            "opset_import"
        )


def _require_graph(graph: GraphProto, outer: Collection[str]) -> None:
    known = {*outer, ""}
    known.update(value.name for value in graph.input)
    known.update(tensor.name for tensor in graph.initializer)
    makers = {name: node for node in reversed(graph.node) for name in node.output}
    made: set[str] = set()
    for tensor in graph.sparse_initializer:
        raise ValueError(
            f"the constant {tensor.values.name!r} of the ONNX graph {graph.name!r} is sparse, "
            "which is not supported; write it as a dense one"
        )
    for node in graph.node:
        _require_operator(node)
        for name in node.input:
            if name not in known:
                _refuse_input(node, name, makers.get(name))
        for item in node.attribute:
            for inner in (item.g, *item.graphs):
                _require_graph(inner, known)
        for name in filter(None, node.output):
            if name in made:
                first = Node(makers[name]).title
                Node(node).refuse(f"its result {name!r} is that of the {first}, too")
            made.add(name)
            known.add(name)
    for value in graph.output:
        if value.name not in known:
            raise ValueError(
                f"the ONNX graph {graph.name!r} has the result {value.name!r}, which no node "
                "computes"
            )


def _require_operator(node: NodeProto) -> None:
    if not node.op_type:
        Node(node).refuse("it has no operator")
    if not any(node.output):
        Node(node).refuse("it has no result")
    if node.op_type == "Einsum":
        equation_of(Node(node))


def _refuse_input(node: NodeProto, name: str, maker: NodeProto | None) -> None:
    why = "no node computes it, and it is neither an input nor a constant"
    if maker is node:
        why = "it is its own result"
    elif maker is not None:
        why = (
            f"the later {Node(maker).title} computes it: the nodes form a cycle, or are not in an "
            "order in which they can be computed"
        )
    Node(node).refuse(f"its input {name!r} is not known there: {why}")
