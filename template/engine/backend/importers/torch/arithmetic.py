# SPDX-License-Identifier: Apache-2.0
"""Ops of two operands of PyTorch, in the type to which PyTorch promotes the operands."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from tvm import relax

from .call import Call, Make, Rule, is_real

# ---- Two operands -------------------------------------------------------------------------------


def _binary(make: Make, of_truth: Make | None, op: Call) -> relax.Expr:
    """Compute in the type of the result; of truth values, another op of Relax is the same."""
    dtype = op.result_type
    if dtype == "bool":
        if of_truth is None:
            op.refuse("operands of type bool are not supported; supported are numbers")
        make = of_truth
    return make(*(op.operand(name, dtype) for name in ("self", "other")))


def _sum(op: Call) -> relax.Expr:
    """Convert add and sub, whose other operand has a factor."""
    dtype = op.result_type
    x, y, alpha = op.operand("self", dtype), op.operand("other", dtype), op["alpha"]
    if dtype == "bool":
        if op.name != "add" or alpha not in (None, 1, True):
            op.refuse("operands of type bool are supported for add without alpha only")
        return relax.op.logical_or(x, y)
    if op.name == "rsub":
        x, y = y, x
    if alpha not in (None, 1):
        y = op.emit(relax.op.multiply(y, op.as_type(alpha, dtype)))
    return (relax.op.add if op.name == "add" else relax.op.subtract)(x, y)


def _compared(make: Make, op: Call) -> relax.Expr:
    """Compare in the type that both operands have in common."""
    dtype = op.common_type("self", "other")
    # LLVM compares no booleans.
    x, y = (
        op.cast(op.operand(name, dtype), "int8" if dtype == "bool" else dtype)
        for name in ("self", "other")
    )
    return make(x, y)


def _logical(make: Make, op: Call) -> relax.Expr:
    return make(*(op.truth(op.value(name)) for name in ("self", "other")))


# ---- Quotients ----------------------------------------------------------------------------------


def _divide(op: Call) -> relax.Expr:
    mode, dtype = op["rounding_mode"], op.result_type
    if op.name == "floor_divide":
        mode = "floor"
    x, y = op.operand("self", dtype), op.operand("other", dtype)
    if mode is None:
        return relax.op.divide(x, y)
    if mode == "trunc":
        quotient = op.emit(relax.op.divide(x, y))
        return relax.op.trunc(quotient) if is_real(dtype) else quotient
    if not is_real(dtype):
        return relax.op.floor_divide(x, y)
    return _floor_of_quotient(op, x, y)


def _floor_of_quotient(op: Call, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Round down as Python does: 1 // 0.1 is 9, though 1 / 0.1 is 10 in floats."""
    emit, dtype = op.emit, x.ty.dtype
    zero = relax.const(0, dtype)
    rest = emit(relax.op.mod(x, y))
    quotient = emit(relax.op.divide(relax.op.subtract(x, rest), y))
    lower = emit(relax.op.subtract(quotient, relax.const(1, dtype)))
    quotient = emit(relax.op.where(_has_other_sign(op, rest, y), lower, quotient))
    floor = emit(relax.op.floor(quotient))
    is_above = emit(relax.op.greater(relax.op.subtract(quotient, floor), relax.const(0.5, dtype)))
    upper = emit(relax.op.add(floor, relax.const(1, dtype)))
    floor = emit(relax.op.where(is_above, upper, floor))
    by_zero = emit(relax.op.divide(x, y))
    return relax.op.where(relax.op.equal(y, zero), by_zero, floor)


def _has_other_sign(op: Call, rest: relax.Expr, divisor: relax.Expr) -> relax.Expr:
    """Whether a remainder is not 0, and its sign is not that of the divisor."""
    zero = relax.const(0, rest.ty.dtype)
    signs = [op.emit(relax.op.less(sign, zero)) for sign in (rest, divisor)]
    differ = op.emit(relax.op.logical_xor(*signs))
    return relax.op.logical_and(relax.op.not_equal(rest, zero), differ)


def _remainder(op: Call) -> relax.Expr:
    dtype = op.result_type
    x, y = op.operand("self", dtype), op.operand("other", dtype)
    if op.name == "fmod":
        return relax.op.mod(x, y)
    if not is_real(dtype):
        return relax.op.floor_mod(x, y)
    # TVM's floor_mod is x - floor(x / y) * y, which loses digits.
    rest = op.emit(relax.op.mod(x, y))
    across = op.emit(relax.op.add(rest, y))
    return relax.op.where(_has_other_sign(op, rest, y), across, rest)


def _power(op: Call) -> relax.Expr:
    dtype = op.result_type
    exponent = op["exponent"]
    if is_real(dtype):
        return relax.op.power(op.operand("self", dtype), op.operand("exponent", dtype))
    if not isinstance(exponent, int) or exponent < 0:
        op.refuse(
            "powers of integers are supported for exponents that are numbers from 0 on; convert "
            "the base to float"
        )
    base = op.operand("self", dtype)
    if dtype == "bool":
        return base if exponent else relax.op.ones_like(base)
    result = None
    for digit in f"{exponent:b}":
        if result is not None:
            result = op.emit(relax.op.multiply(result, result))
        if digit == "1":
            result = base if result is None else op.emit(relax.op.multiply(result, base))
    return relax.op.ones_like(base) if result is None else result


# ---- Bits ---------------------------------------------------------------------------------------


