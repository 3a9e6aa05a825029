# SPDX-License-Identifier: Apache-2.0
"""Shape computations of an ONNX model as constants, and branches that its sizes choose.

ONNX infers the shapes, and its reference evaluator computes what depends on them alone. Integer
weights stay integers: only operators of shape computations are evaluated, on small tensors.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ...shared.aliases import Array
from .graph import OWN, attributes_of, evaluate, graphs_of, opset_of, reads, sizes_of, value_of
from .types import infer

_LEAST_OPSET = 7
_PROPAGATES = 13
"""The version from which on ONNX's own inference follows the elements of shapes."""

_MOST = 2**16
"""The number of elements of a constant up to which it may be a part of a shape computation."""

_MOVES = {
    *("Concat", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
}
"""Operators that move elements, whatever they are."""

_SIZED_BY_VALUES = {"ConstantOfShape", "Expand", "Range", "Tile"}
"""Operators whose results may be much larger than their inputs."""

_OPERATORS = {
    *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "CumSum", "Div", "Equal", "Floor"),
    *("Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "Min", "Mod"),
    *("Mul", "Neg", "NonZero", "Not", "Or", "Pow", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "Round", "ScatterElements", "ScatterND", "Sign", "Sqrt", "Sub", "Sum", "Trilu"),
    *("Where", "Xor"),
    *_MOVES,
    *_SIZED_BY_VALUES,
}
"""Operators of which exporters write shape computations."""

_NUMBERS = {
    *(TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE),
}
"""Element types of shape computations. Of others, such as integer weights, elements only move."""

_HELD = {*(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16), *_NUMBERS}

_NUMERIC = {"value_float", "value_floats", "value_int", "value_ints"}

_OPEN = -(2**62)
"""From here on down, elements stand for sizes that only the run knows."""


def fold(outline: ModelProto) -> bool:
    """Write what only depends on the sizes of a model as constants.

    `outline`: the model with the types of its tensors, as `onnx_types.outline` returns it. It gets
    constants, and loses each If whose condition became one.
    """
    # Before version 7, operators broadcast by an attribute that the evaluator does not know.
    if opset_of(outline) < _LEAST_OPSET:
        return False
    is_folded = False
    resized: dict[str, ValueInfoProto] = {}
    while True:
        folder = _Folder(outline, outline.graph)
        changes = folder.run()
        if not changes and folder.resized.keys() <= resized.keys():
            return is_folded
        is_folded |= changes
        resized = {**folder.resized, **resized}
        infer(outline, also=resized)


class _Folder:
    """A graph whose shape computations are evaluated.

    `model`: the model.
    `graph`: its graph or one inside it, which is changed.
    `outer`: the graph around it.
    """

    def __init__(self, model: ModelProto, graph: GraphProto, outer: _Folder | None = None) -> None:
        self.model = model
        self.graph = graph
        self.values: dict[str, Array] = dict(outer.values) if outer else {}
        """Small constants."""
        self.partly: dict[str, Array] = dict(outer.partly) if outer else {}
        """Small tensors of which some elements are known."""
        self.shapes: dict[str, Sequence[int | None]] = dict(outer.shapes) if outer else {}
        self.types: dict[str, int] = dict(outer.types) if outer else {}
        self.folded: dict[str, Array] = {}
        self.resized: dict[str, ValueInfoProto] = {}
        """Types of results of Resize that ONNX does not infer."""
        for value in (*graph.value_info, *graph.input, *graph.output):
            self.types[value.name] = value.type.tensor_type.elem_type
            sizes = sizes_of(value)
            if sizes is not None:
                self.shapes[value.name] = sizes
        for tensor in graph.initializer:
            self._learn(tensor.name, tensor)

    def _learn(self, name: str, tensor: TensorProto) -> None:
        self.types[name] = tensor.data_type
        self.shapes[name] = list(tensor.dims)
        # The outline has no values of weights.
        if tensor.data_type in _HELD and _has_values(tensor):
            self.values[name] = numpy_helper.to_array(tensor)

    def run(self) -> bool:
        """Fold the graph; return whether anything has changed."""
        changed = False
        kept: list[NodeProto] = []
        waiting = deque(self.graph.node)
        while waiting:
            node = waiting.popleft()
            branch = self._branch(node)
            if branch is not None:
                waiting.extendleft(reversed(self._inlined(node, branch, (*kept, *waiting))))
                changed = True
                continue
            tensor = value_of(node)
            if tensor is not None:
                self._learn(node.output[0], tensor)
            for inner in graphs_of(node):
                changed |= _Folder(self.model, inner, self).run()
            self._resize(node)
            results = self._results(node)
            if results is None:
                kept.append(node)
            else:
                self.values.update(results)
                self.folded.update(results)
        if changed or self.folded:
            self._finish(kept)
        return changed or bool(self.folded)

    def _finish(self, nodes: Sequence[NodeProto]) -> None:
        """Put the nodes that are needed, and the new constants, into the graph."""
        needed = {value.name for value in self.graph.output}
        kept: list[NodeProto] = []
        for node in reversed(nodes):
            if needed.isdisjoint(node.output):
                continue
            kept.append(node)
            needed.update(node.input)
            for inner in graphs_of(node):
                needed.update(reads(inner))
        del self.graph.node[:]
        self.graph.node.extend(reversed(kept))
        self.graph.initializer.extend(
            numpy_helper.from_array(array, name)
            for name, array in self.folded.items()
            if name in needed
        )

    # ---- Values ---------------------------------------------------------------------------------

    def _results(self, node: NodeProto) -> dict[str, Array] | None:
        """Return the results of a node, if they are known."""
        if node.domain not in OWN:
            return None
        if node.op_type in ("Shape", "Size"):
            return self._sizes(node)
        inputs = [name for name in node.input if name]
        attributes = attributes_of(node)
        # TVM's importer reads no Constant but those that are tensors.
        is_number = node.op_type == "Constant" and not attributes.keys().isdisjoint(_NUMERIC)
        if not is_number and not (node.op_type in _OPERATORS and inputs):
            return None
        is_wide = node.op_type == "Cast" and attributes.get("to") == TensorProto.INT64
        moves = node.op_type in _MOVES or is_wide
        data = len(inputs) if node.op_type == "Concat" else 1
        given = {name: self.values[name] for name in inputs if name in self.values}
        for name in inputs[: data if moves else 0]:
            if name in self.partly:
                given[name] = self.partly[name]
        if len(given) < len(set(inputs)) or not self._is_small(node, given):
            return None
        if node.op_type not in _MOVES and any(self.types[i] not in _NUMBERS for i in given):
            return None
        results = self._computed(node, given)
        if any(name in self.partly for name in inputs):
            for name, array in (results or {}).items():
                if (array <= _OPEN).any():
                    self.partly[name] = array
                    self._know(name, array)
                    results = None
        for name, array in (results or {}).items():
            self._know(name, array)
        return results

    def _know(self, name: str, array: Array) -> None:
        self.types[name] = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.shapes[name] = array.shape

    def _sizes(self, node: NodeProto) -> dict[str, Array] | None:
        shape, output = self.shapes.get(node.input[0]), node.output[0]
        if shape is None:
            return None
        ends = attributes_of(node)
        if node.op_type == "Shape":
            shape = shape[ends.get("start", 0) : ends.get("end", len(shape))]
        sizes = [_OPEN - i if size is None else size for i, size in enumerate(shape)]
        array = np.array(sizes, "int64")
        self._know(output, array)
        if None in shape:
            if node.op_type == "Shape":
                self.partly[output] = array
            return None
        return {output: array if node.op_type == "Shape" else np.array(math.prod(sizes), "int64")}

    def _resize(self, node: NodeProto) -> None:
        """Learn the sizes of a result of which some are known, as ONNX does from version 13 on."""
        if node.op_type != "Resize" or node.domain not in OWN or len(node.input) < 4:
            return
        sizes, kind = self.partly.get(node.input[3]), self.types.get(node.input[0])
        if opset_of(self.model) < _PROPAGATES and sizes is not None and kind:
            shape = [None if size <= _OPEN else int(size) for size in sizes.reshape(-1)]
            name = node.output[0]
            self.resized[name] = helper.make_tensor_value_info(name, kind, shape)

    def _is_small(self, node: NodeProto, given: Mapping[str, Array]) -> bool:
        """Whether the results of a node are small; whether they are is asked before they are."""
        if any(array.size > _MOST for array in given.values()):
            return False
        shapes = [self.shapes.get(name) for name in node.output if name]
        if all(shape is not None and None not in shape for shape in shapes):
            sizes = [math.prod(size or 0 for size in shape or ()) for shape in shapes]
            return sum(sizes) <= _MOST
        if node.op_type in _SIZED_BY_VALUES:
            return False
        return math.prod(max(array.size, 1) for array in given.values()) <= 16 * _MOST

    def _computed(self, node: NodeProto, given: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return what ONNX's reference evaluator computes, if it has the types of the outline."""
        arrays = evaluate(node, given, self.model.opset_import)
        if arrays is None:
            return None
        results = dict(zip(filter(None, node.output), arrays, strict=True))
        try:
            kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in results.items()}
        except Exception:  # No tensor, such as an optional value.
            return None
        if any(self.types.get(name) not in (None, 0, kind) for name, kind in kinds.items()):
            return None
        return results

    # ---- Branches -------------------------------------------------------------------------------

    def _branch(self, node: NodeProto) -> GraphProto | None:
        """Return the branch that an If takes, if it always takes the same."""
        if node.op_type != "If" or node.domain not in OWN:
            return None
        condition = self.values.get(node.input[0])
        if condition is None or condition.size != 1 or condition.dtype != bool:
            return None
        return attributes_of(node).get("then_branch" if condition.item() else "else_branch")

    def _inlined(
        self, node: NodeProto, branch: GraphProto, others: Iterable[NodeProto]
    ) -> Sequence[NodeProto]:
        """Return the nodes of a branch, with names that no other tensor has."""
        graph = GraphProto()
        graph.CopyFrom(branch)
        taken = {*self.types, *self.shapes, *_names(others)}
        own = [tensor.name for tensor in graph.initializer]
        own += [name for inner in graph.node for name in inner.output if name]
        renamed: dict[str, str] = {}
        for name in own:
            new = name
            while new in taken:
                new += "_"
            taken.add(new)
            renamed[name] = new
        _rename(graph, renamed)
        for value in graph.value_info:
            kind = value.type.tensor_type
            self.types.setdefault(value.name, kind.elem_type)
        for tensor in graph.initializer:
            self._learn(tensor.name, tensor)
        self.graph.initializer.extend(graph.initializer)
        ends = [
            helper.make_node("Identity", [inner.name], [name], node.name or name)
            for inner, name in zip(graph.output, node.output, strict=True)
            if name
        ]
        return [*graph.node, *ends]


def _has_values(tensor: TensorProto) -> bool:
    size = math.prod(tensor.dims)
    return size <= _MOST and (not size or len(tensor.ListFields()) > 3 or bool(tensor.raw_data))


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors other names in a graph and in those inside it."""
    for value in (*graph.initializer, *graph.value_info, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for group in (node.input, node.output):
            group[:] = [names.get(name, name) for name in group]
        for inner in graphs_of(node):
            _rename(inner, names)


def _names(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the names of all tensors of nodes, and of those in the graphs inside them."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input, node.output)
        for inner in graphs_of(node):
            names |= {tensor.name for tensor in inner.initializer} | _names(inner.node)
    return names
