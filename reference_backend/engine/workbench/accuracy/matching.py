# SPDX-License-Identifier: Apache-2.0
"""Matches a quantized model with the float one that it was made from.

Both are walked in parallel from their outputs, before any pass. Matching looks through quantize and
dequantize, and through what quantization folds away: a batch_norm or a factor in the weights, a
relu or clip in the range of a quantize, a pad in that of a convolution. It also looks through ops
that only move elements, and through functions of one value that are spelled differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ...backend.ir.amounts import is_product
from ...backend.ir.calls import arguments_of, plain, with_arguments
from ...backend.passes.rewriting import is_call_of, op_name
from ...backend.regions import ir
from ...backend.table.elements import POINTWISE
from .functions import same_function
from .graph import Graph, Pairs, is_real
from .moves import Places, View, aligned, moved, read_by, shape_of, source_of, unmoved

_LIMITS = ("relax.nn.relu", "relax.clip")
_COMMUTES = tuple(f"relax.{name}" for name in ("add", "multiply", "maximum", "minimum"))
_IGNORED = ("out_dtype",)
"""Attributes in which importers differ, though the results do not."""


def match(quantized: Graph, real: Graph) -> tuple[Pairs, list[str]]:
    """Match the values of two models.

    The float model's values, and a sentence for each place where the models differ.
    """
    return _Matcher(quantized, real).run()


@dataclass(frozen=True, eq=False)
class _Item:
    """Two values to compare; they are equal up to constants unless `exact`."""

    one: View
    other: View
    exact: bool = True
    limited: bool = False
    """Whether quantization limits what is made of them."""

    def key(self) -> tuple[object, ...]:
        """Return what equal items have in common."""
        views = [
            (ir.id_of(view.expr), None if view.places is None else view.places.tobytes())
            for view in (self.one, self.other)
        ]
        return (*views, self.exact, self.limited)


class _Matcher:
    def __init__(self, quantized: Graph, real: Graph) -> None:
        self._quantized, self._real = quantized, real
        self._pairs: Pairs = dict(zip(quantized.params, real.params, strict=False))
        self._differences: list[str] = []
        self._stack: list[_Item] = []

    def run(self) -> tuple[Pairs, list[str]]:
        self._push(self._quantized.results, self._real.results)
        seen = set()
        while self._stack:
            item = self._stack.pop()
            if item.key() not in seen:
                seen.add(item.key())
                self._compare(item)
        self._add_moved()
        return self._pairs, self._differences

    def _push(self, mine: Sequence[relax.Expr], theirs: Sequence[relax.Expr]) -> None:
        self._stack += [_Item(View(a), View(b)) for a, b in zip(mine, theirs, strict=False)]

    def _compare(self, item: _Item) -> None:
        one, limited = self._quantized.origin(item.one.expr)
        other, _ = self._real.origin(item.other.expr)
        item = replace(
            item,
            one=View(one, item.one.places),
            other=View(other, item.other.places),
            limited=item.limited or limited,
        )
        are_tuples = isinstance(one, relax.Tuple) and isinstance(other, relax.Tuple)
        if are_tuples and len(one.fields) == len(other.fields):
            self._push(one.fields, other.fields)
            return
        if self._quantized.is_constant(one) and self._real.is_constant(other):
            return
        call, theirs = self._quantized.value(one), self._real.value(other)
        places = aligned(item.one, item.other)
        if call is not None and theirs is not None and self._skips(item, places):
            return
        if not self._are_alike(item) and self._looks_behind(item):
            return
        is_input = one in self._quantized.params and self._pairs[one].same_as(other)
        if places is None or (is_input and len(places)):
            self._differ(one, other, ": their elements are in different places")
        elif call is None or theirs is None:
            if not is_input:
                self._differ(one, other, "")
        elif not self._follows(item, places) and not self._is_same_function(item, places):
            self._differ(one, other, "")

    def _follows(self, item: _Item, places: Places) -> bool:
        """Compare what two values are made of, if it is by the same op."""
        one, other = item.one.expr, item.other.expr
        call, theirs = self._quantized.value(one), self._real.value(other)
        if isinstance(call, relax.TupleGetItem) and isinstance(theirs, relax.TupleGetItem):
            if call.index != theirs.index:
                return False
            self._record(one, other, places)
            self._push([call.tuple_value], [theirs.tuple_value])
            return True
        mine, tensors = _tensors(call), _tensors(theirs)
        if not op_name(call) or op_name(call) != op_name(theirs) or len(mine) != len(tensors):
            return False
        difference = self._attributes(call, theirs)
        if difference and self._pad_alike(call, theirs):
            mine[0], tensors[0] = (_padded(*pair)[0] for pair in self._both(call, theirs))
        elif difference and op_name(call) in POINTWISE and self._is_same_function(item, places):
            return True
        elif difference:
            self._differ(one, other, f": {difference}")
        if item.exact:
            self._record(one, other, places)
        if op_name(call) in _COMMUTES and not self._in_order(mine, tensors):
            tensors.reverse()
        order = places if len(places) else None
        if op_name(call) in POINTWISE:
            self._stack += [
                _Item(read_by(one, a), read_by(other, b).at(order))
                for a, b in zip(mine, tensors, strict=True)
            ]
        elif order is None:
            self._push(mine, tensors)
        else:
            self._differ(one, other, ": their elements are in different places")
        return True

    def _is_same_function(self, item: _Item, places: Places) -> bool:
        """Compare the values of which two values are the same function, if they are."""
        one, other = item.one.expr, item.other.expr
        found = same_function(self._quantized, one, self._real, other)
        if found is None:
            return False
        if item.exact:
            self._record(one, other, places)
        mine, theirs = (
            View(expr, view.places)
            for expr, view in zip(found, (item.one, item.other), strict=True)
        )
        self._stack.append(replace(item, one=mine, other=theirs, limited=False))
        return True

    def _record(self, one: relax.Expr, other: relax.Expr, places: Places) -> None:
        if not isinstance(one, relax.Var) or not isinstance(other, relax.Var) or one in self._pairs:
            return
        if not isinstance(other.ty, relax.TensorType):
            return
        if not len(places) and str(one.ty) == str(other.ty):
            self._pairs[one] = other
        elif str(one.ty.dtype) == str(other.ty.dtype) or (is_real(one) and is_real(other)):
            self._pairs[one] = moved(self._real, other, places, one.ty)

    def _add_moved(self) -> None:
        """Add what only the quantized model moves: the same elements of the float model."""
        for var, value in self._quantized.values.items():
            source = source_of(self._quantized, value)
            if source is None or var in self._pairs or not isinstance(value, relax.Call):
                continue
            real = self._pairs.get(self._quantized.origin(source)[0])
            if real is not None and str(real.ty) == str(source.ty):
                call = with_arguments(value, [real, *value.args[1:]])
                self._pairs[var] = self._real.add(str(real.name), call)

    def _differ(self, one: relax.Expr, other: relax.Expr, how: str) -> None:
        names = self._quantized.describe(one), self._real.describe(other)
        self._differences.append(
            f"{names[0]} of the quantized model is where the float model has {names[1]}{how}."
        )

    def _are_alike(self, item: _Item) -> bool:
        """Whether both values are made by the same op in the same way, if elements are moved."""
        if item.one.places is not None or item.other.places is not None:
            return False
        one, other = self._calls(
            self._quantized.value(item.one.expr), self._real.value(item.other.expr)
        )
        return op_name(one) == op_name(other) != "" and not self._attributes(one, other)

    def _looks_behind(self, item: _Item) -> bool:
        """Compare the values whose elements are moved, if they are."""
        one, other = unmoved(self._quantized, item.one), unmoved(self._real, item.other)
        if one is item.one and other is item.other:
            return False
        self._stack.append(replace(item, one=one, other=other))
        return True

    def _skips(self, item: _Item, places: Places | None) -> bool:
        """Look through ops that quantization folds away."""
        one, other = item.one.expr, item.other.expr
        call, theirs = self._quantized.value(one), self._real.value(other)
        behind = self._without(theirs, item.limited)
        if behind is not None and not self._are_same(call, theirs):
            if item.exact and places is not None:
                self._record(one, other, places)
            self._stack.append(replace(item, other=View(behind, item.other.places), exact=False))
            return True
        if item.exact:
            return False
        # The constants of a batch_norm were added to those of the op before it.
        mine, behind = (_offset(graph, value) for graph, value in self._both(call, theirs))
        if (mine is None) == (behind is None):
            return False
        if mine is not None:
            self._stack.append(replace(item, one=View(mine, item.one.places)))
        else:
            self._stack.append(replace(item, other=View(behind, item.other.places)))
        return True

    def _both(self, call: relax.Expr, theirs: relax.Expr) -> list[tuple[Graph, relax.Expr]]:
        return [(self._quantized, call), (self._real, theirs)]

    def _without(self, value: relax.Expr, limited: bool) -> relax.Expr | None:
        """Return the operand of an op that a quantized model may lack."""
        if limited and op_name(value) in _LIMITS:
            return value.args[0]
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            source = self._real.value(value.tuple_value)
            if is_call_of(source, "relax.nn.batch_norm"):
                return source.args[0]
        scaled = _beside_constant(self._real, value, "relax.multiply")
        if scaled is not None:
            source = self._real.value(scaled)
            behind = _offset(self._real, source)
            if is_product(op_name(source if behind is None else self._real.value(behind))):
                return scaled
        return None

    def _are_same(self, call: relax.Expr, theirs: relax.Expr) -> bool:
        mine, other = self._calls(call, theirs)
        return op_name(mine) == op_name(other)

    def _calls(self, call: relax.Expr, theirs: relax.Expr) -> list[relax.Call]:
        """Return two calls; of a result of a tuple, the one that returns the tuple."""
        return [
            graph.value(item.tuple_value) if isinstance(item, relax.TupleGetItem) else item
            for graph, item in self._both(call, theirs)
        ]

    def _pad_alike(self, call: relax.Call, theirs: relax.Call) -> bool:
        """Whether two convolutions differ in nothing but a pad that is in the padding of one."""
        pads = [_padded(*pair)[1] for pair in self._both(call, theirs)]
        return pads[0] == pads[1] != () and not self._attributes(call, theirs, ("padding",))

    def _attributes(
        self, call: relax.Call, theirs: relax.Call, ignored: tuple[str, ...] = ()
    ) -> str:
        """Return how the attributes of two calls of an op differ."""
        from_end = _rank(call) != _rank(theirs)
        mine, other = (_attributes_of(item, from_end) for item in (call, theirs))
        if is_call_of(call, "relax.nn.pad"):
            mine["pad_value"] = self._quantized.real_number(call.args[0], mine["pad_value"])
        for key in sorted({*mine, *other} - {*_IGNORED, *ignored}):
            one, two = mine.get(key), other.get(key)
            if isinstance(one, tvm.ir.GlobalVar) and isinstance(two, tvm.ir.GlobalVar):
                kernels = self._quantized.mod[one], self._real.mod[two]
                kernels = tuple(item.without_attr("global_symbol") for item in kernels)
                if not tvm_ffi.structural_equal(*kernels):
                    return "the kernels differ"
            elif not _is_equal(one, two):
                return f"{key} is {one} and {two}"
        return ""

    def _in_order(self, mine: Sequence[relax.Expr], theirs: Sequence[relax.Expr]) -> bool:
        """Whether the two operands of a commutative op are in the same order in both models."""
        straight = all(self._alike(*pair, 6) for pair in zip(mine, theirs, strict=True))
        crossed = zip(mine, reversed(theirs), strict=True)
        return straight or not all(self._alike(*pair, 6) for pair in crossed)

    def _alike(self, one: relax.Expr, other: relax.Expr, depth: int) -> bool:
        (one, limited), (other, _) = self._quantized.origin(one), self._real.origin(other)
        constant = self._quantized.is_constant(one), self._real.is_constant(other)
        if any(constant) or depth == 0:
            return constant[0] == constant[1]
        call, theirs = self._quantized.value(one), self._real.value(other)
        sources = source_of(self._quantized, call), source_of(self._real, theirs)
        if any(item is not None for item in sources):
            one, other = (
                here if item is None else item
                for here, item in zip((one, other), sources, strict=True)
            )
            return self._alike(one, other, depth)
        if call is None or theirs is None:
            return call is None and theirs is None
        if not self._are_same(call, theirs):
            behind = self._without(theirs, limited)
            if behind is None:
                behind = _offset(self._real, theirs)
            if behind is not None:
                return self._alike(one, behind, depth - 1)
            before = _offset(self._quantized, call)
            if before is not None:
                return self._alike(before, other, depth - 1)
            found = same_function(self._quantized, one, self._real, other)
            return found is not None and self._alike(*found, depth - 1)
        mine, tensors = _tensors(call), _tensors(theirs)
        pairs = list(zip(mine, tensors, strict=False))
        if all(self._alike(*pair, depth - 1) for pair in pairs):
            return True
        crossed = zip(mine, reversed(tensors), strict=False)
        return op_name(call) in _COMMUTES and all(self._alike(*pair, depth - 1) for pair in crossed)


def _tensors(value: relax.Expr) -> list[relax.Expr]:
    """Return the tensors that a value is made of, those of tuples one by one."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    tensors, _ = arguments_of(value, {})
    return [
        item
        for tensor in tensors
        for item in (tensor.fields if isinstance(tensor, relax.Tuple) else [tensor])
    ]


