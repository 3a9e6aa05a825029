# SPDX-License-Identifier: Apache-2.0
"""Writes ONNX operators in place of a node, as the model's version of ONNX has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import helper

from .graph import Graph, Node

_AXES_ARE_INPUTS = 13
_FEW = 8
"""Elements of a constant that is shared by all nodes that read the same."""


class Writer:
    """Writes nodes in place of one; what only depends on constants is computed at once.

    `graph`: the graph that gets the nodes.
    `node`: the node that they replace, by whose name messages and reports know them.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node
        self._origin = node.proto.name or node.proto.output[0]
        self._small: dict[tuple[str, Sequence[int], bytes], str] = {}

    def constant(self, array: npt.ArrayLike, dtype: str = "") -> str:
        """Add a constant; return its name."""
        value = np.asarray(array, dtype or None)
        key = (str(value.dtype), value.shape, value.tobytes() if value.size <= _FEW else b"")
        if value.size > _FEW or key not in self._small:
            name = self.graph.add_constant(f"{self._origin}_constant", value)
            self._small[key] = name
            return name
        return self._small[key]

    def integers(self, *values: int) -> str:
        """Add a vector of int64; return its name."""
        return self.constant(values, "int64")

    def op(self, op: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Add a node; return the name of its output."""
        return self.graph.emit(op, inputs, attributes, output, like=self.node)

    def dtype(self, name: str) -> str:
        """Return the element type of a tensor of the model; one that is not known is refused."""
        kind = self.graph.element_type(name)
        if not kind:
            self.node.refuse(f"the type of its input {name!r} is not known")
        return str(helper.tensor_dtype_to_np_dtype(kind))

    # ---- Arithmetic, which is computed for constants --------------------------------------------

    def add(self, x: str, y: str) -> str:
        """Add two tensors."""
        one, other = self.graph.constant(x), self.graph.constant(y)
        if one is not None and other is not None:
            return self.constant(one + other)
        return self.op("Add", x, y)

    def transpose(self, x: str, order: Sequence[int], output: str = "") -> str:
        """Reorder the axes of a tensor."""
        array = self.graph.constant(x)
        if list(order) == sorted(order) and not output:
            return x
        if array is not None and not output:
            return self.constant(np.ascontiguousarray(array.transpose(order)))
        return self.op("Transpose", x, output=output, perm=list(order))

    def reshape(self, x: str, shape: Sequence[int], output: str = "") -> str:
        """Reshape a tensor; a size of 0 is that of the input."""
        array = self.graph.constant(x)
        if array is not None and 0 not in shape and not output:
            return self.constant(array.reshape(shape))
        return self.op("Reshape", x, self.integers(*shape), output=output)

    def part(self, x: str, axis: int, start: int, stop: int) -> str:
        """Return a range along an axis."""
        array = self.graph.constant(x)
        if array is not None:
            where = (slice(None),) * axis + (slice(start, stop),)
            return self.constant(np.ascontiguousarray(array[where]))
        if self.graph.opset < 10:
            # TVM's importer reads no Slice of these versions.
            return self.op("Gather", x, self.integers(*range(start, stop)), axis=axis)
        ends = [self.integers(value) for value in (start, stop, axis)]
        return self.op("Slice", x, *ends)

    def split(self, x: str, axis: int, count: int) -> list[str]:
        """Cut a tensor into equal parts."""
        if count == 1:
            return [x]
        outputs = [self.graph.fresh(f"{self._origin}_Split") for _ in range(count)]
        attributes: dict[str, object] = {"axis": axis}
        if self.graph.opset >= 18:
            attributes["num_outputs"] = count
        name = f"{self._origin}_Split"
        self.graph.nodes.append(helper.make_node("Split", [x], outputs, name, **attributes))
        return outputs

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add axes of size 1."""
        array = self.graph.constant(x)
        if array is not None:
            return self.constant(np.expand_dims(array, axes))
        return self._with_axes("Unsqueeze", x, axes)

    def squeeze(self, x: str, *axes: int) -> str:
        """Remove axes of size 1."""
        array = self.graph.constant(x)
        if array is not None:
            return self.constant(array.squeeze(axes))
        return self._with_axes("Squeeze", x, axes)

    def sum(self, x: str, *axes: int) -> str:
        """Sum over axes, which are removed."""
        return self._with_axes("ReduceSum", x, axes, keepdims=0)

    def _with_axes(self, op: str, x: str, axes: Sequence[int], **attributes: object) -> str:
        if self.graph.opset < _AXES_ARE_INPUTS:
            return self.graph.emit(op, [x], {"axes": list(axes), **attributes}, like=self.node)
        return self.graph.emit(op, [x, self.integers(*axes)], attributes, like=self.node)

    def clip(self, x: str, bound: float, dtype: str) -> str:
        """Limit elements to a range around 0."""
        if self.graph.opset < 11:
            return self.op("Clip", x, min=-bound, max=bound)
        ends = [self.constant(value, dtype) for value in (-bound, bound)]
        return self.op("Clip", x, *ends)
