# SPDX-License-Identifier: Apache-2.0
"""Matches a quantised model with the float one that it was made from.

Both are walked in parallel from their outputs, before any pass. Matching looks through quantize and
dequantize, and through ops that quantization folds away: a batch_norm in the weights, a relu or
clip in the range of a quantize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..calls import Constant, arguments_of, plain, with_arguments
from ..passes.quantized import DEQUANTIZE, QUANTIZE
from ..passes.rewriting import is_call_of, op_name
from ..regions import ir

Pairs = dict[relax.Var, relax.Var]
"""The float model's value for values of the quantised one."""

_LIMITS = ("relax.nn.relu", "relax.clip")
_COMMUTES = tuple(f"relax.{name}" for name in ("add", "multiply", "maximum", "minimum"))
_IGNORED = ("out_dtype",)
"""Attributes in which importers differ, though the results do not."""


class Graph:
    """The function `main` of a model, without aliases of other values.

    Parameters
    ----------
    mod
        The model.
    what
        Its name in messages.

    Raises
    ------
    ValueError
        The model has no `main`, or something other than calls in it.
    """

    def __init__(self, mod: tvm.IRModule, what: str) -> None:
        names = {item.name_hint: item for item in mod.get_global_vars()}
        if "main" not in names or not isinstance(mod["main"], relax.Function):
            raise ValueError(f"The {what} has no function 'main'; it has {sorted(names)}.")
        self.mod, self.what = mod, what
        function = mod["main"]
        self.params: list[relax.Var] = list(function.params)
        self.values: dict[relax.Var, relax.Expr] = {}
        self.constants: set[relax.Var] = set()
        """The values that do not depend on the inputs."""
        self.names: dict[relax.Var, list[str]] = {}
        """All names of each value: the passes may keep any of them."""
        self._known: dict[relax.Var, relax.Expr] = {}
        body = function.body
        for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
            for binding in block.bindings:
                self._add(binding.var, self._resolved(binding.value))
        result = self._resolved(body.body if isinstance(body, relax.SeqExpr) else body)
        self.results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        self._drop_unused()
        self.readers: dict[relax.Var, list[relax.Expr | None]] = {}
        for value in self.values.values():
            for var in ir.operands(value):
                self.readers.setdefault(var, []).append(value)
        for var in ir.operands(relax.Tuple(self.results)):
            self.readers.setdefault(var, []).append(None)

    def _resolved(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Var):
            return self._known.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._resolved(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            source = self._resolved(expr.tuple_value)
            if isinstance(source, relax.Tuple):
                return source.fields[expr.index]
            return relax.TupleGetItem(source, expr.index)
        if isinstance(expr, relax.Call):
            return with_arguments(expr, [self._resolved(item) for item in expr.args])
        return expr

    def _add(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.If | relax.Function | relax.SeqExpr):
            raise ValueError(
                f"The {self.what} has a branch or a local function in '{var.name}'; supported is a "
                "'main' of calls alone."
            )
        if not isinstance(value, relax.Call | relax.TupleGetItem):
            self._known[var] = value
            if isinstance(value, relax.Var):
                self.names.setdefault(value, []).append(str(var.name))
            return
        self.values[var] = value
        self.names[var] = [str(var.name)]
        if is_call_of("relax.shape_of", value) or self.constants.issuperset(ir.operands(value)):
            self.constants.add(var)

    def _drop_unused(self) -> None:
        used = set(ir.operands(relax.Tuple(self.results)))
        for var in reversed(list(self.values)):
            if var in used:
                used.update(ir.operands(self.values[var]))
            else:
                del self.values[var]

    def is_constant(self, expr: relax.Expr) -> bool:
        """Whether a value does not depend on the inputs.

        Parameters
        ----------
        expr
            An argument of a call, or a result.

        Returns
        -------
        answer
            True if it does not.
        """
        return self.constants.issuperset(ir.operands(expr))

    def value(self, expr: relax.Expr) -> Any:
        """Return the call that computes a value.

        Parameters
        ----------
        expr
            An argument of a call, or a result.

        Returns
        -------
        value
            A call, or None.
        """
        return self.values.get(expr) if isinstance(expr, relax.Var) else None

    def origin(self, expr: relax.Expr) -> tuple[relax.Expr, bool]:
        """Return the value that integers represent, and whether quantization limits it.

        Parameters
        ----------
        expr
            An argument of a call, or a result.

        Returns
        -------
        origin, limited
            The original value, and whether a quantize or a clip limits it.
        """
        limited = False
        while (value := self.value(expr)) is not None:
            narrows = is_call_of("relax.clip", value) and _is_integer(value)
            if not narrows and op_name(value) not in (QUANTIZE, DEQUANTIZE):
                break
            limited = limited or not is_call_of(DEQUANTIZE, value)
            expr = value.args[0]
        return expr, limited

    def describe(self, expr: relax.Expr) -> str:
        """Return the name and the op of a value, for messages.

        Parameters
        ----------
        expr
            An argument of a call, or a result.

        Returns
        -------
        text
            Such as "'lv3' (conv2d)".
        """
        if not isinstance(expr, relax.Var):
            return "a constant" if isinstance(expr, Constant) else "a tuple"
        what = "an input" if expr in self.params else self._op(self.values.get(expr))
        return f"'{expr.name}' ({what})"

    def _op(self, value: relax.Expr | None) -> str:
        if isinstance(value, relax.TupleGetItem):
            return f"result {value.index} of {self._op(self.value(value.tuple_value))}"
        return ir.callee(value).rpartition(".")[2] if isinstance(value, relax.Call) else "a value"


def _is_integer(expr: relax.Expr) -> bool:
    return "int" in str(getattr(expr.ty, "dtype", ""))


def match(quantized: Graph, real: Graph) -> tuple[Pairs, list[str]]:
    """Match the values of two models.

    Parameters
    ----------
    quantized, real
        The quantised model and the float one.

    Returns
    -------
    pairs, differences
        The float model's values, and a sentence for each place where the models differ.
    """
    return _Matcher(quantized, real).run()


class _Matcher:
    def __init__(self, quantized: Graph, real: Graph) -> None:
        self._quantized, self._real = quantized, real
        self._pairs: Pairs = dict(zip(quantized.params, real.params, strict=False))
        self._differences: list[str] = []
        self._stack: list[tuple[relax.Expr, relax.Expr, bool]] = []

    def run(self) -> tuple[Pairs, list[str]]:
        self._push(self._quantized.results, self._real.results)
        seen = set()
        while self._stack:
            one, other, exact = self._stack.pop()
            key = (ir.id_of(one), ir.id_of(other), exact)
            if key not in seen:
                seen.add(key)
                self._compare(one, other, exact)
        return self._pairs, self._differences

    def _push(self, mine: Sequence[relax.Expr], theirs: Sequence[relax.Expr]) -> None:
        self._stack += [(one, other, True) for one, other in zip(mine, theirs, strict=False)]

    def _compare(self, one: relax.Expr, other: relax.Expr, exact: bool) -> None:
        """Compare two values; they are equal up to constants unless `exact`."""
        one, limited = self._quantized.origin(one)
        are_tuples = isinstance(one, relax.Tuple) and isinstance(other, relax.Tuple)
        if are_tuples and len(one.fields) == len(other.fields):
            self._push(one.fields, other.fields)
            return
        if self._quantized.is_constant(one) and self._real.is_constant(other):
            return
        call, theirs = self._quantized.value(one), self._real.value(other)
        if call is None or theirs is None:
            if one in self._quantized.params and self._pairs[one].same_as(other):
                return
        elif self._skips(one, other, limited, exact):
            return
        elif isinstance(call, relax.TupleGetItem) and isinstance(theirs, relax.TupleGetItem):
            if call.index == theirs.index:
                self._record(one, other)
                self._push([call.tuple_value], [theirs.tuple_value])
                return
        elif op_name(call) and op_name(call) == op_name(theirs):
            mine, tensors = _tensors(call), _tensors(theirs)
            difference = self._attributes(call, theirs)
            if difference:
                self._differ(one, other, f": {difference}")
            if len(mine) == len(tensors):
                if exact and str(one.ty) == str(other.ty):
                    self._record(one, other)
                if op_name(call) in _COMMUTES and not self._in_order(mine, tensors):
                    tensors.reverse()
                self._push(mine, tensors)
                return
        self._differ(one, other, "")

    def _record(self, one: relax.Expr, other: relax.Expr) -> None:
        is_tensor = isinstance(other.ty, relax.TensorType)
        if is_tensor and isinstance(one, relax.Var) and isinstance(other, relax.Var):
            self._pairs.setdefault(one, other)

    def _differ(self, one: relax.Expr, other: relax.Expr, how: str) -> None:
        names = self._quantized.describe(one), self._real.describe(other)
        self._differences.append(
            f"{names[0]} of the quantised model is where the float model has {names[1]}{how}."
        )

    def _skips(self, one: relax.Expr, other: relax.Expr, limited: bool, exact: bool) -> bool:
        """Look through ops that quantization folds away."""
        call, theirs = self._quantized.value(one), self._real.value(other)
        behind = self._without(theirs, limited)
        if behind is not None and not self._are_same(call, theirs):
            if exact:
                self._record(one, other)
            self._stack.append((one, behind, False))
            return True
        if exact:
            return False
        # The constants of a batch_norm were added to those of the op before it.
        mine, behind = (_offset(graph, item) for graph, item in self._both(call, theirs))
        if (mine is None) == (behind is None):
            return False
        self._stack.append(
            (one if mine is None else mine, other if behind is None else behind, False)
        )
        return True

    def _both(self, call: relax.Expr, theirs: relax.Expr) -> list[tuple[Graph, relax.Expr]]:
        return [(self._quantized, call), (self._real, theirs)]

    def _without(self, value: relax.Expr, limited: bool) -> relax.Expr | None:
        """Return the operand of an op that a quantised model may lack."""
        if limited and op_name(value) in _LIMITS:
            return value.args[0]
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            source = self._real.value(value.tuple_value)
            if is_call_of("relax.nn.batch_norm", source):
                return source.args[0]
        return None

    def _are_same(self, call: relax.Expr, theirs: relax.Expr) -> bool:
        sources = [
            graph.value(item.tuple_value) if isinstance(item, relax.TupleGetItem) else item
            for graph, item in self._both(call, theirs)
        ]
        return op_name(sources[0]) == op_name(sources[1])

    def _attributes(self, call: relax.Call, theirs: relax.Call) -> str:
        """Return how the attributes of two calls of an op differ."""
        mine, other = (_attributes_of(item) for item in (call, theirs))
        for key in sorted({*mine, *other} - {*_IGNORED}):
            one, two = mine.get(key), other.get(key)
            if isinstance(one, tvm.ir.GlobalVar) and isinstance(two, tvm.ir.GlobalVar):
                kernels = self._quantized.mod[one], self._real.mod[two]
                kernels = tuple(item.without_attr("global_symbol") for item in kernels)
                if not tvm_ffi.structural_equal(*kernels):
                    return "the kernels differ"
            elif one != two:
                return f"{key} is {one} and {two}"
        return ""

    def _in_order(self, mine: Sequence[relax.Expr], theirs: Sequence[relax.Expr]) -> bool:
        """Whether the two operands of a commutative op are in the same order in both models."""
        straight = all(self._alike(*pair, 6) for pair in zip(mine, theirs, strict=True))
        crossed = zip(mine, reversed(theirs), strict=True)
        return straight or not all(self._alike(*pair, 6) for pair in crossed)

    def _alike(self, one: relax.Expr, other: relax.Expr, depth: int) -> bool:
        one, limited = self._quantized.origin(one)
        constant = self._quantized.is_constant(one), self._real.is_constant(other)
        if any(constant) or depth == 0:
            return constant[0] == constant[1]
        call, theirs = self._quantized.value(one), self._real.value(other)
        if call is None or theirs is None:
            return call is None and theirs is None
        if not self._are_same(call, theirs):
            behind = self._without(theirs, limited)
            if behind is None:
                behind = _offset(self._real, theirs)
            if behind is not None:
                return self._alike(one, behind, depth - 1)
            before = _offset(self._quantized, call)
            return before is not None and self._alike(before, other, depth - 1)
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


def _attributes_of(call: relax.Call) -> dict[str, object]:
    attributes = arguments_of(call, {})[1]
    for item in call.args:
        if isinstance(item, tvm.ir.GlobalVar):
            name = plain(item)
            attributes = {key: value for key, value in attributes.items() if value != name}
            attributes["kernel"] = item
    rank = getattr(call.args[0].ty, "ndim", 0) if call.args else 0
    for key in ("axis", "axes"):
        value = attributes.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value < 0:
            attributes[key] = value + rank
        elif isinstance(value, tuple):
            numbers = (
                item + rank if isinstance(item, int) and item < 0 else item for item in value
            )
            attributes[key] = tuple(sorted(numbers)) if op_name(call) in _REDUCE else tuple(numbers)
    return attributes


_REDUCE = tuple(f"relax.{name}" for name in ("mean", "sum", "max", "min", "prod", "variance"))


def _offset(graph: Graph, value: relax.Expr) -> relax.Expr | None:
    """Return the value that a constant is added to."""
    if not is_call_of("relax.add", value):
        return None
    constant = [graph.is_constant(item) for item in value.args]
    return value.args[constant.index(False)] if constant.count(True) == 1 else None
