# SPDX-License-Identifier: Apache-2.0
"""The details of an op in the report: its operands, the types around it, and its attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypedDict

import tvm
from tvm import relax

from ..ir.calls import Constant, Size, Values, attributes_of, items_of
from ..shared.messages import size_text
from . import ir


class Detail(TypedDict):
    """The fields of `OpPlacement` that draw the graph."""

    reads: tuple[int, ...]
    inputs: tuple[str, ...]
    arguments: tuple[str, ...]
    result: str
    attributes: dict[str, str]


class Details:
    """The details of the ops of one function; of regions formed `earlier`, by their results."""

    def __init__(self, values: Values, earlier: Mapping[str, int]) -> None:
        self._values = values
        self._earlier = earlier
        self._made: dict[relax.Var, int] = {}
        self._types: dict[relax.Expr, str] = {}

    def of(self, binding: relax.Binding, index: int) -> Detail:
        """Return the details of an op; the ops that it reads come first."""
        call = binding.value
        read = [call]
        if isinstance(call, relax.If):
            read = [call.cond, call.true_branch.body, call.false_branch.body]
        arguments = read[:1] if isinstance(call, relax.If) else call.args
        self._made[binding.var] = index
        return {
            "reads": tuple(dict.fromkeys(at for value in read for at in self._makers(value))),
            "inputs": tuple(dict.fromkeys(at for value in read for at in self._parameters(value))),
            "arguments": tuple(
                self._argument(value) for value in arguments if _holds_tensors(value)
            ),
            "result": self.type_of(binding.var),
            "attributes": self._attributes(call),
        }

    def type_of(self, expr: relax.Expr) -> str:
        """Return a type as text, such as "float32[1, 64]"."""
        if expr not in self._types:
            self._types[expr] = _text_of_type(expr.ty)
        return self._types[expr]

    def _argument(self, expr: relax.Expr) -> str:
        kind = "constant " if isinstance(expr, Constant) else ""
        return kind + self.type_of(expr)

    def _makers(self, expr: relax.Expr) -> Iterator[int]:
        """Generate the ops whose results an expression reads, through tuples."""
        for var in ir.operands(expr):
            if var in self._made:
                yield self._made[var]
                continue
            if str(var.name) in self._earlier:
                yield self._earlier[str(var.name)]
                continue
            value = self._values.get(var)
            if value is not None and not isinstance(value, relax.Call):
                yield from self._makers(value)

    def _parameters(self, expr: relax.Expr) -> Iterator[str]:
        """Generate the parameters of the function that an expression reads, through tuples."""
        for var in ir.operands(expr):
            if var in self._made or str(var.name) in self._earlier:
                continue
            value = self._values.get(var)
            if value is None:
                yield str(var.name)
            elif not isinstance(value, relax.Call):
                yield from self._parameters(value)

    def _attributes(self, call: relax.Call) -> dict[str, str]:
        if not ir.is_op_call(call) or str(call.op.name).startswith("relax.call_"):
            return {}
        given = attributes_of(call, self._values)
        return {name: _text(value) for name, value in given.items() if value not in ("", None)}


def _holds_tensors(expr: relax.Expr) -> bool:
    return any(isinstance(part, relax.TensorType) for part in ir.fields(expr.ty))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, Size):
        return value.name if value.factor == 1 else f"{value.factor} * {value.name}"
    return str(value)


def _text_of_type(ty: tvm.ir.Type) -> str:
    if isinstance(ty, relax.TupleType):
        return "(" + ", ".join(map(_text_of_type, ty.fields)) + ")"
    if not isinstance(ty, relax.TensorType):
        return type(ty).__name__.removesuffix("Type").lower()
    shape = getattr(ty.shape, "values", None)
    sizes = "?" if shape is None else ", ".join(map(size_text, items_of(shape)))
    return f"{ty.dtype}[{sizes}]"
