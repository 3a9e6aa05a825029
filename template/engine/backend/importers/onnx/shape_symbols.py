# SPDX-License-Identifier: Apache-2.0
"""Shape computations of an ONNX model on sizes that only the run knows.

TVM's importer reads few of them. Here the elements of their tensors are known as numbers and
expressions of symbols, with which Reshape and its like get sizes that later passes understand.
Whatever else reads such a tensor gets a call that makes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import helper
from tvm import relax

from ...ir.calls import Constant
from ...shared.aliases import Array, Attributes
from ..sizes import tiled
from .demands import Asked
from .graph import evaluate
from .shape_elements import (
    Element,
    Unknown,
    arithmetic,
    array_of,
    broadcast,
    is_open,
    is_whole,
    largest,
    least,
    proves,
    simple,
)

_MOST = 1024
"""The number of elements up to which a constant may be a part of a shape computation."""

_MOVES: Mapping[str, Sequence[int] | None] = {
    "Concat": None,
    **dict.fromkeys(("Flatten", "Gather", "GatherElements", "GatherND", "Identity"), (0,)),
    **dict.fromkeys(("Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Expand", "Tile"), (0,)),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}
"""Operators that move elements, with the inputs that have them; None for all inputs."""

_OF_ONE_TYPE = {
    *("Add", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"),
    *("Min", "Mod", "Mul", "Sub", "Sum", "Where"),
}
"""Operators whose inputs have one element type."""

_TYPES = {"int32", "int64", "float32", "bool"}
_READS_SIZES = {"ConstantOfShape": 0, "Reshape": 1}
"""Operators of which TVM's converters take sizes with symbols, with the input that has them."""


