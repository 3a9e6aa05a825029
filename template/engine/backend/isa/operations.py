# SPDX-License-Identifier: Apache-2.0
"""The operations, functions and conversions of elements, in NumPy: what tables name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NUMPY_TYPES = {
    **{"f32": "float32", "f16": "float16", "f64": "float64"},
    **{"i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"},
    "bool": "uint8",
}
"""What NumPy calls the element types."""

REALS = ("f32", "f16", "f64")


def _floor_div(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    return np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b))).astype(a.dtype)


def _floor_mod(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b))).astype(a.dtype)


def _compare(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(a, b).astype(np.uint8)


def _shift(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Shifts by more than the bits of a type are those by as many as it has, less one."""

    def shifted(a: Any, b: Any) -> Any:
        return function(a, np.clip(b, 0, 8 * a.dtype.itemsize - 1))

    return shifted


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _floor_div,
    "mod": _floor_mod,
    "min": np.minimum,
    "max": np.maximum,
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "pow": lambda a, b: np.power(a, b).astype(a.dtype),
    "atan2": lambda a, b: np.arctan2(a, b).astype(a.dtype),
}
"""What operations of two operands mean. Only integers have and, or, xor, shl and shr, and only
reals pow and atan2."""

COMPARISONS = ("eq", "ne", "lt", "le")
INTEGER_ONLY = ("and", "or", "xor", "shl", "shr")
REAL_ONLY = ("pow", "atan2")


def has_operation(op: str, kind: str) -> bool:
    """Whether elements of a type have the operation."""
    return op not in (INTEGER_ONLY if kind in REALS else REAL_ONLY)


def _each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """Return a function of Python's, which NumPy does not have, for arrays."""
    return lambda a: np.vectorize(function, otypes=[a.dtype])(a).astype(a.dtype)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: (1 / np.sqrt(a)).astype(a.dtype),
    "tanh": np.tanh,
    "sigmoid": lambda a: (1 / (1 + np.exp(-a))).astype(a.dtype),
    "erf": _each(math.erf),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "abs": np.abs,
}
"""What functions of float32 mean; round is to the nearest, halves to even."""


def converted(array: Array, kind: str) -> Array:
    """Return elements as another type.

    Reals become integers without their fractions; they saturate, and what is no number is 0.
    Integers wrap.

    Parameters
    ----------
    array
        Elements of any type and shape.
    kind
        The element type of the result.
    """
    wanted = np.dtype(NUMPY_TYPES[kind])
    if kind == "bool":
        return np.not_equal(array, 0).astype(np.uint8)
    if array.dtype.kind == "f" and wanted.kind != "f":
        info = np.iinfo(wanted)
        whole = np.trunc(np.nan_to_num(array.astype(np.float64), posinf=1e300, neginf=-1e300))
        # The largest integer of 64 bits is no float64.
        high = whole >= float(info.max)
        clipped = np.clip(whole, float(info.min), float(info.max))
        return np.where(high, info.max, np.where(high, 0, clipped).astype(np.int64)).astype(wanted)
    return array.astype(wanted)
