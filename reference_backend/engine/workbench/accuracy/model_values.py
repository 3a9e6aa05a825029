# SPDX-License-Identifier: Apache-2.0
"""The values of a model, and the real numbers that integers represent."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...backend.ir.calls import Constant, with_arguments
from ...backend.passes.quantized_form import DEQUANTIZE, QUANTIZE
from ...backend.passes.rewriting import is_call_of, op_name
from ...backend.regions import ir

Pairs = dict[relax.Var, relax.Var]
"""The float model's value for values of the quantized one."""


class Graph:
    """The function `main` of a model, without aliases; messages call the model `title`."""

    def __init__(self, mod: tvm.IRModule, title: str) -> None:
        names = {global_var.name_hint: global_var for global_var in mod.get_global_vars()}
        if "main" not in names or not isinstance(mod["main"], relax.Function):
            raise ValueError(f"The {title} has no function 'main'; it has {sorted(names)}.")
        self.mod, self.title = mod, title
        function = mod["main"]
        self.params: list[relax.Var] = list(function.params)
        self.values: dict[relax.Var, relax.Expr] = {}
        self.constants: set[relax.Var] = set()
        """The values that do not depend on the inputs."""
        self.names: dict[relax.Var, list[str]] = {}
        """All names of each value: the passes may keep any of them."""
        self._aliases: dict[relax.Var, relax.Expr] = {}
        body = function.body
        for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
            for binding in block.bindings:
                self._add(binding.var, self.resolved(binding.value))
        result = self.resolved(body.body if isinstance(body, relax.SeqExpr) else body)
        self.results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        self._drop_unused()
        self.positions = {var: index for index, var in enumerate(self.values)}
        self.readers: dict[relax.Var, list[relax.Expr | None]] = {}
        for value in self.values.values():
            for var in ir.operands(value):
                self.readers.setdefault(var, []).append(value)
        for var in ir.operands(relax.Tuple(self.results)):
            self.readers.setdefault(var, []).append(None)

    def resolved(self, expr: relax.Expr) -> relax.Expr:
        """Return a value without aliases."""
        if isinstance(expr, relax.Var):
            return self._aliases.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.resolved(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            source = self.resolved(expr.tuple_value)
            if isinstance(source, relax.Tuple):
                return source.fields[expr.index]
            return relax.TupleGetItem(source, expr.index)
        if isinstance(expr, relax.Call):
            return with_arguments(expr, [self.resolved(operand) for operand in expr.args])
        return expr

    def _add(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.If | relax.Function | relax.SeqExpr):
            raise ValueError(
                f"The {self.title} has a branch or a local function in '{var.name}'; supported is "
                "a 'main' of calls alone."
            )
        if not isinstance(value, relax.Call | relax.TupleGetItem):
            self._aliases[var] = value
            if isinstance(value, relax.Var):
                self.names.setdefault(value, []).append(str(var.name))
            return
        self.values[var] = value
        self.names[var] = [str(var.name)]
        if is_call_of(value, "relax.shape_of") or self.constants.issuperset(ir.operands(value)):
            self.constants.add(var)

    def _drop_unused(self) -> None:
        used = set(ir.operands(relax.Tuple(self.results)))
        for var in reversed(list(self.values)):
            if var in used:
                used.update(ir.operands(self.values[var]))
            else:
                del self.values[var]

    def add(self, name: str, call: relax.Call) -> relax.Var:
        """Bind a call to a new variable."""
        call = relax.BlockBuilder().normalize(call)
        var = relax.Var(name, call.ty)
        self.values[var] = call
        self.names[var] = [name]
        return var

    def is_constant(self, expr: relax.Expr) -> bool:
        """Whether a value does not depend on the inputs."""
        return self.constants.issuperset(ir.operands(expr))

    def value(self, expr: relax.Expr) -> relax.Expr | None:
        """Return the call that computes a value, or None."""
        return self.values.get(expr) if isinstance(expr, relax.Var) else None

    def origin(self, expr: relax.Expr) -> tuple[relax.Expr, bool]:
        """Return the value that integers represent, and whether quantization limits it.

        A cast between types of real numbers represents the same value.
        """
        limited = False
        while (value := self.value(expr)) is not None:
            narrows = is_call_of(value, "relax.clip") and _is_integer(value)
            casts = is_call_of(value, "relax.astype") and is_real(value) and is_real(value.args[0])
            if not narrows and not casts and op_name(value) not in (QUANTIZE, DEQUANTIZE):
                break
            limited = limited or narrows or is_call_of(value, QUANTIZE)
            expr = value.args[0]
        return expr, limited

    def real_number(self, data: relax.Expr, number: Any) -> Any:
        """Return the real number of one among integers of known scale, or the same number."""
        while "int" in str(getattr(data.ty, "dtype", "int")):
            value = self.value(data)
            if is_call_of(value, QUANTIZE):
                scale, zero_point = value.args[1:3]
                if not isinstance(scale, Constant) or not isinstance(zero_point, Constant):
                    break
                step, zero = scale.value.numpy(), zero_point.value.numpy()
                return float((number - int(zero)) * step) if step.size == 1 else number
            if isinstance(value, relax.TupleGetItem):
                data = value.tuple_value
            elif isinstance(value, relax.Call) and value.args:
                data = value.args[0]
            else:
                break
        return number

    def describe(self, expr: relax.Expr) -> str:
        """Return the name and the op of a value, for messages."""
        if not isinstance(expr, relax.Var):
            return "a constant" if isinstance(expr, Constant) else "a tuple"
        source = "an input" if expr in self.params else self._op(self.values.get(expr))
        return f"'{expr.name}' ({source})"

    def _op(self, value: relax.Expr | None) -> str:
        if isinstance(value, relax.TupleGetItem):
            return f"result {value.index} of {self._op(self.value(value.tuple_value))}"
        return ir.callee(value).rpartition(".")[2] if isinstance(value, relax.Call) else "a value"


def _is_integer(expr: relax.Expr) -> bool:
    return "int" in str(getattr(expr.ty, "dtype", ""))


def is_real(expr: relax.Expr) -> bool:
    """Whether a tensor is of real numbers."""
    return "float" in str(getattr(expr.ty, "dtype", ""))
