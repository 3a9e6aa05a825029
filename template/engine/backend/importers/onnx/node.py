# SPDX-License-Identifier: Apache-2.0
"""A node of an ONNX graph, and what rules write in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from .graph import Graph, attributes_of, refuse

_AXES_ARE_INPUTS = 13
_FEW = 8
"""Elements of a constant that is shared by all nodes that read the same."""


class Node:
    """A node, and the nodes that replace it, in the version of ONNX that the model has.

    What only depends on constants is computed at once.
    """

    def __init__(self, proto: NodeProto, graph: Graph) -> None:
        self.proto, self.graph = proto, graph
        self.attributes = attributes_of(proto)
        self.constant, self.element_type = graph.constant, graph.element_type
        self.shape, self.sizes, self.is_empty = graph.shape, graph.sizes, graph.is_empty
        self._origin = proto.name or next(iter(proto.output), "")
        self._small: dict[tuple[str, Sequence[int], bytes], str] = {}

    def inputs(self, count: int) -> list[str]:
        """Return the names of its inputs; "" for each that is absent."""
        names = [*self.proto.input, *[""] * count]
        return names[:count]

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        value = self.attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def dtype(self, name: str) -> str:
        """Return the element type of a tensor of the model; one that is not known is refused."""
        kind = self.element_type(name)
        if not kind:
            self.refuse(f"the type of its input {name!r} is not known")
        return str(helper.tensor_dtype_to_np_dtype(kind))

    def refuse(self, text: str) -> NoReturn:
        """Raise that something about the node is not supported."""
        refuse(self.proto, text)

    def require_first_alone(self) -> None:
        """Refuse the node if another result than the first is read."""
        for name in self.proto.output[1:]:
            if self.graph.uses[name]:
                self.refuse(
                    f"its result {name!r} is not supported; supported is the first result alone"
                )

    # ---- What replaces it -----------------------------------------------------------------------

    def keep(self) -> None:
        """Leave the node as it is: TVM's importer reads it rightly."""
        self.graph.nodes.append(self.proto)

    def write(
        self,
        op: str,
        *inputs: str,
        output: str = "",
        attributes: Mapping[str, object] | None = None,
        **named: object,
    ) -> str:
        """Write a node; return the name of its result, which is a new one by default."""
        name = f"{self._origin}_{op}"
        output = output or self.graph.fresh(name)
        node = helper.make_node(op, inputs, [output], name, **{**(attributes or {}), **named})
        self.graph.nodes.append(node)
        return output

    def result(
        self, op: str, *inputs: str, attributes: Mapping[str, object] | None = None, **named: object
    ) -> None:
        """Write the node that computes its first result."""
        self.write(op, *inputs, output=self.proto.output[0], attributes=attributes, **named)

    def literal(self, array: npt.ArrayLike, dtype: str = "", name: str = "") -> str:
        """Write a constant; return its name, which may begin with a given one."""
        value = np.asarray(array, dtype or None)
        if name or value.size > _FEW:
            return self.graph.add_constant(name or f"{self._origin}_constant", value)
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._small:
            self._small[key] = self.graph.add_constant(f"{self._origin}_constant", value)
        return self._small[key]

    def integers(self, *values: int) -> str:
        """Write a vector of int64; return its name."""
        return self.literal(values, "int64")

    def cast(self, x: str, kind: int) -> str:
        """Convert a tensor to an element type, by its number in ONNX."""
        return self.write("Cast", x, to=kind)

    def matmul(self, a: str, b: str, bias: str) -> None:
        """Write the result as a product of matrices, to which a bias is added if there is one."""
        if bias:
            self.result("Add", self.write("MatMul", a, b), bias)
        else:
            self.result("MatMul", a, b)

    def add(self, x: str, y: str) -> str:
        """Add two tensors."""
        left, right = self.constant(x), self.constant(y)
        if left is not None and right is not None:
            return self.literal(left + right)
        return self.write("Add", x, y)

    def transpose(self, x: str, order: Sequence[int], output: str = "") -> str:
        """Reorder the axes of a tensor."""
        array = self.constant(x)
        if list(order) == sorted(order) and not output:
            return x
        if array is not None and not output:
            return self.literal(np.ascontiguousarray(array.transpose(order)))
        return self.write("Transpose", x, output=output, perm=list(order))

    def reshape(self, x: str, shape: Sequence[int], output: str = "") -> str:
        """Reshape a tensor; a size of 0 is that of the input."""
        array = self.constant(x)
        if array is not None and 0 not in shape and not output:
            return self.literal(array.reshape(shape))
        return self.write("Reshape", x, self.integers(*shape), output=output)

    def part(self, x: str, axis: int, start: int, stop: int) -> str:
        """Return a range along an axis."""
        array = self.constant(x)
        if array is not None:
            where = (slice(None),) * axis + (slice(start, stop),)
            return self.literal(np.ascontiguousarray(array[where]))
        if self.graph.opset < 10:
            # TVM's importer reads no Slice of these versions.
            return self.write("Gather", x, self.integers(*range(start, stop)), axis=axis)
        ends = [self.integers(value) for value in (start, stop, axis)]
        return self.write("Slice", x, *ends)

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
        array = self.constant(x)
        if array is not None:
            return self.literal(np.expand_dims(array, axes))
        return self._with_axes("Unsqueeze", x, axes)

    def squeeze(self, x: str, *axes: int) -> str:
        """Remove axes of size 1."""
        array = self.constant(x)
        if array is not None:
            return self.literal(array.squeeze(axes))
        return self._with_axes("Squeeze", x, axes)

    def sum(self, x: str, *axes: int) -> str:
        """Sum over axes, which are removed."""
        return self._with_axes("ReduceSum", x, axes, keepdims=0)

    def _with_axes(self, op: str, x: str, axes: Sequence[int], **attributes: object) -> str:
        if self.graph.opset < _AXES_ARE_INPUTS:
            return self.write(op, x, axes=list(axes), attributes=attributes)
        return self.write(op, x, self.integers(*axes), attributes=attributes)

    def clip(self, x: str, bound: float, dtype: str) -> str:
        """Limit elements to a range around 0."""
        if self.graph.opset < 11:
            return self.write("Clip", x, min=-bound, max=bound)
        ends = [self.literal(value, dtype) for value in (-bound, bound)]
        return self.write("Clip", x, *ends)

    # ---- Quantized operators --------------------------------------------------------------------

    def scalar(self, name: str) -> str:
        """Return a constant of one element as a scalar, and other tensors as they are."""
        array = self.constant(name)
        if array is None or array.ndim == 0 or array.size != 1:
            return name
        if name not in self.graph.scalars:
            self.graph.scalars[name] = self.literal(array.reshape(()), name=f"{name}_scalar")
        return self.graph.scalars[name]

    def scale(self, name: str) -> str:
        """Return a scale in float32, whatever its type is."""
        if self.element_type(name) not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            return self.scalar(name)
        array = self.constant(name)
        if array is not None:
            return self.scalar(self.literal(array, "float32", f"{name}_float32"))
        return self.cast(name, TensorProto.FLOAT)

    def axis_of(self, scale: str, axis: int) -> int | None:
        """Return the axis along which a scale of a quantized operator lies; None if it is one."""
        shape = self.shape(scale)
        if shape is None:
            self.refuse(
                f"its scale {scale!r} is computed in the graph, and its shape is not known; "
                "supported are constants, inputs of the model, and scales of DynamicQuantizeLinear"
            )
        if math.prod(shape) == 1:
            return None
        if len(shape) != 1:
            self.refuse(
                f"its scale {scale!r} has the shape {list(shape)}; supported are one scale, and a "
                "vector with one for each channel"
            )
        return axis

    def dequantize(self, x: str, scale: str, zero_point: str, axis: int | None = None) -> str:
        """Write a DequantizeLinear; return the name of its result.

        `x`, `scale`, `zero_point`: its inputs; an absent zero point is "".
        `axis`: the axis of the channels if the scale is a vector.
        """
        along = None if axis is None else self.axis_of(scale, axis)
        inputs = [x, self.scale(scale), self.scalar(zero_point)][: 3 if zero_point else 2]
        attributes = {} if along is None else {"axis": along}
        return self.write("DequantizeLinear", *inputs, attributes=attributes)

    def quantize(self, x: str, scale: str, zero_point: str, like: str) -> None:
        """Write the QuantizeLinear that computes the result.

        `x`, `scale`, `zero_point`: the inputs; an absent zero point is "".
        `like`: names of tensors of the same type, which it needs if the zero point is absent.
        """
        if not zero_point:
            kind = self.element_type(like)
            if not kind:
                self.refuse(
                    "it has no zero point for its output, and the type of its input is not known; "
                    "write a zero point of 0 of the type that you mean"
                )
            dtype = str(helper.tensor_dtype_to_np_dtype(kind))
            zero_point = self.literal(0, dtype, f"{x}_zero_point")
        if self.axis_of(scale, 0) is not None:
            shape = self.shape(scale)
            self.refuse(
                f"the scale {scale!r} of its output has the shape {shape}; supported is one"
            )
        self.graph.learn(self.proto.output[0], self.element_type(zero_point))
        inputs = [x, self.scale(scale), self.scalar(zero_point)]
        self.result("QuantizeLinear", *inputs)


Rule = Callable[[Node], None]
"""Rewrites a node: writes others in its place, or keeps it if TVM reads it rightly."""