class Symbols:
    """The tensors of a model whose elements are sizes, and what is computed from them.

    `builder`: makes calls.
    `weights`: constants that are parameters, by the name of their variable, as TVM's importer has
    them.
    """

    def __init__(
        self, builder: relax.BlockBuilder, weights: Mapping[str, Sequence[relax.Expr]]
    ) -> None:
        self._builder = builder
        self._weights = weights
        self._known: dict[relax.Expr, Array] = {}

    def is_known(self, expr: relax.Expr | None) -> bool:
        """Whether a tensor comes from a shape computation, so that its elements are known."""
        return expr is not None and expr in self._known

    def computed(
        self, op: str, inputs: Sequence[relax.Expr | None], attributes: Attributes, opset: int
    ) -> relax.Expr | None:
        """Return what an operator of a shape computation computes.

        A tensor, or a tuple of them; None if TVM's importer is to read the node.
        """
        try:
            if op in ("Shape", "Size"):
                _require_rank(inputs[0])
                return self._measured(op, inputs[0], attributes)
            if op == "Expand":
                return self._expanded(*inputs[:2])
            if op == "Slice" and not self.is_known(inputs[0]):
                return self._sliced(*inputs[:5])
            if not any(map(self.is_known, inputs)):
                return None
            if op == "Range":
                return self._counted(*inputs)
            if op == "Tile" and not self.is_known(inputs[0]):
                return self._tiled(*inputs[:2])
            elements = [None if x is None else self._elements(x) for x in inputs]
            dtypes = [str(x.ty.dtype) for x in inputs if x is not None]
            if op in _OF_ONE_TYPE:
                _require_one_type(op, inputs)
            if op in _MOVES:
                results = _moved(op, elements, attributes, opset)
                data = _MOVES[op] or (0,)
                return self._tuple(results, dtypes[data[0]])
            if op in ("Cast", "CastLike"):
                return self._cast(op, elements, dtypes, attributes)
            array, dtype = arithmetic(op, elements, dtypes, attributes)
            return self._tensor(array, dtype)
        except Unknown:
            return None

    def asked(
        self, inputs: Sequence[relax.Expr | None], attributes: Attributes, opset: int
    ) -> Asked:
        """Return what is known about the inputs of a node."""

        def elements(place: int) -> Sequence[Element] | None:
            try:
                x = inputs[place] if place < len(inputs) else None
                return None if x is None else self._elements(x).reshape(-1).tolist()
            except Unknown:
                return None

        return Asked([_sizes_if_known(x) for x in inputs], attributes, elements, opset)

    def for_converter(
        self, op: str, inputs: Sequence[relax.Expr | None], attributes: Attributes
    ) -> Sequence[relax.Expr | None]:
        """Return the inputs of an operator with a shape in place of a tensor if TVM takes one."""
        place = _READS_SIZES.get(op)
        if place is None or inputs[place] not in self._known:
            return inputs
        sizes = self._vector(inputs[place], "shape")
        if not any(map(is_open, sizes)):
            return inputs
        if attributes.get("allowzero") and 0 in [size for size in sizes if not is_open(size)]:
            # In a shape of TVM, a 0 stands for the size of the input.
            raise ValueError("a size of 0 beside open ones is not supported with allowzero=1")
        result = list(inputs)
        result[place] = relax.ShapeExpr(sizes)
        return type(inputs)(result)  # type: ignore[call-arg]

    def as_tensor(self, result: relax.Expr) -> relax.Expr:
        """Return what a converter of TVM has made, as a tensor if it is a shape."""
        if isinstance(result, relax.ShapeExpr):
            return self._tensor(array_of(result.values), "int64")
        ty = getattr(result, "ty", None)
        if isinstance(ty, relax.ShapeType):
            return self._builder.normalize(relax.op.shape_to_tensor(result))
        return result

    # ---- What is known --------------------------------------------------------------------------

    def _elements(self, expr: relax.Expr) -> Array:
        """Return the elements of a tensor: whole numbers, and expressions of symbols."""
        if expr in self._known:
            return self._known[expr]
        if isinstance(expr, relax.Var) and expr.name in self._weights:
            array: Array = self._weights[expr.name][1].numpy()
        elif isinstance(expr, Constant):
            array = expr.value.numpy()
        else:
            raise Unknown
        if array.size > _MOST or str(array.dtype) not in _TYPES or not is_whole(array):
            raise Unknown
        return array_of(array.astype("int64").reshape(-1).tolist()).reshape(array.shape)

    def _vector(self, expr: relax.Expr | None, name: str) -> Sequence[Element]:
        """Return the elements of a tensor that must be a vector."""
        if expr is None:
            raise Unknown
        elements = self._elements(expr)
        if elements.ndim != 1:
            raise ValueError(f"its {name} has rank {elements.ndim}; supported is a vector")
        return list(elements)

    def _tuple(self, results: Sequence[Array], dtype: str) -> relax.Expr:
        tensors = [self._tensor(x, dtype) for x in results]
        return tensors[0] if len(tensors) == 1 else relax.Tuple(tensors)

    def _tensor(self, elements: Array, dtype: str) -> relax.Expr:
        """Return a tensor with given elements, and remember them."""
        flat = [simple(size) for size in elements.reshape(-1)]
        if all(isinstance(size, int) for size in flat):
            result = relax.const(np.array(flat, dtype).reshape(elements.shape), dtype)
        else:
            result = relax.op.shape_to_tensor(relax.ShapeExpr(flat))
            if elements.ndim != 1:
                result = relax.op.reshape(result, elements.shape)
            if dtype != "int64":
                result = relax.op.astype(result, dtype)
            result = self._builder.normalize(result)
        self._known[result] = array_of(flat).reshape(elements.shape)
        return result

    # ---- Operators ------------------------------------------------------------------------------

    def _measured(self, op: str, x: relax.Expr | None, attributes: Attributes) -> relax.Expr:
        values = _sizes_of(x)
        if op == "Size":
            return self._tensor(array_of([math.prod(values)]).reshape(()), "int64")
        first, end = attributes.get("start", 0), attributes.get("end", len(values))
        return self._tensor(array_of(values[first:end]), "int64")

    def _expanded(self, x: relax.Expr | None, shape: relax.Expr | None) -> relax.Expr:
        given = _sizes_of(x)
        if shape is None or not (self.is_known(shape) or any(map(is_open, given))):
            raise Unknown
        target_sizes = self._vector(shape, "shape")
        count = max(len(given), len(target_sizes))
        pairs = zip(
            [*[1] * (count - len(given)), *given],
            [*[1] * (count - len(target_sizes)), *target_sizes],
            strict=True,
        )
        target = relax.ShapeExpr([broadcast(size, wide) for size, wide in pairs])
        return self._builder.normalize(relax.op.broadcast_to(x, target))

    def _counted(self, *inputs: relax.Expr | None) -> relax.Expr:
        """Return numbers in equal steps, which are whole."""
        given = [self._elements(x).reshape(-1) for x in inputs if x is not None]
        if len(given) != 3 or any(x.size != 1 for x in given):
            raise ValueError("its start, limit and step are not one element each")
        start, limit, step = (x.item() for x in given)
        dtype = _require_one_type("Range", inputs)
        if is_open(step) or not step:
            raise Unknown
        distance, size = (limit - start, step) if step > 0 else (start - limit, -step)
        count = largest(simple((distance + size - 1) // size), 0)
        numbers = relax.op.arange(0, count, 1, "int64")
        if step != 1:
            numbers = relax.op.multiply(numbers, relax.const(step, "int64"))
        if is_open(start):
            first = relax.op.shape_to_tensor(relax.ShapeExpr([start]))
            numbers = relax.op.add(numbers, first)
        elif start:
            numbers = relax.op.add(numbers, relax.const(start, "int64"))
        numbers = numbers if dtype == "int64" else relax.op.astype(numbers, dtype)
        return self._builder.normalize(numbers)

    def _sliced(self, x: relax.Expr | None, *given: relax.Expr | None) -> relax.Expr:
        """Return a part of a tensor, with ends inside it, so that TVM need not limit them."""
        sizes = _sizes_of(x)
        names = ("starts", "ends", "axes", "steps")
        bounds = [
            None if item is None else self._vector(item, name)
            for item, name in zip(given, names, strict=False)
        ]
        starts, ends, axes, steps = [*bounds, None, None, None, None][:4]
        if starts is None or ends is None:
            raise Unknown
        axes = list(range(len(starts))) if axes is None else axes
        steps = [1] * len(starts) if steps is None else steps
        if any(len(item) != len(starts) for item in (ends, axes, steps)):
            raise ValueError("its starts, ends, axes and steps are not equally many")
        axes = [_axis(axis, len(sizes)) for axis in axes]
        if len({*axes}) < len(axes):
            raise ValueError(f"its axes {axes} name one twice")
        if any(map(is_open, steps)) or 0 in steps:
            raise Unknown
        if not (any(map(self.is_known, given)) or any(is_open(sizes[axis]) for axis in axes)):
            raise Unknown
        back = [axis for axis, step in zip(axes, steps, strict=True) if step < 0]
        first, last = [], []
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size = sizes[axis]
            place = _inside if step > 0 else _mirrored
            first.append(place(start, size))
            last.append(largest(first[-1], place(end, size)))
        for axis in back:
            x = relax.op.flip(x, axis)
        places = [list(map(relax.prim_value, part)) for part in (first, last)]
        strides = [relax.prim_value(abs(step)) for step in steps]
        part = relax.op.strided_slice(x, axes, *places, strides, assume_inbound=True)
        return self._builder.normalize(part)

    def _tiled(self, x: relax.Expr | None, repeats: relax.Expr | None) -> relax.Expr:
        """Return a tensor several times along each axis, by a broadcast."""
        sizes = _sizes_of(x)
        counts = self._vector(repeats, "repeats")
        if len(counts) != len(sizes):
            raise ValueError(f"its repeats are {len(counts)}, and its input has rank {len(sizes)}")
        if not all(proves(count >= 0) for count in counts):
            raise Unknown
        joined = [simple(count * size) for count, size in zip(counts, sizes, strict=True)]
        return self._builder.normalize(tiled(x, sizes, counts, joined))

    def _cast(
        self,
        op: str,
        elements: Sequence[Array | None],
        dtypes: Sequence[str],
        attributes: Attributes,
    ) -> relax.Expr:
        dtype = dtypes[-1]
        if op == "Cast":
            dtype = str(helper.tensor_dtype_to_np_dtype(attributes["to"]))
        if dtype not in _TYPES - {"bool"} or elements[0] is None:
            raise Unknown
        return self._tensor(elements[0], dtype)


def _sizes_of(x: relax.Expr | None) -> list[Element]:
    """Return the sizes of a tensor."""
    sizes = _sizes_if_known(x)
    if sizes is None:
        raise Unknown
    return sizes


def _require_rank(x: relax.Expr | None) -> None:
    """Refuse a tensor of which not even the number of sizes is known."""
    ty = getattr(x, "ty", None)
    if isinstance(ty, relax.TensorType) and ty.ndim < 0:
        raise ValueError("the rank of its input is not known")


def _sizes_if_known(x: relax.Expr | None) -> list[Element] | None:
    sizes = getattr(getattr(getattr(x, "ty", None), "shape", None), "values", None)
    return None if sizes is None else [simple(size) for size in sizes]


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is none of a tensor of rank {rank}")
    return axis % rank


def _inside(place: Element, size: Element) -> Element:
    """Return a place of an axis, counted from the end if it is negative."""
    end = size if _is_negative(place, size) else 0
    return least(largest(place + end, 0), size)


def _mirrored(place: Element, size: Element) -> Element:
    """Return a place of an axis, counted from its last element on backwards."""
    end = 0 if _is_negative(place, size) else size
    return least(largest(end - 1 - place, 0), size)


def _is_negative(place: Element, size: Element) -> bool:
    """Whether a place is counted from the end, of an axis that has elements."""
    if proves(place >= 0, size):
        return False
    if proves(place < 0, size):
        return True
    raise Unknown


def _require_one_type(op: str, inputs: Sequence[relax.Expr | None]) -> str:
    """Return the element type of inputs that must have one."""
    data = inputs if op != "Where" else inputs[1:]
    dtypes = dict.fromkeys(str(x.ty.dtype) for x in data if x is not None)
    if len(dtypes) != 1:
        raise ValueError(f"its inputs are of the types {' and '.join(dtypes)}; supported is one")
    return next(iter(dtypes))


def _moved(
    op: str, elements: Sequence[Array | None], attributes: Attributes, opset: int
) -> Sequence[Array]:
    """Return the results of an operator that only moves elements: it is run on their numbers."""
    data = _MOVES[op] or range(len(elements))
    table: list[object] = []
    given: dict[str, Array] = {}
    for place, array in enumerate(elements):
        if array is None:
            continue
        if place in data:
            given[f"i{place}"] = np.arange(len(table), len(table) + array.size).reshape(array.shape)
            table += array.reshape(-1).tolist()
        elif any(map(is_open, array.reshape(-1))):
            raise Unknown
        else:
            is_condition = op == "Where"
            given[f"i{place}"] = array.astype("bool" if is_condition else "int64")
    about = {k: v for k, v in attributes.items() if k != "tvm_custom"}
    if op == "ScatterND" and about.get("reduction", b"none") != b"none":
        raise Unknown
    count = attributes["tvm_custom"]["num_outputs"]
    names = ["" if array is None else f"i{place}" for place, array in enumerate(elements)]
    node = helper.make_node(op, names, [f"o{index}" for index in range(count)], **about)
    moved = evaluate(node, given, [helper.make_opsetid("", opset)])
    if moved is None:
        raise Unknown
    return [array_of([table[i] for i in a.reshape(-1)]).reshape(a.shape) for a in moved]
