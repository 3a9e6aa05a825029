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
from .model_values import Graph, Pairs, is_real
from .moves import Places, View, aligned, moved, read_by, shape_of, source_of, unmoved
from .same_functions import same_function

_LIMITS = ("relax.nn.relu", "relax.clip")
_COMMUTES = tuple(f"relax.{name}" for name in ("add", "multiply", "maximum", "minimum"))
_IGNORED = ("out_dtype",)
"""Attributes in which importers differ, though the results do not."""


def match(quantized: Graph, real: Graph) -> tuple[Pairs, list[str]]:
    """Return the float model's values, and a sentence for each place where the models differ."""
    return _Matcher(quantized, real).run()


@dataclass(frozen=True, eq=False)
class _Task:
    """Two values to compare; they are equal up to constants unless `exact`."""

    quantized: View
    real: View
    exact: bool = True
    limited: bool = False
    """Whether quantization limits the values computed from them."""

    def key(self) -> tuple[object, ...]:
        """Return a key that equal tasks share."""
        views = [
            (ir.id_of(view.expr), None if view.places is None else view.places.tobytes())
            for view in (self.quantized, self.real)
        ]
        return (*views, self.exact, self.limited)


class _Matcher:
    def __init__(self, quantized: Graph, real: Graph) -> None:
        self._quantized, self._real = quantized, real
        self._pairs: Pairs = dict(zip(quantized.params, real.params, strict=False))
        self._differences: list[str] = []
        self._stack: list[_Task] = []

    def run(self) -> tuple[Pairs, list[str]]:
        self._push(self._quantized.results, self._real.results)
        seen = set()
        while self._stack:
            task = self._stack.pop()
            if task.key() not in seen:
                seen.add(task.key())
                self._compare(task)
        self._add_moved()
        return self._pairs, self._differences

    def _push(self, quantized: Sequence[relax.Expr], real: Sequence[relax.Expr]) -> None:
        self._stack += [_Task(View(a), View(b)) for a, b in zip(quantized, real, strict=False)]

    def _compare(self, task: _Task) -> None:
        quantized, limited = self._quantized.origin(task.quantized.expr)
        real, _ = self._real.origin(task.real.expr)
        task = replace(
            task,
            quantized=View(quantized, task.quantized.places),
            real=View(real, task.real.places),
            limited=task.limited or limited,
        )
        are_tuples = isinstance(quantized, relax.Tuple) and isinstance(real, relax.Tuple)
        if are_tuples and len(quantized.fields) == len(real.fields):
            self._push(quantized.fields, real.fields)
            return
        if self._quantized.is_constant(quantized) and self._real.is_constant(real):
            return
        call, real_call = self._quantized.value(quantized), self._real.value(real)
        places = aligned(task.quantized, task.real)
        if call is not None and real_call is not None and self._skips(task, places):
            return
        if not self._are_alike(task) and self._looks_behind(task):
            return
        is_input = quantized in self._quantized.params and self._pairs[quantized].same_as(real)
        if places is None or (is_input and len(places)):
            self._differ(quantized, real, ": their elements are in different places")
        elif call is None or real_call is None:
            if not is_input:
                self._differ(quantized, real, "")
        elif not self._follows(task, places) and not self._is_same_function(task, places):
            self._differ(quantized, real, "")

    def _follows(self, task: _Task, places: Places) -> bool:
        """Compare the operands of two values if the same op computes both."""
        quantized, real = task.quantized.expr, task.real.expr
        call, real_call = self._quantized.value(quantized), self._real.value(real)
        if isinstance(call, relax.TupleGetItem) and isinstance(real_call, relax.TupleGetItem):
            if call.index != real_call.index:
                return False
            self._record(quantized, real, places)
            self._push([call.tuple_value], [real_call.tuple_value])
            return True
        operands, real_operands = _tensors(call), _tensors(real_call)
        if (
            not op_name(call)
            or op_name(call) != op_name(real_call)
            or len(operands) != len(real_operands)
        ):
            return False
        difference = self._attributes(call, real_call)
        if difference and self._pad_alike(call, real_call):
            operands[0], real_operands[0] = (
                _padded(*pair)[0] for pair in self._both(call, real_call)
            )
        elif difference and op_name(call) in POINTWISE and self._is_same_function(task, places):
            return True
        elif difference:
            self._differ(quantized, real, f": {difference}")
        if task.exact:
            self._record(quantized, real, places)
        if op_name(call) in _COMMUTES and not self._in_order(operands, real_operands):
            real_operands.reverse()
        order = places if len(places) else None
        if op_name(call) in POINTWISE:
            self._stack += [
                _Task(read_by(quantized, a), read_by(real, b).at(order))
                for a, b in zip(operands, real_operands, strict=True)
            ]
        elif order is None:
            self._push(operands, real_operands)
        else:
            self._differ(quantized, real, ": their elements are in different places")
        return True

    def _is_same_function(self, task: _Task, places: Places) -> bool:
        """Compare the arguments of two values that are the same function."""
        quantized, real = task.quantized.expr, task.real.expr
        arguments = same_function(self._quantized, quantized, self._real, real)
        if arguments is None:
            return False
        if task.exact:
            self._record(quantized, real, places)
        views = task.quantized, task.real
        sources = [View(*pair) for pair in zip(arguments, (v.places for v in views), strict=True)]
        self._stack.append(replace(task, quantized=sources[0], real=sources[1], limited=False))
        return True

    def _record(self, quantized: relax.Expr, real: relax.Expr, places: Places) -> None:
        if (
            not isinstance(quantized, relax.Var)
            or not isinstance(real, relax.Var)
            or quantized in self._pairs
        ):
            return
        if not isinstance(real.ty, relax.TensorType):
            return
        if not len(places) and str(quantized.ty) == str(real.ty):
            self._pairs[quantized] = real
        elif str(quantized.ty.dtype) == str(real.ty.dtype) or (
            is_real(quantized) and is_real(real)
        ):
            self._pairs[quantized] = moved(self._real, real, places, quantized.ty)

    def _add_moved(self) -> None:
        """Move values of the float model, too, where only the quantized model does."""
        for var, value in self._quantized.values.items():
            source = source_of(self._quantized, value)
            if source is None or var in self._pairs or not isinstance(value, relax.Call):
                continue
            real = self._pairs.get(self._quantized.origin(source)[0])
            if real is not None and str(real.ty) == str(source.ty):
                call = with_arguments(value, [real, *value.args[1:]])
                self._pairs[var] = self._real.add(str(real.name), call)

    def _differ(self, quantized: relax.Expr, real: relax.Expr, how: str) -> None:
        names = self._quantized.describe(quantized), self._real.describe(real)
        self._differences.append(
            f"{names[0]} of the quantized model is where the float model has {names[1]}{how}."
        )

    def _are_alike(self, task: _Task) -> bool:
        """Whether equal calls compute both values, and no element is moved."""
        if task.quantized.places is not None or task.real.places is not None:
            return False
        quantized, real = self._calls(
            self._quantized.value(task.quantized.expr), self._real.value(task.real.expr)
        )
        return op_name(quantized) == op_name(real) != "" and not self._attributes(quantized, real)

    def _looks_behind(self, task: _Task) -> bool:
        """Compare the values before their elements were moved, if they were."""
        quantized, real = unmoved(self._quantized, task.quantized), unmoved(self._real, task.real)
        if quantized is task.quantized and real is task.real:
            return False
        self._stack.append(replace(task, quantized=quantized, real=real))
        return True

    def _skips(self, task: _Task, places: Places | None) -> bool:
        """Look through ops that quantization folds away."""
        quantized, real = task.quantized.expr, task.real.expr
        call, real_call = self._quantized.value(quantized), self._real.value(real)
        behind = self._without(real_call, task.limited)
        if behind is not None and not self._are_same(call, real_call):
            if task.exact and places is not None:
                self._record(quantized, real, places)
            self._stack.append(replace(task, real=View(behind, task.real.places), exact=False))
            return True
        if task.exact:
            return False
        # Quantization folds the constants of a batch_norm into the op before it.
        before, behind = (_offset(graph, value) for graph, value in self._both(call, real_call))
        if (before is None) == (behind is None):
            return False
        if before is not None:
            self._stack.append(replace(task, quantized=View(before, task.quantized.places)))
        else:
            self._stack.append(replace(task, real=View(behind, task.real.places)))
        return True

    def _both(self, call: relax.Expr, real_call: relax.Expr) -> list[tuple[Graph, relax.Expr]]:
        return [(self._quantized, call), (self._real, real_call)]

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

    def _are_same(self, call: relax.Expr, real_call: relax.Expr) -> bool:
        names = [op_name(each) for each in self._calls(call, real_call)]
        return names[0] == names[1]

    def _calls(self, call: relax.Expr, real_call: relax.Expr) -> list[relax.Call]:
        """Return two calls; of a result of a tuple, the one that returns the tuple."""
        return [
            graph.value(value.tuple_value) if isinstance(value, relax.TupleGetItem) else value
            for graph, value in self._both(call, real_call)
        ]

    def _pad_alike(self, call: relax.Call, real_call: relax.Call) -> bool:
        """Whether two convolutions differ in nothing but a pad that is in the padding of one."""
        pads = [_padded(*pair)[1] for pair in self._both(call, real_call)]
        return pads[0] == pads[1] != () and not self._attributes(call, real_call, ("padding",))

    def _attributes(
        self, call: relax.Call, real_call: relax.Call, ignored: tuple[str, ...] = ()
    ) -> str:
        """Return how the attributes of two calls of an op differ."""
        from_end = _rank(call) != _rank(real_call)
        attributes, real_attributes = (_attributes_of(each, from_end) for each in (call, real_call))
        if is_call_of(call, "relax.nn.pad"):
            attributes["pad_value"] = self._quantized.real_number(
                call.args[0], attributes["pad_value"]
            )
        for key in sorted({*attributes, *real_attributes} - {*_IGNORED, *ignored}):
            value, real_value = attributes.get(key), real_attributes.get(key)
            if isinstance(value, tvm.ir.GlobalVar) and isinstance(real_value, tvm.ir.GlobalVar):
                kernels = self._quantized.mod[value], self._real.mod[real_value]
                kernels = tuple(kernel.without_attr("global_symbol") for kernel in kernels)
                if not tvm_ffi.structural_equal(*kernels):
                    return "the kernels differ"
            elif not _is_equal(value, real_value):
                return f"{key} is {value} and {real_value}"
        return ""

    def _in_order(self, quantized: Sequence[relax.Expr], real: Sequence[relax.Expr]) -> bool:
        """Whether the two operands of a commutative op are in the same order in both models."""
        straight = all(self._alike(*pair, 6) for pair in zip(quantized, real, strict=True))
        crossed = zip(quantized, reversed(real), strict=True)
        return straight or not all(self._alike(*pair, 6) for pair in crossed)

    def _alike(self, quantized: relax.Expr, real: relax.Expr, depth: int) -> bool:
        (quantized, limited), (real, _) = self._quantized.origin(quantized), self._real.origin(real)
        constant = self._quantized.is_constant(quantized), self._real.is_constant(real)
        if any(constant) or depth == 0:
            return constant[0] == constant[1]
        call, real_call = self._quantized.value(quantized), self._real.value(real)
        sources = source_of(self._quantized, call), source_of(self._real, real_call)
        if any(source is not None for source in sources):
            source, real_source = sources
            quantized = quantized if source is None else source
            return self._alike(quantized, real if real_source is None else real_source, depth)
        if call is None or real_call is None:
            return call is None and real_call is None
        if not self._are_same(call, real_call):
            behind = self._without(real_call, limited)
            if behind is None:
                behind = _offset(self._real, real_call)
            if behind is not None:
                return self._alike(quantized, behind, depth - 1)
            before = _offset(self._quantized, call)
            if before is not None:
                return self._alike(before, real, depth - 1)
            arguments = same_function(self._quantized, quantized, self._real, real)
            return arguments is not None and self._alike(*arguments, depth - 1)
        operands, real_operands = _tensors(call), _tensors(real_call)
        pairs = list(zip(operands, real_operands, strict=False))
        if all(self._alike(*pair, depth - 1) for pair in pairs):
            return True
        crossed = zip(operands, reversed(real_operands), strict=False)
        return op_name(call) in _COMMUTES and all(self._alike(*pair, depth - 1) for pair in crossed)


