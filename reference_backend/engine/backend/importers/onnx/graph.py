# SPDX-License-Identifier: Apache-2.0
"""A graph of ONNX while its operators are rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator

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
    return next((opset.version for opset in model.opset_import if opset.domain in OWN), 1)


def title_of(node: NodeProto) -> str:
    """Return a node for messages: its name, or its first result, and its operator."""
    domain = f"{node.domain}." if node.domain else ""
    return f"{node.name or next(iter(node.output), '')!r} ({domain}{node.op_type})"


def refuse(node: NodeProto, text: str) -> NoReturn:
    """Raise that something about a node is not supported."""
    raise refusal(f"ONNX node {title_of(node)}", text)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {said.name: helper.get_attribute_value(said) for said in node.attribute}


def value_of(node: NodeProto) -> TensorProto | None:
    """Return the value of a node Constant that has it as a tensor; None of other nodes."""
    values = [said.t for said in node.attribute if said.name == "value"]
    return values[0] if values and node.op_type == "Constant" else None


def sizes_of(value: ValueInfoProto) -> list[int | None] | None:
    """Return the sizes of a tensor, with None for each open one; None of an unknown rank."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]


def evaluate(
    node: NodeProto, given: Mapping[str, Array], opsets: Sequence[OperatorSetIdProto]
) -> list[Array] | None:
    """Return what ONNX's reference evaluator computes; None if it cannot.

    `given`: the inputs by name.
    `opsets`: the versions of operators.
    """
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in given.items()
    ]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([node], "node", inputs, outputs), opset_imports=opsets
    )
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(array) for array in ReferenceEvaluator(model).run(None, given)]
    except Exception:  # TVM's importer says what is wrong with the node.
        return None


class Graph:
    """A graph, what is known of its tensors, and the nodes that replace those it has.

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
        self.scalars: dict[str, str] = {}
        """Scalars in place of constants of one element."""
        self.producers = {name: node for node in proto.node for name in node.output if name}
        self.uses = Counter(filter(None, reads(proto)))
        for tensor in proto.initializer:
            self._learn_constant(tensor.name, (weights or {}).get(tensor.name, tensor))
        for node in proto.node:
            self._names.update((*node.input, *node.output))
            tensor = value_of(node)
            if tensor is not None:
                self._learn_constant(node.output[0], tensor)
        for value in (*proto.input, *proto.value_info, *proto.output):
            self._learn_value(value)

    def _learn_constant(self, name: str, tensor: TensorProto) -> None:
        self._constants[name] = tensor
        self._types[name] = tensor.data_type
        self._shapes[name] = list(tensor.dims)
        self._names[name] += 1

    def _learn_value(self, value: ValueInfoProto) -> None:
        self._names[value.name] += 1
        if value.type.tensor_type.elem_type:
            self._types.setdefault(value.name, value.type.tensor_type.elem_type)
        sizes = sizes_of(value)
        if sizes is not None:
            if 0 in sizes:
                self._empty.add(value.name)
            self._shapes.setdefault(value.name, [size or None for size in sizes])

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
        fixed = [size for size in sizes if size is not None]
        return fixed if len(fixed) == len(sizes) else None

    def sizes(self, name: str) -> Sequence[int | None] | None:
        """Return the sizes of a tensor, with None for each that is not known; None of no rank."""
        return self._shapes.get(name)

    def is_empty(self, name: str) -> bool:
        """Whether a tensor is known to have no elements."""
        return name in self._empty

    def single_user(self, name: str, op: str) -> NodeProto | None:
        """Return the node that alone reads a tensor, if it is of an operator."""
        users = [node for node in self.proto.node if name in node.input]
        is_user = self.uses[name] == len(users) == 1 and users[0].op_type == op
        return users[0] if is_user else None

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
            for said in node.attribute:
                if said.type == AttributeProto.TENSOR and said.t.data_type in NARROW:
                    said.t.CopyFrom(_widened(said.t))
        del self.proto.value_info[:]
        for value in (*self.proto.input, *self.proto.output):
            tensor = value.type.tensor_type
            if tensor.elem_type in NARROW:
                tensor.elem_type = NARROW[tensor.elem_type][0]


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
    for said in node.attribute:
        for graph in [said.g] if said.type == AttributeProto.GRAPH else said.graphs:
            yield said.name, graph


def _widened(tensor: TensorProto) -> TensorProto:
    """Return a constant with at least 8 bits per element."""
    if tensor.data_type not in NARROW:
        return tensor
    held = helper.tensor_dtype_to_np_dtype(NARROW[tensor.data_type][0])
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(held), tensor.name)
