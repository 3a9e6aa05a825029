# SPDX-License-Identifier: Apache-2.0
"""Ops of two operands of PyTorch, in the type to which PyTorch promotes these."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from .call import Call, Rule, is_real

Make = Callable[..., relax.Expr]
"""An op of Relax."""


# ---- Two operands -------------------------------------------------------------------------------


def _binary(make: Make, boolean: Make | None = None) -> Rule:
    """Compute in the type of the result."""

    def rule(op: Call) -> relax.Expr:
        dtype = op.result_type
        chosen = make
        if dtype == "bool":
            if boolean is None:
                op.refuse("operands of type bool are not supported; supported are numbers")
            chosen = boolean
        operands = [op.operand(name, dtype) for name in ("self", "other")]
        return op.emit(chosen(*operands))

    return rule


def _sum(op: Call) -> relax.Expr:
    """Convert add and sub, whose other operand has a factor."""
    dtype = op.result_type
    one, other = op.operand("self", dtype), op.operand("other", dtype)
    alpha = op["alpha"]
    if dtype == "bool":
        if op.name != "add" or alpha not in (None, 1, True):
            op.refuse("operands of type bool are supported for add without alpha only")
        return op.emit(relax.op.logical_or(one, other))
    if op.name == "rsub":
        one, other = other, one
    if alpha not in (None, 1):
        other = op.emit(relax.op.multiply(other, op.as_type(alpha, dtype)))
    return op.emit((relax.op.add if op.name == "add" else relax.op.subtract)(one, other))


def _compared(make: Make) -> Rule:
    """Compare in the type that both operands have in common."""

    def rule(op: Call) -> relax.Expr:
        dtype = op.common_type("self", "other")
        # LLVM compares no booleans.
        one, other = (
            op.cast(op.operand(name, dtype), "int8" if dtype == "bool" else dtype)
            for name in ("self", "other")
        )
        return op.emit(make(one, other))

    return rule


def _logical(make: Make) -> Rule:
    def rule(op: Call) -> relax.Expr:
        return op.emit(make(*(op.truth(op.value(name)) for name in ("self", "other"))))

    return rule


# ---- Quotients ----------------------------------------------------------------------------------


def _divide(op: Call) -> relax.Expr:
    mode, dtype = op["rounding_mode"], op.result_type
    if op.name == "floor_divide":
        mode = "floor"
    one, other = op.operand("self", dtype), op.operand("other", dtype)
    if mode is None:
        return op.emit(relax.op.divide(one, other))
    if mode == "trunc":
        quotient = op.emit(relax.op.divide(one, other))
        return op.emit(relax.op.trunc(quotient)) if is_real(dtype) else quotient
    if not is_real(dtype):
        return op.emit(relax.op.floor_divide(one, other))
    return _floor_of_quotient(op, one, other)


def _floor_of_quotient(op: Call, one: relax.Expr, other: relax.Expr) -> relax.Expr:
    """Round down as Python does: 1 // 0.1 is 9, though 1 / 0.1 is 10 in floats."""
    emit, dtype = op.emit, one.ty.dtype
    zero = relax.const(0, dtype)
    rest = emit(relax.op.mod(one, other))
    quotient = emit(relax.op.divide(emit(relax.op.subtract(one, rest)), other))
    lower = emit(relax.op.subtract(quotient, relax.const(1, dtype)))
    quotient = emit(relax.op.where(_has_other_sign(op, rest, other), lower, quotient))
    floor = emit(relax.op.floor(quotient))
    is_above = emit(
        relax.op.greater(emit(relax.op.subtract(quotient, floor)), relax.const(0.5, dtype))
    )
    upper = emit(relax.op.add(floor, relax.const(1, dtype)))
    floor = emit(relax.op.where(is_above, upper, floor))
    by_zero = emit(relax.op.divide(one, other))
    return emit(relax.op.where(emit(relax.op.equal(other, zero)), by_zero, floor))