def _shift(make: Make, is_left: bool, op: Call) -> relax.Expr:
    dtype = op.result_type
    if is_real(dtype):
        op.refuse("shifts of real numbers are not supported; supported are integers")
    bits, by, x = np.iinfo(dtype).bits, op["other"], op.operand("self", dtype)
    loses_sign = is_left or dtype.startswith("u")
    if isinstance(by, int):
        # A shift by all bits or more leaves nothing, or the sign.
        if not 0 <= by < bits:
            if loses_sign:
                return relax.op.zeros_like(x)
            by = bits - 1
        return make(x, relax.const(by, dtype))
    y = op.operand("other", dtype)
    most = relax.const(bits - 1, dtype)
    kept = op.emit(make(x, relax.op.clip(y, 0, bits - 1)))
    is_over = op.emit(relax.op.greater(y, most))
    is_over = op.emit(relax.op.logical_or(is_over, relax.op.less(y, relax.const(0, dtype))))
    gone = relax.const(0, dtype) if loses_sign else relax.op.right_shift(x, most)
    return relax.op.where(is_over, gone, kept)


def _bitwise_not(op: Call) -> relax.Expr:
    make = relax.op.logical_not if op.result_type == "bool" else relax.op.bitwise_not
    return make(op.value("self"))


# ---- Choices and limits -------------------------------------------------------------------------


def _where(op: Call) -> relax.Expr:
    if op["self"] is None:
        op.refuse("where with a condition only has results of unknown sizes; give both others")
    dtype = op.result_type
    condition = op.truth(op.value("condition"))
    return relax.op.where(condition, op.operand("self", dtype), op.operand("other", dtype))


def _clamp(op: Call) -> relax.Expr:
    dtype = op.result_type
    x = op.operand("self", dtype)
    low, high = op["min"], op["max"]
    if dtype == "bool":
        op.refuse("elements of type bool are not supported; supported are numbers")
    numbers = all(end is None or isinstance(end, (int, float)) for end in (low, high))
    if numbers and not any(isinstance(end, float) and math.isnan(end) for end in (low, high)):
        limits: tuple[float, float] = (-math.inf, math.inf)
        if not is_real(dtype):
            limits = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        low, high = limits[0] if low is None else low, limits[1] if high is None else high
        if low > high:
            low = high  # As PyTorch does.
        if is_real(dtype):
            return relax.op.clip(x, low, high)
        low, high = (int(min(max(end, limits[0]), limits[1])) for end in (low, high))
        if (low, high) == limits:
            return x
        if low == limits[0]:
            return relax.op.minimum(x, relax.const(high, dtype))
        if high == limits[1]:
            return relax.op.maximum(x, relax.const(low, dtype))
        return relax.op.clip(x, low, high)
    if low is not None:
        x = op.emit(relax.op.maximum(x, op.operand("min", dtype)))
    if high is not None:
        x = op.emit(relax.op.minimum(x, op.operand("max", dtype)))
    return x


def _masked_fill(op: Call) -> relax.Expr:
    dtype = op.result_type
    mask = op.truth(op.value("mask"))
    return relax.op.where(mask, op.operand("value", dtype), op.operand("self", dtype))


_COMPARED = {
    **{"eq": "equal", "ge": "greater_equal", "gt": "greater"},
    **{"le": "less_equal", "lt": "less", "ne": "not_equal"},
}
_BITS = {
    name: partial(
        _binary, *(getattr(relax.op, f"{kind}_{name}") for kind in ("bitwise", "logical"))
    )
    for name in ("and", "or", "xor")
}
_LEFT = partial(_shift, relax.op.left_shift, True)
_RIGHT = partial(_shift, relax.op.right_shift, False)

RULES: dict[str, Rule] = {
    **{f"aten.{name}": partial(_compared, getattr(relax.op, op)) for name, op in _COMPARED.items()},
    "aten.logical_and": partial(_logical, relax.op.logical_and),
    "aten.logical_or": partial(_logical, relax.op.logical_or),
    "aten.logical_xor": partial(_logical, relax.op.logical_xor),
    **{f"aten.bitwise_{name}": rule for name, rule in _BITS.items()},
    **{f"aten.__{name}__": rule for name, rule in _BITS.items()},
    **dict.fromkeys(("aten.bitwise_left_shift", "aten.__lshift__"), _LEFT),
    **dict.fromkeys(("aten.bitwise_right_shift", "aten.__rshift__"), _RIGHT),
    "aten.bitwise_not": _bitwise_not,
    "aten.logical_not": lambda op: relax.op.logical_not(op.truth(op.value("self"))),
    **dict.fromkeys(("aten.add", "aten.rsub", "aten.sub"), _sum),
    "aten.mul": partial(_binary, relax.op.multiply, relax.op.logical_and),
    **dict.fromkeys(("aten.div", "aten.floor_divide"), _divide),
    **dict.fromkeys(("aten.fmod", "aten.remainder"), _remainder),
    "aten.pow": _power,
    "aten.atan2": partial(_binary, relax.op.atan2, None),
    "aten.maximum": partial(_binary, relax.op.maximum, relax.op.logical_or),
    "aten.minimum": partial(_binary, relax.op.minimum, relax.op.logical_and),
    "aten.where": _where,
    **dict.fromkeys(("aten.clamp", "aten.clamp_min", "aten.clamp_max"), _clamp),
    "aten.masked_fill": _masked_fill,
}