def _rank(call: relax.Call) -> int:
    return int(getattr(call.args[0].ty, "ndim", 0)) if call.args else 0


def _attributes_of(call: relax.Call, from_end: bool) -> dict[str, object]:
    """Return the attributes of a call, with axes counted from the first one or from the end."""
    attributes = arguments_of(call, {})[1]
    for item in call.args:
        if isinstance(item, tvm.ir.GlobalVar):
            name = plain(item)
            attributes = {key: value for key, value in attributes.items() if value != name}
            attributes["kernel"] = item
    rank = _rank(call)

    def counted(axis: int) -> int:
        return axis % rank - (rank if from_end else 0) if rank else axis

    for key in ("axis", "axes"):
        value = attributes.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            attributes[key] = counted(value)
        elif isinstance(value, tuple):
            numbers = (counted(item) if isinstance(item, int) else item for item in value)
            attributes[key] = tuple(sorted(numbers)) if op_name(call) in _REDUCE else tuple(numbers)
    return attributes


def _is_equal(one: object, two: object) -> bool:
    """Whether two attributes are equal; ONNX has real numbers in float32."""
    if isinstance(one, float) and isinstance(two, float):
        return np.float32(one) == np.float32(two) or (one != one and two != two)
    return one == two


_REDUCE = tuple(f"relax.{name}" for name in ("mean", "sum", "max", "min", "prod", "variance"))


