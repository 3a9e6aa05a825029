# SPDX-License-Identifier: Apache-2.0
"""Refuses what a graph of ONNX says and neither TVM's importer nor a rule of ours reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from onnx import GraphProto, NodeProto, numpy_helper

from ..onnx.graph import attributes_of, graphs_of, title_of, value_of
from .onnx_schemas import row_of, schema_of
from .readings import load
from .unread import MISSING, Given, refuses, require_read

if TYPE_CHECKING:
    from ...shared.aliases import Array


def require_importer(graph: GraphProto, opset: int) -> None:
    """Refuse nodes of which TVM's importer would not read all."""
    _require(graph, opset, _constants(graph))


def _require(graph: GraphProto, opset: int, constants: Mapping[str, Array]) -> None:
    rows = load("onnx")["importer"]
    for node in graph.node:
        for inner in graphs_of(node):
            _require(inner, opset, {**constants, **_constants(inner)})
        row = row_of(rows, node.op_type, node.domain, opset)
        if row is None:
            if node.domain and row_of(rows, node.op_type, "", opset) is not None:
                raise ValueError(
                    f"the node {title_of(node)}: the importer would read it as ONNX's "
                    f"{node.op_type}; supported is that of ai.onnx"
                )
            continue
        given = list(_given(node, opset, constants))
        outputs = {"outputs": sum(1 for name in node.output if name)}
        require_read("onnx", title_of(node), node.op_type, row, given, outputs)


def require_rule(node: NodeProto, opset: int, constant: Callable[[str], object]) -> None:
    """Refuse a node of which our rule would not read all.

    `constant`: returns the value of a tensor, or None if it is not known.
    """
    row = row_of(load("onnx")["rules"], node.op_type, node.domain, opset)
    if row is None:
        row = row_of(load("onnx")["rules"], node.op_type, "com.microsoft", opset)
    # What a rule hands on, TVM's importer must read: `require_importer` asks for that.
    if row is None or row.get("hands_on") or refuses(row):
        return
    constants = {name: constant(name) for name in node.input}
    given = list(_given(node, opset, {k: v for k, v in constants.items() if v is not None}))
    require_read("onnx", title_of(node), node.op_type, row, given)


def _given(node: NodeProto, opset: int, constants: Mapping[str, object]) -> Iterator[Given]:
    schema = schema_of(node.op_type, node.domain, opset) or schema_of(
        node.op_type, "com.microsoft", opset
    )
    defaults = schema.defaults if schema else {}
    names = schema.inputs if schema else ()
    for name, value in attributes_of(node).items():
        default = defaults.get(name)
        yield Given(name, value, MISSING if default is None else default)
    for place, tensor in enumerate(node.input):
        if tensor and names:
            name = names[min(place, len(names) - 1)]
            yield Given(f"input {name}", _scalar(constants.get(tensor, tensor)))


def _scalar(value: object) -> object:
    return value.item() if getattr(value, "size", 0) == 1 else value  # type: ignore[attr-defined]


def _constants(graph: GraphProto) -> dict[str, Array]:
    """Return the small constants of a graph."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {node.output[0]: value for node in graph.node if (value := value_of(node))}
    return {
        name: numpy_helper.to_array(tensor)
        for name, tensor in tensors.items()
        if not tensor.dims or list(tensor.dims) == [1]
    }
