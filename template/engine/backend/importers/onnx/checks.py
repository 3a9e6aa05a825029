# SPDX-License-Identifier: Apache-2.0
"""Refuses ONNX graphs that cannot be computed, before anything reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
)

from .einsum import equation_of
from .graph import OWN, attributes_of, graphs_of, opset_of, refuse, title_of


def require_sound(model: ModelProto) -> None:
    """Refuse a model with a node that reads what no earlier node computes."""
    for value in model.graph.input:
        _require_tensor(value)
    opset, latest = opset_of(model), defs.onnx_opset_version()
    if not 1 <= opset <= latest:
        raise ValueError(
            f"the model has version {opset} of ONNX's operators; the installed onnx knows those "
            f"from 1 to {latest}: install a later onnx, or export the model with one of these"
        )
    _require_graph(model.graph, (), opset)
    own = [node for node in model.graph.node if node.domain in OWN]
    if own and not any(entry.domain in OWN for entry in model.opset_import):
        refuse(
            own[0],
            "the model does not say which version of ONNX's operators it has; write it into its "
            "opset_import",
        )


def _require_tensor(value: ValueInfoProto) -> None:
    """Refuse an input that no tensor of TVM can be."""
    kind = value.type.WhichOneof("value")
    what = "" if kind in ("tensor_type", "optional_type", None) else kind.partition("_")[0]
    if value.type.tensor_type.elem_type == TensorProto.STRING:
        what = "string tensor"
    if value.type.tensor_type.elem_type not in {TensorProto.UNDEFINED, *_TYPES}:
        what = f"tensor of the type {value.type.tensor_type.elem_type}"
    if what:
        raise ValueError(
            f"the input {value.name!r} of the ONNX model is a {what}, which is not supported; "
            "supported are tensors of numbers and truth values"
        )


def _require_constant(tensor: TensorProto) -> None:
    """Refuse a constant whose type is none, or whose file is not said."""
    why = ""
    if tensor.data_type not in _TYPES:
        why = f"is of the type {tensor.data_type}, which the installed onnx does not know"
    elif tensor.data_location == TensorProto.EXTERNAL:
        said = {entry.key: entry.value for entry in tensor.external_data}
        why = "" if said.get("location") else "is in another file, whose name the model lacks"
    if why:
        raise ValueError(f"the constant {tensor.name!r} of the ONNX model {why}")


_TYPES = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}


def _require_graph(graph: GraphProto, outer: Collection[str], opset: int) -> None:
    given = [value.name for value in graph.input]
    twice = [name for name, count in Counter(given).items() if count > 1]
    if twice:
        raise ValueError(f"the ONNX graph {graph.name!r} has several inputs {twice[0]!r}")
    for tensor in graph.initializer:
        _require_constant(tensor)
    own = {*given, *(tensor.name for tensor in graph.initializer)}
    readable = {*outer, "", *own}
    makers = {name: node for node in reversed(graph.node) for name in node.output}
    made: set[str] = set()
    for tensor in graph.sparse_initializer:
        raise ValueError(
            f"the constant {tensor.values.name!r} of the ONNX graph {graph.name!r} is sparse, "
            "which is not supported; write it as a dense one"
        )
    for node in graph.node:
        _require_operator(node, opset)
        for name in node.input:
            if name not in readable:
                _refuse_input(node, name, makers.get(name))
        for inner in graphs_of(node):
            _require_graph(inner, readable, opset)
        for name in filter(None, node.output):
            if name in made:
                first = title_of(makers[name])
                refuse(node, f"its result {name!r} is that of the node {first}, too")
            if name in own:
                refuse(node, f"its result {name!r} is an input or a constant, too")
            made.add(name)
            readable.add(name)
    for value in graph.output:
        if value.name not in readable:
            raise ValueError(
                f"the ONNX graph {graph.name!r} has the result {value.name!r}, which no node "
                "computes"
            )


def _require_operator(node: NodeProto, opset: int) -> None:
    if not node.op_type:
        refuse(node, "it has no operator")
    if not any(node.output):
        refuse(node, "it has no result")
    if node.domain in OWN and defs.has(node.op_type):
        _require_whole(node, opset)
    if node.op_type == "Einsum":
        equation_of(node, attributes_of(node))


def _require_whole(node: NodeProto, opset: int) -> None:
    """Refuse a node that lacks an input or an attribute that its operator must have."""
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:  # A later version has it.
        return
    given = {about.name: about.type for about in node.attribute}
    for name, about in schema.attributes.items():
        if about.required and name not in given:
            refuse(node, f"its attribute {name} is missing")
        kind, required = given.get(name), int(about.type)
        if kind is not None and kind != required:
            names = [AttributeProto.AttributeType.Name(value) for value in (kind, required)]
            refuse(node, f"its attribute {name} is of type {names[0]}, and must be {names[1]}")
    for what, names, most in (
        ("inputs", node.input, schema.max_input),
        ("results", node.output, schema.max_output),
    ):
        if len(names) > most:
            refuse(node, f"it has {len(names)} {what}, and may have {most}")
    if len(node.input) < schema.min_input:
        refuse(node, f"it has {len(node.input)} inputs, and needs {schema.min_input}")


def _refuse_input(node: NodeProto, name: str, maker: NodeProto | None) -> None:
    why = "no node computes it, and it is neither an input nor a constant"
    if maker is node:
        why = "it is its own result"
    elif maker is not None:
        why = (
            f"the later node {title_of(maker)} computes it: the nodes form a cycle, or are not in "
            "an order in which they can be computed"
        )
    refuse(node, f"its input {name!r} is not known there: {why}")
