# SPDX-License-Identifier: Apache-2.0
"""Functions, copies and types of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax

from .call import Call, Rule, is_real, sizes_of

Make = Callable[..., relax.Expr]
"""A function of Relax."""


def _function(make: Make) -> Rule:
    """Compute a real function, also of integers."""

    def rule(op: Call) -> relax.Expr:
        dtype = op.result_type
        # LLVM has these in float32 only.
        inner = "float32" if dtype == "float16" and op.name in _SINGLE else dtype
        return op.cast(op.emit(make(op.operand("self", inner))), dtype)

    return rule


def _rounded(make: Make) -> Rule:
    """Round real numbers; integers stay."""

    def rule(op: Call) -> relax.Expr:
        dtype = op.result_type
        if not is_real(dtype):
            return op.value("self")
        if op["decimals"]:
            return op.by_tvm()
        return op.emit(make(op.operand("self", dtype)))

    return rule


def _numbers(make: Make) -> Rule:
    """Compute a function of numbers; of booleans it is the identity."""

    def rule(op: Call) -> relax.Expr:
        value = op.value("self")
        return value if op.result_type == "bool" else op.emit(make(value))

    return rule


def _negative(op: Call) -> relax.Expr:
    value, dtype = op.value("self"), op.result_type
    if not dtype.startswith("u"):
        return _numbers(relax.op.negative)(op)
    # TVM multiplies by -1, which these types lack.
    return op.emit(relax.op.subtract(relax.const(0, dtype), value))


def _sign(op: Call) -> relax.Expr:
    value, dtype = op.value("self"), op.result_type
    if not dtype.startswith("u"):
        return _numbers(relax.op.sign)(op)
    return op.emit(relax.op.minimum(value, relax.const(1, dtype)))


def _absolute(op: Call) -> relax.Expr:
    value = op.value("self")
    return value if op.result_type.startswith(("u", "bool")) else op.emit(relax.op.abs(value))


def _tested(make: Make, of_integers: bool) -> Rule:
    """Test elements for values that only real numbers have."""

    def rule(op: Call) -> relax.Expr:
        value = op.value("self")
        if is_real(str(value.ty.dtype)):
            return op.emit(make(value))
        filled = relax.const(of_integers, "bool")
        return op.emit(relax.op.full_like(value, filled, "bool"))

    return rule


def _of(constant: float, make: Make) -> Make:
    """Return a function of the logarithm with a factor."""
    return lambda x: make(relax.op.log(x), relax.const(constant, x.ty.dtype))


def _reciprocal(x: relax.Expr) -> relax.Expr:
    return relax.op.divide(relax.const(1, x.ty.dtype), x)


def _exp_minus_one(x: relax.Expr) -> relax.Expr:
    return relax.op.subtract(relax.op.exp(x), relax.const(1, x.ty.dtype))


def _log_plus_one(x: relax.Expr) -> relax.Expr:
    return relax.op.log(relax.op.add(x, relax.const(1, x.ty.dtype)))


def _log_sum(op: Call) -> relax.Expr:
    """Compute log(exp(a) + exp(b)) without overflow."""
    dtype, emit = op.result_type, op.emit
    one, other = op.operand("self", dtype), op.operand("other", dtype)
    most, least = emit(relax.op.maximum(one, other)), emit(relax.op.minimum(one, other))
    rest = emit(_log_plus_one(emit(relax.op.exp(emit(relax.op.subtract(least, most))))))
    result = emit(relax.op.add(most, rest))
    # The difference of equal infinities is no number.
    is_same = emit(
        relax.op.logical_and(emit(relax.op.equal(one, other)), emit(relax.op.isinf(one)))
    )
    return emit(relax.op.where(is_same, one, result))


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
    return emit(relax.op.where(emit(relax.op.greater(x, zero)), above, below))


def _relu(op: Call) -> relax.Expr:
    return op.emit(relax.op.nn.relu(op.value("self")))


def _to_copy(op: Call) -> relax.Expr:
    return op.converted(op.value("self"))


def _copy(op: Call) -> relax.Expr:
    value = op.converted(op.value("src"))
    sizes = sizes_of(op.value("self"))
    same = [str(size) for size in sizes] == [str(size) for size in sizes_of(value)]
    return value if same else op.emit(relax.op.broadcast_to(value, sizes))


def _filled(op: Call) -> relax.Expr:
    """Make a tensor like another, of one number."""
    dtype, like = op.result_type, op.value("self")
    if op.name == "zeros_like":
        return op.emit(relax.op.zeros_like(like, dtype))
    if op.name == "ones_like":
        return op.emit(relax.op.ones_like(like, dtype))
    given = "fill_value" if "fill_value" in op.arguments else "value"
    return op.emit(relax.op.full_like(like, op.operand(given, dtype), dtype))


_SINGLE = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")

_FUNCTIONS: dict[str, Make] = {
    "acos": relax.op.acos,
    "acosh": relax.op.acosh,
    "asin": relax.op.asin,
    "asinh": relax.op.asinh,
    "atan": relax.op.atan,
    "atanh": relax.op.atanh,
    "cos": relax.op.cos,
    "cosh": relax.op.cosh,
    "erf": relax.op.erf,
    "exp": relax.op.exp,
    "expm1": _exp_minus_one,
    "log": relax.op.log,
    "log10": _of(math.log(10), relax.op.divide),
    "log1p": _log_plus_one,
    "log2": _of(math.log(2), relax.op.divide),
    "reciprocal": _reciprocal,
    "rsqrt": relax.op.rsqrt,
    "sigmoid": relax.op.sigmoid,
    "sin": relax.op.sin,
    "sinh": relax.op.sinh,
    "sqrt": relax.op.sqrt,
    "tan": relax.op.tan,
    "tanh": relax.op.tanh,
}

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _function(make) for name, make in _FUNCTIONS.items()},
    "aten.logaddexp": _log_sum,
    "aten.abs": _absolute,
    "aten.neg": _negative,
    "aten.sign": _sign,
    "aten.relu": _relu,
    "aten.elu": _elu,
    "aten.ceil": _rounded(relax.op.ceil),
    "aten.floor": _rounded(relax.op.floor),
    "aten.round": _rounded(relax.op.round),
    "aten.trunc": _rounded(relax.op.trunc),
    "aten.isnan": _tested(relax.op.isnan, False),
    "aten.isinf": _tested(relax.op.isinf, False),
    "aten.isfinite": _tested(relax.op.isfinite, True),
    "aten._to_copy": _to_copy,
    "aten.copy": _copy,
    "aten.fill": _filled,
    "aten.full_like": _filled,
    "aten.ones_like": _filled,
    "aten.zeros_like": _filled,
}
"""What converts an op, by its name without the overload."""
