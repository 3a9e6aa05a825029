# SPDX-License-Identifier: Apache-2.0
"""Finds what the instruction `rescale` computes in expressions of 64 bits.

`node_rescale.py` writes it in one form, if numbers and results have 32 bits, and so do multipliers:
`(int64(a) * int64(m) + (1 << (s - 1))) >> s`. TVM may write the cast of a sum as a sum of casts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..machine import Machine
from .loops import Cast, Const, Expr, Load, Op, Rescale, rebuilt

_NARROW = {"i8": (-128, 127), "u8": (0, 255), "i16": (-(1 << 15), (1 << 15) - 1)}
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def with_rescaling(value: Expr, machine: Machine) -> Expr:
    """Return an expression in which steps are `Rescale`, if the machine has the instruction."""
    return _found(value) if "rescale" in machine.instructions else value


def _found(value: Expr) -> Expr:
    value = rebuilt(value, _found)
    match value:
        case Cast(a=Op() as a, type="i32"):
            return _core(a) or value
        case Op(op="add" | "sub" as op, a=Rescale() as a, b=Const(value=int(number))):
            return _plus(a, number if op == "add" else -number) or value
        case Op(op="max", a=Rescale() as a, b=Const(value=int(number))):
            return _within(a, number, a.most)
        case Op(op="min", a=Rescale() as a, b=Const(value=int(number))):
            return _within(a, a.least, number)
        case Cast(a=Rescale() as a, type=kind) if kind in _NARROW:
            low, high = _NARROW[kind]
            # It wraps around where the instruction saturates: neither may happen.
            if low <= a.least and a.most <= high:
                return replace(a, type=kind)
    return value


def _within(value: Rescale, least: int, most: int) -> Rescale:
    least, most = (max(value.least, min(end, value.most)) for end in (least, most))
    return replace(value, least=least, most=most)


def _plus(value: Rescale, number: int) -> Rescale | None:
    """Add a zero point, unless there are limits already: those of the sum would be others."""
    if (value.zero, value.least, value.most) != (0, _LEAST, _MOST) or not _is_i32(number):
        return None
    return replace(value, zero=number)


def _is_i32(number: int) -> bool:
    return _LEAST <= number <= _MOST


def _core(value: Op) -> Rescale | None:
    """Return a rescaling without a zero point and limits."""
    match value:
        case Op(
            op="shr",
            a=Op(
                op="add",
                a=Op(op="mul", a=a, b=multiplier, type="i64"),
                b=Op(op="shl", a=Const(value=1), b=Op(op="sub", a=shift, b=Const(value=1))),
            ),
            b=again,
        ) if shift == again:
            sums, by, bits = map(_narrowed, (a, multiplier, shift))
            if sums is not None and isinstance(by, Load) and isinstance(bits, Load):
                return Rescale(sums, by, bits, 0, _LEAST, _MOST, "i32")
    return None


def _narrowed(value: Expr) -> Expr | None:
    """Return an expression of 64 bits with operands of 32 bits as one of 32 bits."""
    match value:
        case Cast(a=a) if a.type == "i32":
            return a
        case Cast(a=a) if a.type in _NARROW:
            return Cast(a, "i32")
        case Const(value=int(number)) if _is_i32(number):
            return Const(int(np.int32(number)), "i32")
        case Op(op="add" | "sub" as op, a=a, b=b):
            one, other = _narrowed(a), _narrowed(b)
            return None if one is None or other is None else Op(op, one, other, "i32")
    return None
