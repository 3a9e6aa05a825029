# SPDX-License-Identifier: Apache-2.0
"""What an instruction computes for each element, as a table says it: `min(max(a, low), high)`.

By it, the compiler finds the expressions that an instruction of the vendor's own stands for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .operations import FUNCTIONS, OPERATIONS


@dataclass(frozen=True)
class Call:
    """An operation or function of fields, numbers and other calls."""

    name: str
    operands: tuple[Call | str | float, ...]


def meaning_of(text: str) -> Call:
    """Read a meaning.

    Raises
    ------
    ValueError
        It is none; the message says why.
    """
    try:
        found = _read(ast.parse(text, mode="eval").body, text)
    except SyntaxError:
        raise ValueError(f"'{text}' is no expression") from None
    if not isinstance(found, Call):
        raise ValueError(f"'{text}' computes nothing; a meaning is an operation or a function")
    return found


def _read(part: ast.expr, text: str) -> Call | str | float:
    match part:
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]):
            wanted = 2 if name in OPERATIONS else 1 if name in FUNCTIONS else 0
            if not wanted:
                known = ", ".join((*OPERATIONS, *FUNCTIONS))
                raise ValueError(f"'{text}' has '{name}', which is none of {known}")
            if len(given) != wanted:
                raise ValueError(f"'{text}' gives {name} {len(given)} operands; it has {wanted}")
            return Call(name, tuple(_read(it, text) for it in given))
        case ast.Name(id=name):
            return name
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -float(number)
    raise ValueError(f"'{text}' has '{ast.unparse(part)}', which is no call, field or number")


def named_in(part: Call | str | float) -> Iterator[str]:
    """Return the fields that a meaning names, in their order."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Call):
        for operand in part.operands:
            yield from named_in(operand)


def computed(part: Call | str | float, given: Mapping[str, Any], dtype: Any) -> Any:
    """Compute a meaning of arrays and numbers with elements of a type."""
    match part:
        case Call(name, operands):
            function: Any = OPERATIONS.get(name) or FUNCTIONS[name]
            return function(*(computed(it, given, dtype) for it in operands))
        case str():
            return given[part]
    return dtype.type(part)
