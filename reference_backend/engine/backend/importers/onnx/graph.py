# SPDX-License-Identifier: Apache-2.0
"""A graph of ONNX while its operators are rewritten."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ...shared.aliases import Array
from ..failures import refusal

NARROW = {
    TensorProto.INT4: (TensorProto.INT8, -8, 7),
    TensorProto.UINT4: (TensorProto.UINT8, 0, 15),
    TensorProto.INT2: (TensorProto.INT8, -2, 1),
    TensorProto.UINT2: (TensorProto.UINT8, 0, 3),
}
"""Element types of less than 8 bits: the type that holds them, and their range."""

OWN = ("", "ai.onnx")
"""The names of ONNX's own domain."""

DOMAINS = (*OWN, "com.microsoft")
"""The domains of known operators; TVM's importer ignores domains."""


def opset_of(model: ModelProto) -> int:
    """Return the version of ONNX's own operators in a model."""
    return next((item.version for item in model.opset_import if item.domain in OWN), 1)


def title_of(node: NodeProto) -> str:
    """Return a node for messages: its name, or its first result, and its operator."""
    domain = f"{node.domain}." if node.domain else ""
    return f"{node.name or next(iter(node.output), '')!r} ({domain}{node.op_type})"


class Node:
    """A node with its attributes as a mapping.

    `proto`: the node.
    """

    def __init__(self, proto: NodeProto) -> None:
        self.proto = proto
        self.attributes: dict[str, Any] = {
            item.name: helper.get_attribute_value(item) for item in proto.attribute
        }

    def inputs(self, count: int) -> list[str]:
        """Return the names of its inputs; "" for each that is absent."""
        names = [*self.proto.input, *[""] * count]
        return names[:count]

    def refuse(self, text: str) -> NoReturn:
        """Raise that something about it is not supported."""
        raise refusal(f"ONNX node {title_of(self.proto)}", text)


