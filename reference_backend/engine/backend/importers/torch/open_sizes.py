# SPDX-License-Identifier: Apache-2.0
"""Sizes that are open in a PyTorch program: its expressions as those of TVM."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
import tvm
from tvm import relax, tirx

from ...ir.calls import Analyzer

Size: TypeAlias = "int | tvm.ir.Expr"
"""A number, or an expression of the sizes of inputs."""


_MOST = 1 << 62
"""More than any size."""


class Sizes:
    """The symbols of a program, by their names."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._ranges = {str(key): value for key, value in program.range_constraints.items()}
        self._symbols: dict[str, tirx.Var] = {}
        self._inputs: dict[str, tuple[relax.Var, int]] = {}
        self._analyzer = Analyzer()

    def input(self, value: relax.Var, declared: Sequence[int | torch.SymInt]) -> relax.Var:
        """Return an input with the sizes that its program declares, and learn their symbols.

        Where the program forces a size, TVM makes a symbol whose name is the number.
        """
        if not isinstance(value.ty, relax.TensorType) or value.ty.shape is None:
            return value
        sizes: list[Size] = []
        for size, given in zip(declared, value.ty.shape.values, strict=True):
            expression = _expression(size)
            if isinstance(expression, int):
                sizes.append(expression)
                continue
            if not expression.is_Symbol:
                raise ValueError(
                    f"the input {value.name!r} of the program has the open size {expression}; "
                    "supported are sizes that are open by themselves, such as "
                    "torch.export.Dim('n'), and fixed ones"
                )
            self._symbols[str(expression)] = given
            self._analyzer.bind(given, tvm.ir.Range(0, _MOST))
            sizes.append(given)
        result = relax.Var(value.name, relax.TensorType(sizes, value.ty.dtype))
        for axis, size in enumerate(sizes):
            if isinstance(size, tirx.Var):
                self._inputs.setdefault(str(size.name), (result, axis))
        return result

    def limited(self, value: relax.Var) -> relax.TensorType | None:
        """Return the type of an input whose sizes are moved into the ranges of the program.

        PyTorch gives a size that is open the range from 2 on, also where 0 and 1 are right.

        None if there are no ranges. It differs from the input's only outside of the ranges.
        """
        if not isinstance(value.ty, relax.TensorType) or value.ty.shape is None:
            return None
        sizes = [self._within(size) for size in value.ty.shape.values]
        if all(x.same_as(y) for x, y in zip(sizes, value.ty.shape.values, strict=True)):
            return None
        return relax.TensorType(sizes, value.ty.dtype)

    def _within(self, size: tvm.ir.Expr) -> tvm.ir.Expr:
        limits = self._ranges.get(str(getattr(size, "name", "")))
        if limits is None:
            return size
        if _is_number(limits.upper):
            size = tirx.min(size, int(limits.upper))
        if _is_number(limits.lower) and limits.lower > 2:
            size = tirx.max(size, int(limits.lower))
        return size

    def comparison(
        self, symbol: Size, size: tvm.ir.Expr
    ) -> tuple[relax.Var, relax.TensorType] | None:
        """Return an input of which a symbol is a size, and its type with another in this place.

        A match of both compares the sizes. None if the symbol is none, but computed or a number.
        """
        if not isinstance(symbol, tirx.Var):
            return None
        value, axis = self._inputs[str(symbol.name)]
        sizes = list(value.ty.shape.values)
        sizes[axis] = size
        return value, relax.TensorType(sizes, value.ty.dtype)

    def of(self, size: object) -> Size | None:
        """Return a size of the program; None if only the run knows it, or how it is computed."""
        if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)):
            return None
        translated = self._translated(_expression(size))
        if translated is None or isinstance(translated, int):
            return translated
        simple = self._analyzer.simplify(translated)
        return int(simple) if isinstance(simple, tirx.IntImm) else simple

    def of_all(self, sizes: Sequence[object]) -> list[Size] | None:
        """Return the sizes of a tensor of the program; None if one is not known."""
        given = [self.of(size) for size in sizes]
        known = [size for size in given if size is not None]
        return known if len(known) == len(given) else None

    def is_same(self, x: Size, y: Size) -> bool:
        """Whether two sizes are the same, whatever those of the inputs are."""
        if isinstance(x, int) and isinstance(y, int):
            return x == y
        return bool(self._analyzer.can_prove_equal(x, y))

    def is_natural(self, size: Size) -> bool:
        """Whether a size is 0 or more, whatever those of the inputs are."""
        if isinstance(size, int):
            return size >= 0
        return bool(self._analyzer.can_prove(size >= 0))

    def _translated(self, expression: Any) -> Size | None:
        if isinstance(expression, int):
            return expression
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._symbols.get(str(expression))
        make = _FUNCTIONS.get(type(expression).__name__)
        parts = [self._translated(part) for part in expression.args]
        operands = [part for part in parts if part is not None]
        if make is None or len(operands) != len(parts):
            return None
        if type(expression).__name__ == "Pow" and not isinstance(operands[1], int):
            return None
        return reduce(make, operands)


def _expression(size: int | torch.SymInt) -> Any:
    """Return the expression of a size; a number where the program forces it."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression = size.node.expr
    return int(expression) if expression.is_Integer else expression


def _is_number(limit: Any) -> bool:
    return bool(limit.is_Integer) and abs(int(limit)) < _MOST


def _power(base: Any, exponent: int) -> Any:
    return math.prod([base] * exponent) if exponent > 0 else None


_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": _power,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": tirx.max,
    "Min": tirx.min,
}
"""What computes sizes, by the name that PyTorch and SymPy have for it."""
