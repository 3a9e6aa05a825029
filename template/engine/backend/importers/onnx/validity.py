# SPDX-License-Identifier: Apache-2.0
"""Refuses nodes whose inputs and attributes do not fit each other by the rules of ONNX.

ONNX's own inference finds most of them, `known_values` others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from onnx import GraphProto, ModelProto, NodeProto, shape_inference

from ..declared import Declared
from ..failures import refusal
from .contrib_types import with_deputies
from .graph import DOMAINS, Graph, all_nodes, graphs_of, named_graphs, opset_of, title_of
from .known_values import require_values
from .node import Node
from .types import declared

_ENTRY = re.compile(r"\(op_type:.*?(?:, node name: (\d+))?\): ")
_LENIENT = ("Einsum", "Range")
"""Operators that may read more than ONNX says, and still have one meaning.

Einsum with fewer axes in one `...` than in another, and Range between vectors of one element.
"""

_NOISE = re.compile(r"\[(?:Shape|Type)InferenceError\] *| in node \w+ \(\d+\)")
"""What ONNX writes around the reason: the kind of its error, and our number of the node."""


def require_valid(model: ModelProto, outline: ModelProto, with_sizes: bool = True) -> None:
    """Refuse a model with a node whose inputs and attributes do not fit each other.

    `outline`: the same with the types of its tensors, and with what only depends on its sizes
    folded.
    `with_sizes`: whether the sizes of its results hold, which the model may declare for other
    inputs.
    """
    _require_inferred(outline)
    opset = opset_of(model)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    _require_graph(Graph(outline.graph, opset, weights=weights))
    _require_results(model.graph, outline.graph, with_sizes)


def _require_graph(graph: Graph, branch: str = "") -> None:
    for node in graph.proto.node:
        if node.domain in DOMAINS:
            with _in_branch(branch):
                require_values(Node(node, graph))
        for inner, within in _graphs(node, branch):
            _require_graph(Graph(inner, graph.opset, graph), within)


def _graphs(node: NodeProto, branch: str) -> Iterator[tuple[GraphProto, str]]:
    """Generate the graphs inside a node, each with the branch of an If that it is or lies in."""
    for name, inner in named_graphs(node):
        yield inner, f"the {name} of {title_of(node)}" if node.op_type == "If" else branch


def _places(
    graph: GraphProto, outer: Mapping[str, Declared] | None = None, branch: str = ""
) -> Iterator[tuple[Mapping[str, Declared], str]]:
    """Generate where each node is, in the order of `all_nodes`: the types there, its branch."""
    types = {**(outer or {}), **declared(graph)}
    for node in graph.node:
        yield types, branch
        for inner, within in _graphs(node, branch):
            yield from _places(inner, types, within)


@contextmanager
def _in_branch(branch: str) -> Iterator[None]:
    """Add to refusals that they are about a branch, which may never be taken."""
    try:
        yield
    except ValueError as error:
        if branch:
            error.args = (f"{error}; {_why(branch)}",)
        raise


def _why(branch: str) -> str:
    return (
        f"it is in {branch}, and each branch must suit the sizes of the model's inputs, also one "
        "that no call takes: compile with other sizes, or replace the If by the branch that is used"
    )


def _require_inferred(outline: ModelProto) -> None:
    """Refuse a model with a node to whose results ONNX gives no type."""
    plain = ModelProto()
    plain.CopyFrom(outline)
    _forget(plain.graph)
    nodes = list(all_nodes(plain.graph))
    titles = [title_of(node) for node in nodes]
    for number, node in enumerate(nodes):
        node.name = str(number)
    try:
        known = with_deputies(plain)
        shape_inference.infer_shapes(known, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        for line in str(error).splitlines():
            entries = list(_ENTRY.finditer(line))
            # Nodes inside functions of ONNX itself have no number, and ONNX infers them wrongly.
            number = int(entries[-1][1] or -1) if entries else -1
            if number >= 0 and nodes[number].op_type not in _LENIENT:
                said = _NOISE.sub("", line[entries[-1].end() :]).strip().rstrip(".")
                types, branch = list(_places(outline.graph))[number]
                why = f"it is not valid: {said}{_inputs(nodes[number], types)}"
                why += f"; {_why(branch)}" if branch else ""
                raise refusal(f"ONNX node {titles[number]}", why) from error


def _require_results(graph: GraphProto, outline: GraphProto, with_sizes: bool) -> None:
    """Refuse types that contradict what ONNX infers; sizes only of results of the model."""
    said, inferred = declared(graph), declared(outline)
    results = {value.name for value in graph.output}
    for name in sorted(said.keys() & inferred.keys()):
        declares, infers = said[name], inferred[name]
        # Exporters write no dimensions for a shape that they do not know, too.
        shape = declares.shape if with_sizes and name in results and declares.shape else None
        if shape is not None:
            shape = [None if size == -1 else size for size in shape]
        declares = declares._replace(shape=shape)
        if not declares.agrees(infers):
            makers = [title_of(node) for node in graph.node if name in node.output]
            where = f"ONNX node {makers[0]}: " if makers else ""
            raise ValueError(
                f"{where}the model declares the result {name!r} as {declares}, and by ONNX it is "
                f"{infers}; correct the type in the file, or export the model again"
            )


def _forget(graph: GraphProto) -> None:
    """Remove what the file says of results, which may be outdated."""
    del graph.value_info[:]
    for value in graph.output:
        value.ClearField("type")
    for node in graph.node:
        for inner in graphs_of(node):
            _forget(inner)


def _inputs(node: NodeProto, types: Mapping[str, Declared]) -> str:
    titles = [f"{name!r} of {types[name]}" for name in node.input if name in types]
    return f"; it reads {', '.join(titles)}" if titles else ""
