# SPDX-License-Identifier: Apache-2.0
"""The formulas of the op table: arithmetic over shapes and attributes.

The generator also checks the catalogue with this file, so it does not import TVM.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType

Value = int | float | str | tuple["Value", ...]
"""An operand of a formula: a number, a shape, or an attribute."""

FUNCTIONS: dict[str, Callable[..., int]] = {"size": math.prod, "len": len, "max": max, "min": min}
"""The functions of formulas; `size` is the number of elements."""

_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub),
    *(ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.Slice, ast.Call),
)


def count(formula: str, names: Mapping[str, object]) -> int:
    """Evaluate a formula."""
    # The functions come last: an attribute may be called `max`.
    return int(eval(_read(formula)[0], {"__builtins__": {}}, {**names, **FUNCTIONS}))


def names_in(formula: object) -> frozenset[str]:
    """Return the shapes and the attributes that a formula needs."""
    return _read(str(formula))[1]


@cache
def _read(text: str) -> tuple[CodeType, frozenset[str]]:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise ValueError(f"'{text}' is not an expression") from None
    names = set()
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, _ARITHMETIC) or (
            called is not None and getattr(called, "id", None) not in FUNCTIONS
        ):
            part = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ValueError(f"'{part}' is not arithmetic of {', '.join(FUNCTIONS)}")
        if isinstance(node, ast.Name):
            names.add(node.id)
    return compile(tree, "formula", "eval"), frozenset(names - set(FUNCTIONS))