def _tensors(value: relax.Expr) -> list[relax.Expr]:
    """Return the tensors that a value reads, including the fields of tuples."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    tensors, _ = arguments_of(value, {})
    return [
        field
        for tensor in tensors
        for field in (tensor.fields if isinstance(tensor, relax.Tuple) else [tensor])
    ]


def _rank(call: relax.Call) -> int:
    return int(getattr(call.args[0].ty, "ndim", 0)) if call.args else 0


def _attributes_of(call: relax.Call, from_end: bool) -> dict[str, object]:
    """Return the attributes of a call, with axes counted from the first one or from the end."""
    attributes = arguments_of(call, {})[1]
    for argument in call.args:
        if isinstance(argument, tvm.ir.GlobalVar):
            name = plain(argument)
            attributes = {key: value for key, value in attributes.items() if value != name}
            attributes["kernel"] = argument
    rank = _rank(call)

    def counted(axis: int) -> int:
        return axis % rank - (rank if from_end else 0) if rank else axis

    for key in ("axis", "axes"):
        value = attributes.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            attributes[key] = counted(value)
        elif isinstance(value, tuple):
            numbers = (counted(axis) if isinstance(axis, int) else axis for axis in value)
            attributes[key] = tuple(sorted(numbers)) if op_name(call) in _REDUCE else tuple(numbers)
    return attributes


def _is_equal(x: object, y: object) -> bool:
    """Whether two attributes are equal; ONNX has real numbers in float32."""
    if isinstance(x, float) and isinstance(y, float):
        return np.float32(x) == np.float32(y) or (x != x and y != y)
    return x == y


_REDUCE = tuple(f"relax.{name}" for name in ("mean", "sum", "max", "min", "prod", "variance"))


def _offset(graph: Graph, value: relax.Expr) -> relax.Expr | None:
    """Return the value that a constant is added to."""
    return _beside_constant(graph, value, "relax.add")


def _beside_constant(graph: Graph, value: relax.Expr, op: str) -> relax.Expr | None:
    """Return the other operand of an op that reads a constant."""
    if not is_call_of(value, op):
        return None
    constant = [graph.is_constant(operand) for operand in value.args]
    if constant.count(True) != 1:
        return None
    operand = value.args[constant.index(False)]
    return operand if shape_of(operand) == shape_of(value) else None


def _padded(graph: Graph, call: relax.Call) -> tuple[relax.Expr, tuple[int, ...]]:
    """Return the operand of a convolution before a pad, and the padding of both together."""
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
    not_spatial = np.delete(widths, spatial, 0)
    if pad["pad_mode"] != "constant" or pad["pad_value"] != 0 or not_spatial.any():
        return data, padding
    added = widths[spatial].T.reshape(-1)
    return source.args[0], tuple(int(sum(pair)) for pair in zip(padding, added, strict=True))