class Graph:
    """A graph, and the nodes that replace those it has.

    `proto`: the graph, which is changed.
    `opset`: the version of ONNX's own operators in the model.
    `outer`: the graph around it, whose tensors it sees.
    `weights`: constants of which the graph lacks the values, by name.
    """

    def __init__(
        self,
        proto: GraphProto,
        opset: int,
        outer: Graph | None = None,
        weights: Mapping[str, TensorProto] | None = None,
    ) -> None:
        self.proto = proto
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.absorbed: set[int] = set()
        """Positions of nodes that an earlier one has absorbed."""
        self._constants: dict[str, TensorProto] = dict(outer._constants) if outer else {}
        self._types: dict[str, int] = dict(outer._types) if outer else {}
        self._shapes: dict[str, Sequence[int | None]] = dict(outer._shapes) if outer else {}
        self._empty: set[str] = set(outer._empty) if outer else set()
        self._names: Counter[str] = outer._names if outer else Counter()
        self._scalars: dict[str, str] = {}
        self.producers = {name: node for node in proto.node for name in node.output if name}
        self.uses = Counter(filter(None, reads(proto)))
        for tensor in proto.initializer:
            self._learn_constant(tensor.name, (weights or {}).get(tensor.name, tensor))
        for node in proto.node:
            self._names.update((*node.input, *node.output))
            for item in node.attribute:
                if node.op_type == "Constant" and item.name == "value":
                    self._learn_constant(node.output[0], item.t)
        for value in (*proto.input, *proto.value_info, *proto.output):
            self._learn_value(value)

    def _learn_constant(self, name: str, tensor: TensorProto) -> None:
        self._constants[name] = tensor
        self._types[name] = tensor.data_type
        self._shapes[name] = list(tensor.dims)
        self._names[name] += 1

    def _learn_value(self, value: ValueInfoProto) -> None:
        tensor = value.type.tensor_type
        self._names[value.name] += 1
        if tensor.elem_type:
            self._types.setdefault(value.name, tensor.elem_type)
        if tensor.HasField("shape"):
            sizes = [item.dim_value or None for item in tensor.shape.dim]
            if any(item.HasField("dim_value") and not item.dim_value for item in tensor.shape.dim):
                self._empty.add(value.name)
            self._shapes.setdefault(value.name, sizes)

    # ---- What is known --------------------------------------------------------------------------

    def constant(self, name: str) -> Array | None:
        """Return the value of a constant; elements of less than 8 bits have 8."""
        tensor = self._constants.get(name)
        if tensor is None:
            return None
        array: Array = numpy_helper.to_array(tensor)
        if tensor.data_type in NARROW:
            held, _, _ = NARROW[tensor.data_type]
            array = array.astype(helper.tensor_dtype_to_np_dtype(held))
        return array

    def element_type(self, name: str) -> int:
        """Return the element type of a tensor in the original model; 0 if it is not known."""
        return self._types.get(name, 0)

    def shape(self, name: str) -> Sequence[int] | None:
        """Return the sizes of a tensor, if all are known."""
        sizes = self._shapes.get(name, (None,))
        known = [size for size in sizes if size is not None]
        return known if len(known) == len(sizes) else None

    def sizes(self, name: str) -> Sequence[int | None] | None:
        """Return the sizes of a tensor, with None for each that is not known; None of no rank."""
        return self._shapes.get(name)

    def is_empty(self, name: str) -> bool:
        """Whether a tensor is known to have no elements."""
        return name in self._empty

    def require_first_alone(self, node: Node) -> None:
        """Refuse a node of whose results another one than the first is read."""
        for name in node.proto.output[1:]:
            if self.uses[name]:
                node.refuse(
                    f"its result {name!r} is not supported; supported is the first result alone"
                )

    def users(self, name: str) -> list[NodeProto]:
        """Return the nodes that read a tensor."""
        return [node for node in self.proto.node if name in node.input]

    def learn(self, name: str, element_type: int, shape: Sequence[int] | None = None) -> None:
        """Remember what a rule knows about a tensor."""
        if element_type:
            self._types[name] = element_type
        if shape is not None:
            self._shapes[name] = shape

    # ---- New nodes ------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """Return a name that no tensor has."""
        self._names[name] += 1
        while self._names[name] > 1:
            name = f"{name}_{self._names[name]}"
            self._names[name] += 1
        return name

    def add_constant(self, name: str, array: npt.ArrayLike) -> str:
        """Add a constant; return its name."""
        tensor = numpy_helper.from_array(np.asarray(array), self.fresh(name))
        self.proto.initializer.append(tensor)
        self._learn_constant(tensor.name, tensor)
        return str(tensor.name)

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, object] | None = None,
        output: str = "",
        like: Node | None = None,
    ) -> str:
        """Add a node; return the name of its output.

        `output`: the name of its output; by default a new one.
        """
        origin = like.proto.name or like.proto.output[0] if like else op
        output = output or self.fresh(f"{origin}_{op}")
        name = f"{origin}_{op}" if like else ""
        self.nodes.append(helper.make_node(op, inputs, [output], name, **(attributes or {})))
        return output

    def scalar(self, name: str) -> str:
        """Return a constant of one element as a scalar, and other tensors as they are."""
        array = self.constant(name)
        if array is None or array.ndim == 0 or array.size != 1:
            return name
        if name not in self._scalars:
            self._scalars[name] = self.add_constant(f"{name}_scalar", array.reshape(()))
        return self._scalars[name]

    def scale(self, node: Node, name: str) -> str:
        """Return a scale in float32, whatever its type is."""
        if self.element_type(name) not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            return self.scalar(name)
        array = self.constant(name)
        if array is not None:
            return self.scalar(self.add_constant(f"{name}_float32", array.astype("float32")))
        return self.emit("Cast", [name], {"to": TensorProto.FLOAT}, like=node)

    def axis_of(self, node: Node, scale: str, axis: int) -> int | None:
        """Return the axis along which a scale of a quantized operator lies; None if it is one."""
        shape = self.shape(scale)
        if shape is None:
            node.refuse(
                f"its scale {scale!r} is computed in the graph, and its shape is not known; "
                "supported are constants, inputs of the model, and scales of DynamicQuantizeLinear"
            )
        if math.prod(shape) == 1:
            return None
        if len(shape) != 1:
            node.refuse(
                f"its scale {scale!r} has the shape {list(shape)}; supported are one scale, and a "
                "vector with one for each channel"
            )
        return axis

    def dequantize(
        self, node: Node, x: str, scale: str, zero_point: str, axis: int | None = None
    ) -> str:
        """Add a DequantizeLinear; return the name of its output.

        `x`, `scale`, `zero_point`: its inputs; an absent zero point is "".
        `axis`: the axis of the channels if the scale is a vector.
        """
        along = None if axis is None else self.axis_of(node, scale, axis)
        inputs = [x, self.scale(node, scale), self.scalar(zero_point)][: 3 if zero_point else 2]
        return self.emit(
            "DequantizeLinear", inputs, None if along is None else {"axis": along}, like=node
        )

    def quantize(self, node: Node, x: str, scale: str, zero_point: str, like: str) -> None:
        """Add the QuantizeLinear that computes the output of a node.

        `x`, `scale`, `zero_point`: the inputs; an absent zero point is "".
        `like`: names of tensors of the same type, which it needs if the zero point is absent.
        """
        if not zero_point:
            kind = self.element_type(like)
            if not kind:
                node.refuse(
                    "it has no zero point for its output, and the type of its input is not known; "
                    "write a zero point of 0 of the type that you mean"
                )
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            zero_point = self.add_constant(f"{x}_zero_point", np.zeros((), dtype))
        if self.axis_of(node, scale, 0) is not None:
            shape = self.shape(scale)
            node.refuse(
                f"the scale {scale!r} of its output has the shape {shape}; supported is one"
            )
        output = node.proto.output[0]
        self.learn(output, self.element_type(zero_point))
        inputs = [x, self.scale(node, scale), self.scalar(zero_point)]
        self.emit("QuantizeLinear", inputs, output=output, like=node)

    # ---- The end --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Put the new nodes into the graph, and hold narrow elements in 8 bits."""
        del self.proto.node[:]
        self.proto.node.extend(self.nodes)
        used = set(reads(self.proto))
        kept = [tensor for tensor in self.proto.initializer if tensor.name in used]
        kept = [_widened(tensor) for tensor in kept]
        del self.proto.initializer[:]
        self.proto.initializer.extend(kept)
        for node in self.proto.node:
            for item in node.attribute:
                if item.type == AttributeProto.TENSOR and item.t.data_type in NARROW:
                    item.t.CopyFrom(_widened(item.t))
        del self.proto.value_info[:]
        for value in (*self.proto.input, *self.proto.output):
            tensor = value.type.tensor_type
            if tensor.elem_type in NARROW:
                tensor.elem_type = NARROW[tensor.elem_type][0]


