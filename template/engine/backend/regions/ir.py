# SPDX-License-Identifier: Apache-2.0
"""Reads expressions, and builds the functions of composites and regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import tvm
from tvm import relax

from ..ir.calls import Constant, Values, items_of, resolve


def id_of(node: tvm.runtime.Object) -> int:
    """Return the identity of an IR node."""
    return hash(node)


def operands(expr: relax.Expr) -> list[relax.Var]:
    """Return the variables that an expression reads, except inside functions."""
    if isinstance(expr, relax.Call):
        return [var for argument in items_of(expr.args) for var in operands(argument)]
    if isinstance(expr, relax.Tuple):
        return [var for part in items_of(expr.fields) for var in operands(part)]
    if isinstance(expr, relax.TupleGetItem):
        return operands(expr.tuple_value)
    return [expr] if isinstance(expr, relax.Var) else []


def is_op_call(expr: relax.Expr | None) -> TypeGuard[relax.Call]:
    """Whether an expression calls a Relax op."""
    return isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)


def callee(call: relax.Call) -> str:
    """Return the name of what is called."""
    for name in ("name", "name_hint", "global_symbol"):
        if hasattr(call.op, name):
            return str(getattr(call.op, name))
    return "a function"


def label(binding: relax.Binding) -> str:
    """Return what codegen and the driver call an op in their messages."""
    return f"{callee(binding.value)} ({binding.var.name})"


def fields(ty: tvm.ir.Type) -> list[tvm.ir.Type]:
    """Return the types of what an expression returns."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def tuple_type(types: list[tvm.ir.Type]) -> tvm.ir.Type:
    """Return the type of a function's result; the reverse of `fields`."""
    return types[0] if len(types) == 1 else relax.TupleType(types)


class FunctionBuilder:
    """Builds a function from bindings; outer variables become parameters.

    `values`: values by variable.
    `bind_constants`: whether constants stay inside, rather than become parameters.
    `arguments`: the outer values of the parameters.
    """

    def __init__(self, values: Values, bind_constants: bool) -> None:
        self.arguments: list[relax.Expr] = []
        self._values = values
        self._bind_constants = bind_constants
        self._parameters: list[relax.Var] = []
        self._inside: dict[int, relax.Expr] = {}
        self._bindings: list[relax.Binding] = []

    def use(self, expr: relax.Expr, *, bound: bool = False) -> relax.Expr:
        """Translate an outer expression for use in the function.

        `bound`: whether a constant stays inside whatever `bind_constants` says.
        """
        expr = resolve(expr, self._values)
        if bound and isinstance(expr, Constant):
            return expr
        if id_of(expr) in self._inside:
            return self._inside[id_of(expr)]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.use(part, bound=bound) for part in expr.fields])
        is_argument = isinstance(expr, relax.Var) and not isinstance(expr.ty, tvm.ir.PrimType)
        if is_argument or (isinstance(expr, Constant) and not self._bind_constants):
            name = expr.name if is_argument else f"constant{len(self.arguments)}"
            inside = relax.Var(name, expr.ty)
            self._inside[id_of(expr)] = inside
            self._parameters.append(inside)
            self.arguments.append(expr)
            return inside
        return expr

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Add a binding of a translated value."""
        inside = relax.Var(var.name, var.ty)
        self._inside[id_of(var)] = inside
        self._bindings.append(relax.VarBinding(inside, value))

    def finish(self, outputs: Sequence[relax.Var], attributes: Mapping[str, str]) -> relax.Function:
        """Return the function; several outputs are returned as a tuple."""
        results = [self._inside[id_of(var)] for var in outputs]
        result = results[0] if len(results) == 1 else relax.Tuple(results)
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        ret_ty = tuple_type([var.ty for var in outputs])
        attrs = tvm.ir.DictAttrs(dict(attributes))
        function = relax.Function(self._parameters, body, ret_ty, True, attrs)
        free = list(relax.analysis.free_symbolic_vars(function))
        if free:
            # Symbols that no parameter's shape defines are passed as a shape.
            self._parameters.append(relax.Var("symbols", relax.ShapeType(free)))
            self.arguments.append(relax.ShapeExpr(free))
            function = relax.Function(self._parameters, body, ret_ty, True, attrs)
        if any(relax.analysis.tir_vars_in_type(parameter.ty) for parameter in self._parameters):
            function = relax.utils.copy_with_new_vars(function)
        return function
