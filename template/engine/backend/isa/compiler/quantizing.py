# SPDX-License-Identifier: Apache-2.0
"""Finds what the instruction `vecq` computes: an operation on bytes that stand for real numbers.

`node_integers.py` writes `(a - zero) * scale` to read them, and `round(a / scale) + zero` to store.
Cutting real numbers is cutting bytes, since both only grow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..kinds import Choice
from ..machine import Machine
from .loops import Cast, Const, Expr, Fun, Op, Quantized

_LIMITS = {"i8": (-128, 127), "u8": (0, 255)}


def with_quantizing(value: Expr, machine: Machine) -> Expr:
    """Return an expression as `Quantized`, if it is one and the machine has the instruction."""
    known = machine.instructions.get("vecq")
    operations = known.fields["op"] if known is not None else None
    if not isinstance(value, Cast) or value.type not in _LIMITS:
        return value
    # A sum of integers is rounded again, which changes nothing.
    rest, zero = _shifted(_rounded(value.a))
    match rest if zero else value.a:
        case Fun(fun="round", a=a):
            rest = _rounded(a)
        case _:
            return value
    if isinstance(rest, Op) and rest.op == "div" and isinstance(rest.b, Const) and rest.b.value > 0:
        found = _cut(rest.a, (float(rest.b.value), zero), value.type)
        if found is not None and isinstance(operations, Choice) and found.op in operations.names:
            return found
    return value


def _cut(value: Expr, stored: tuple[float, int], kind: str) -> Quantized | None:
    """Return an operation with limits; `stored`: the scale and zero point of the result."""
    scale, zero = stored
    match value:
        case Op(op="min" | "max" as op, a=a, b=Const(value=number), type="f32"):
            found = _cut(a, stored, kind)
            if found is None or not np.isfinite(number):
                return None
            with np.errstate(over="ignore"):
                end = np.round(np.float32(number) / np.float32(scale)) + np.float32(zero)
            at = int(max(found.least, min(float(end), found.most)))
            return replace(found, least=at) if op == "max" else replace(found, most=at)
        case Op(op=op, a=a, b=b, type="f32"):
            one, other = _read(a), _read(b)
            if one is None or other is None:
                return None
            zeros, scales = (one[1], other[1], zero), (one[2], other[2], scale)
            return Quantized(op, one[0], other[0], zeros, scales, *_LIMITS[kind], kind)
    return None


def _read(value: Expr) -> tuple[Expr, int, float] | None:
    """Return bytes, their zero point and their scale, if an expression is what they stand for."""
    match value:
        case Op(op="mul", a=Cast(a=a), b=Const(value=scale), type="f32"):
            number, zero = _shifted(a)
            while isinstance(number, Cast) and number.type == "i32":
                number = number.a
            if number.type in _LIMITS:
                return number, -zero, float(scale)
    return None


def _shifted(value: Expr) -> tuple[Expr, int]:
    """Return what a byte is added to, and that, if that is so."""
    match value:
        case Op(op="add" | "sub" as op, a=a, b=Const(value=number)):
            if number == int(number) and abs(number) <= 255:
                return a, int(number) if op == "add" else -int(number)
    return value, 0


def _rounded(value: Expr) -> Expr:
    """Return what is rounded; integers stay what they are."""
    return value.a if isinstance(value, Fun) and value.fun == "round" else value