Rule = Callable[[Graph, Node], None]
"""Rewrites a node: it adds others to the graph, or the node itself if TVM reads it rightly."""


def all_nodes(proto: GraphProto) -> Iterator[NodeProto]:
    """Generate the nodes of a graph, and of those inside it."""
    for node in proto.node:
        yield node
        for inner in graphs_of(node):
            yield from all_nodes(inner)


def reads(proto: GraphProto) -> Sequence[str]:
    """Return the names of all tensors that a graph and those inside it read."""
    names = [value.name for value in (*proto.output, *proto.input)]
    for node in proto.node:
        names += node.input
        for inner in graphs_of(node):
            names += reads(inner)
    return names


def graphs_of(node: NodeProto) -> Sequence[GraphProto]:
    """Return the graphs inside a node, such as the branches of an If."""
    return [graph for _, graph in named_graphs(node)]


def named_graphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Generate the graphs inside a node, each with the name of its attribute."""
    for item in node.attribute:
        for graph in [item.g] if item.type == AttributeProto.GRAPH else item.graphs:
            yield item.name, graph


def _widened(tensor: TensorProto) -> TensorProto:
    """Return a constant with at least 8 bits per element."""
    if tensor.data_type not in NARROW:
        return tensor
    held = helper.tensor_dtype_to_np_dtype(NARROW[tensor.data_type][0])
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(held), tensor.name)