def _offset(graph: Graph, value: relax.Expr) -> relax.Expr | None:
    """Return the value that a constant is added to."""
    return _beside_constant(graph, value, "relax.add")


def _beside_constant(graph: Graph, value: relax.Expr, op: str) -> relax.Expr | None:
    """Return the other operand of an op that reads a constant."""
    if not is_call_of(value, op):
        return None
    constant = [graph.is_constant(item) for item in value.args]
    if constant.count(True) != 1:
        return None
    operand = value.args[constant.index(False)]
    return operand if shape_of(operand) == shape_of(value) else None


def _padded(graph: Graph, call: relax.Call) -> tuple[relax.Expr, tuple[int, ...]]:
    """Return what a convolution reads before zeros are added, and how many it and a pad add."""
    attributes = arguments_of(call, {})[1]
    data, padding = call.args[0], attributes.get("padding")
    if not is_product(op_name(call)) or not isinstance(padding, tuple):
        return data, ()
    source = graph.value(graph.origin(data)[0])
    if not is_call_of(source, "relax.nn.pad"):
        return data, padding
    pad = arguments_of(source, {})[1]
    widths = np.array([int(width) for width in source.attrs.pad_width]).reshape(-1, 2)
    spatial = [index for index, axis in enumerate(str(attributes["data_layout"])) if axis in "DHW"]
    others = np.delete(widths, spatial, 0)
    if pad["pad_mode"] != "constant" or pad["pad_value"] != 0 or others.any():
        return data, padding
    added = widths[spatial].T.reshape(-1)
    return source.args[0], tuple(int(one + two) for one, two in zip(padding, added, strict=True))
