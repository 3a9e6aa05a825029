# SPDX-License-Identifier: Apache-2.0
"""Functions, copies and types of PyTorch."""

from __future__ import annotations

import math
from functools import partial

from tvm import relax

from .call import Call, Make, Rule, is_real, sizes_of


def _function(make: Make, op: Call) -> relax.Expr:
    """Compute a real function, also of integers."""
    dtype = op.result_type
    # LLVM has some functions in float32 only.
    inner = "float32" if dtype == "float16" and op.name in _SINGLE else dtype
    return op.cast(op.emit(make(op.operand("self", inner))), dtype)


def _rounded(make: Make, op: Call) -> relax.Expr:
    """Round real numbers; integers stay."""
    dtype = op.result_type
    if not is_real(dtype):
        return op.value("self")
    if op["decimals"]:
        return op.by_tvm()
    return make(op.operand("self", dtype))


def _signed(make: Make, of_unsigned: Make, op: Call) -> relax.Expr:
    """Compute a function of numbers, of unsigned ones in another way; booleans stay."""
    value, dtype = op.value("self"), op.result_type
    if dtype == "bool":
        return value
    return of_unsigned(value) if dtype.startswith("u") else make(value)


def _tested(make: Make, of_integers: bool, op: Call) -> relax.Expr:
    """Test elements for values that only real numbers have."""
    value = op.value("self")
    if is_real(str(value.ty.dtype)):
        return make(value)
    filled = relax.const(of_integers, "bool")
    return relax.op.full_like(value, filled, "bool")


def _of(constant: float, make: Make) -> Make:
    """Return a function of the logarithm with a factor."""
    return lambda x: make(relax.op.log(x), relax.const(constant, x.ty.dtype))


def _exp_minus_one(x: relax.Expr) -> relax.Expr:
    return relax.op.subtract(relax.op.exp(x), relax.const(1, x.ty.dtype))


def _log_plus_one(x: relax.Expr) -> relax.Expr:
    return relax.op.log(relax.op.add(x, relax.const(1, x.ty.dtype)))


def _log_sum(op: Call) -> relax.Expr:
    """Compute log(exp(a) + exp(b)) without overflow."""
    dtype, emit = op.result_type, op.emit
    x, y = op.operand("self", dtype), op.operand("other", dtype)
    most, least = emit(relax.op.maximum(x, y)), emit(relax.op.minimum(x, y))
    rest = emit(_log_plus_one(emit(relax.op.exp(relax.op.subtract(least, most)))))
    result = emit(relax.op.add(most, rest))
    # The difference of equal infinities is no number.
    is_same = emit(relax.op.logical_and(relax.op.equal(x, y), relax.op.isinf(x)))
    return relax.op.where(is_same, x, result)


def _elu(op: Call) -> relax.Expr:
    """Scale the positive side, and a (exp(x) - 1) on the other."""
    dtype, emit = op.result_type, op.emit
    x = op.value("self")
    alpha, scale, inner = (op[name] for name in ("alpha", "scale", "input_scale"))
    if (scale, inner) == (1, 1) and alpha >= 0:
        return op.by_tvm()
    zero = relax.const(0, dtype)
    inside = x if inner == 1 else emit(relax.op.multiply(x, relax.const(inner, dtype)))
    below = emit(_exp_minus_one(emit(relax.op.minimum(inside, zero))))
    below = emit(relax.op.multiply(below, relax.const(alpha * scale, dtype)))
    above = emit(relax.op.maximum(x, zero))
    if scale != 1:
        above = emit(relax.op.multiply(above, relax.const(scale, dtype)))
    return relax.op.where(relax.op.greater(x, zero), above, below)


def _copy(op: Call) -> relax.Expr:
    value = op.converted(op.value("src"))
    sizes = sizes_of(op.value("self"))
    same = [str(size) for size in sizes] == [str(size) for size in sizes_of(value)]
    return value if same else relax.op.broadcast_to(value, sizes)


def _filled(op: Call) -> relax.Expr:
    """Make a tensor like another, of one number."""
    dtype, like = op.result_type, op.value("self")
    if op.name == "zeros_like":
        return relax.op.zeros_like(like, dtype)
    if op.name == "ones_like":
        return relax.op.ones_like(like, dtype)
    given = "fill_value" if "fill_value" in op.arguments else "value"
    return relax.op.full_like(like, op.operand(given, dtype), dtype)


_SINGLE = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")

_PLAIN = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log"),
    *("rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)
"""Functions that Relax has by the same name."""

_FUNCTIONS: dict[str, Make] = {
    **{name: getattr(relax.op, name) for name in _PLAIN},
    "expm1": _exp_minus_one,
    "log10": _of(math.log(10), relax.op.divide),
    "log1p": _log_plus_one,
    "log2": _of(math.log(2), relax.op.divide),
    "reciprocal": lambda x: relax.op.divide(relax.const(1, x.ty.dtype), x),
}

RULES: dict[str, Rule] = {
    **{f"aten.{name}": partial(_function, make) for name, make in _FUNCTIONS.items()},
    "aten.logaddexp": _log_sum,
    "aten.abs": partial(_signed, relax.op.abs, lambda x: x),
    # TVM multiplies by -1, which unsigned types lack.
    "aten.neg": partial(
        _signed, relax.op.negative, lambda x: relax.op.subtract(relax.const(0, x.ty.dtype), x)
    ),
    "aten.sign": partial(
        _signed, relax.op.sign, lambda x: relax.op.minimum(x, relax.const(1, x.ty.dtype))
    ),
    "aten.relu": lambda op: relax.op.nn.relu(op.value("self")),
    "aten.elu": _elu,
    "aten.ceil": partial(_rounded, relax.op.ceil),
    "aten.floor": partial(_rounded, relax.op.floor),
    "aten.round": partial(_rounded, relax.op.round),
    "aten.trunc": partial(_rounded, relax.op.trunc),
    "aten.isnan": partial(_tested, relax.op.isnan, False),
    "aten.isinf": partial(_tested, relax.op.isinf, False),
    "aten.isfinite": partial(_tested, relax.op.isfinite, True),
    "aten._to_copy": lambda op: op.converted(op.value("self")),
    "aten.copy": _copy,
    **{f"aten.{name}": _filled for name in ("fill", "full_like", "ones_like", "zeros_like")},
}
