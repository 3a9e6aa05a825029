# SPDX-License-Identifier: Apache-2.0
"""Finds the expressions that instructions of the table stand for, by what they `mean`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..kinds import Address, Choice, Float
from ..machine import Instruction, Machine
from ..meaning import Call, meaning_of
from ..operations import has_operation
from .loops import Const, Expr, Fun, Op

_COMMUTATIVE = ("add", "mul", "min", "max", "and", "or", "xor")


def meant(machine: Machine, value: Expr) -> Iterator[tuple[Instruction, Mapping[str, Expr]]]:
    """Return the instructions that mean an expression with what their fields are.

    Those that mean the most come first.
    """
    if not isinstance(value, Op | Fun):
        return
    known = [(it, meaning_of(it.means)) for it in machine.instructions.values() if it.means]
    for instruction, meaning in sorted(known, key=lambda it: -_calls(it[1])):
        kind = instruction.fields.get("type")
        types = kind.names if isinstance(kind, Choice) else ("f32",)
        if value.type not in types:
            continue
        for found in _matches(instruction, meaning, value, value.type, {}):
            yield instruction, {name: found[name] for name in instruction.fields if name in found}
            break


def _calls(part: Call | str | float) -> int:
    return 1 + sum(map(_calls, part.operands)) if isinstance(part, Call) else 0


def _matches(
    instruction: Instruction,
    part: Call | str | float,
    value: Expr,
    kind: str,
    found: Mapping[str, Expr],
) -> Iterator[Mapping[str, Expr]]:
    """Return the ways in which a part of a meaning is an expression."""
    if value.type != kind:
        return
    match part, value:
        case float(), Const():
            if value.value == part:
                yield found
        case str(), _:
            fits = Float if isinstance(value, Const) else Address
            if isinstance(instruction.fields[part], fits) and found.get(part, value) == value:
                yield {**found, part: value}
        case Call(name, (only,)), Fun(fun=fun, a=a) if name == fun:
            yield from _matches(instruction, only, a, kind, found)
        case Call(name, (one, other)), Op(op=op, a=a, b=b) if name == op and has_operation(
            op, kind
        ):
            orders = ((a, b), (b, a)) if op in _COMMUTATIVE else ((a, b),)
            for first, second in orders:
                for known in _matches(instruction, one, first, kind, found):
                    yield from _matches(instruction, other, second, kind, known)