def _has_other_sign(op: Call, rest: relax.Expr, divisor: relax.Expr) -> relax.Expr:
    """Whether a remainder is not 0, and its sign is not that of the divisor."""
    zero = relax.const(0, rest.ty.dtype)
    signs = [op.emit(relax.op.less(item, zero)) for item in (rest, divisor)]
    differ = op.emit(relax.op.logical_xor(*signs))
    return op.emit(relax.op.logical_and(op.emit(relax.op.not_equal(rest, zero)), differ))


def _remainder(op: Call) -> relax.Expr:
    dtype = op.result_type
    one, other = op.operand("self", dtype), op.operand("other", dtype)
    if op.name == "fmod":
        return op.emit(relax.op.mod(one, other))
    if not is_real(dtype):
        return op.emit(relax.op.floor_mod(one, other))
    # TVM's floor_mod is one - floor(one / other) * other, which loses digits.
    rest = op.emit(relax.op.mod(one, other))
    other_side = op.emit(relax.op.add(rest, other))
    return op.emit(relax.op.where(_has_other_sign(op, rest, other), other_side, rest))


def _power(op: Call) -> relax.Expr:
    dtype = op.result_type
    exponent = op["exponent"]
    if is_real(dtype):
        return op.emit(relax.op.power(op.operand("self", dtype), op.operand("exponent", dtype)))
    if not isinstance(exponent, int) or exponent < 0:
        op.refuse(
            "powers of integers are supported for exponents that are numbers from 0 on; convert "
            "the base to float"
        )
    base = op.operand("self", dtype)
    if dtype == "bool":
        return base if exponent else op.emit(relax.op.ones_like(base))
    result = None
    for digit in f"{exponent:b}":
        if result is not None:
            result = op.emit(relax.op.multiply(result, result))
        if digit == "1":
            result = base if result is None else op.emit(relax.op.multiply(result, base))
    return op.emit(relax.op.ones_like(base)) if result is None else result


# ---- Bits ---------------------------------------------------------------------------------------


def _shift(make: Make, is_left: bool) -> Rule:
    def rule(op: Call) -> relax.Expr:
        dtype = op.result_type
        if is_real(dtype):
            op.refuse("shifts of real numbers are not supported; supported are integers")
        bits = np.iinfo(dtype).bits
        by = op["other"]
        one = op.operand("self", dtype)
        if isinstance(by, int):
            # More than all bits: nothing remains, or the sign.
            if not 0 <= by < bits:
                if is_left or dtype.startswith("u"):
                    return op.emit(relax.op.zeros_like(one))
                by = bits - 1
            return op.emit(make(one, relax.const(by, dtype)))
        other = op.operand("other", dtype)
        most = relax.const(bits - 1, dtype)
        kept = op.emit(make(one, op.emit(relax.op.clip(other, 0, bits - 1))))
        is_over = op.emit(relax.op.greater(other, most))
        is_over = op.emit(
            relax.op.logical_or(is_over, op.emit(relax.op.less(other, relax.const(0, dtype))))
        )
        gone = (
            relax.const(0, dtype)
            if is_left or dtype.startswith("u")
            else op.emit(relax.op.right_shift(one, most))
        )
        return op.emit(relax.op.where(is_over, gone, kept))

    return rule


def _bitwise_not(op: Call) -> relax.Expr:
    make = relax.op.logical_not if op.result_type == "bool" else relax.op.bitwise_not
    return op.emit(make(op.value("self")))


def _logical_not(op: Call) -> relax.Expr:
    return op.emit(relax.op.logical_not(op.truth(op.value("self"))))


# ---- Choices and limits -------------------------------------------------------------------------


def _where(op: Call) -> relax.Expr:
    if op["self"] is None:
        op.refuse("where with a condition only has results of unknown sizes; give both others")
    dtype = op.result_type
    condition = op.truth(op.value("condition"))
    return op.emit(relax.op.where(condition, op.operand("self", dtype), op.operand("other", dtype)))


def _clamp(op: Call) -> relax.Expr:
    dtype = op.result_type
    x = op.operand("self", dtype)
    low, high = op["min"], op["max"]
    if dtype == "bool":
        op.refuse("elements of type bool are not supported; supported are numbers")
    numbers = all(item is None or isinstance(item, (int, float)) for item in (low, high))
    if numbers and not any(isinstance(item, float) and math.isnan(item) for item in (low, high)):
        limits = (-math.inf, math.inf) if is_real(dtype) else _limits(dtype)
        low, high = limits[0] if low is None else low, limits[1] if high is None else high
        if low > high:
            low = high  # As PyTorch does.
        if is_real(dtype):
            return op.emit(relax.op.clip(x, low, high))
        low, high = (int(min(max(item, limits[0]), limits[1])) for item in (low, high))
        if (low, high) == limits:
            return x
        if low == limits[0]:
            return op.emit(relax.op.minimum(x, relax.const(high, dtype)))
        if high == limits[1]:
            return op.emit(relax.op.maximum(x, relax.const(low, dtype)))
        return op.emit(relax.op.clip(x, low, high))
    if low is not None:
        x = op.emit(relax.op.maximum(x, op.operand("min", dtype)))
    if high is not None:
        x = op.emit(relax.op.minimum(x, op.operand("max", dtype)))
    return x


def _limits(dtype: str) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _masked_fill(op: Call) -> relax.Expr:
    dtype = op.result_type
    mask = op.truth(op.value("mask"))
    return op.emit(relax.op.where(mask, op.operand("value", dtype), op.operand("self", dtype)))


_COMPARED: dict[str, Make] = {
    "eq": relax.op.equal,
    "ge": relax.op.greater_equal,
    "gt": relax.op.greater,
    "le": relax.op.less_equal,
    "lt": relax.op.less,
    "ne": relax.op.not_equal,
}

_LOGICAL: dict[str, Make] = {
    "logical_and": relax.op.logical_and,
    "logical_or": relax.op.logical_or,
    "logical_xor": relax.op.logical_xor,
}

_BITS: dict[str, tuple[Make, Make]] = {
    "and": (relax.op.bitwise_and, relax.op.logical_and),
    "or": (relax.op.bitwise_or, relax.op.logical_or),
    "xor": (relax.op.bitwise_xor, relax.op.logical_xor),
}

_LEFT, _RIGHT = _shift(relax.op.left_shift, True), _shift(relax.op.right_shift, False)

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _compared(make) for name, make in _COMPARED.items()},
    **{f"aten.{name}": _logical(make) for name, make in _LOGICAL.items()},
    **{f"aten.bitwise_{name}": _binary(*makes) for name, makes in _BITS.items()},
    **{f"aten.__{name}__": _binary(*makes) for name, makes in _BITS.items()},
    "aten.bitwise_left_shift": _LEFT,
    "aten.__lshift__": _LEFT,
    "aten.bitwise_right_shift": _RIGHT,
    "aten.__rshift__": _RIGHT,
    "aten.bitwise_not": _bitwise_not,
    "aten.logical_not": _logical_not,
    "aten.add": _sum,
    "aten.sub": _sum,
    "aten.rsub": _sum,
    "aten.mul": _binary(relax.op.multiply, relax.op.logical_and),
    "aten.div": _divide,
    "aten.floor_divide": _divide,
    "aten.fmod": _remainder,
    "aten.remainder": _remainder,
    "aten.pow": _power,
    "aten.atan2": _binary(relax.op.atan2),
    "aten.maximum": _binary(relax.op.maximum, relax.op.logical_or),
    "aten.minimum": _binary(relax.op.minimum, relax.op.logical_and),
    "aten.where": _where,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.masked_fill": _masked_fill,
}
"""What converts an op, by its name without the overload."""
