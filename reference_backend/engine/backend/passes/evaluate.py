# SPDX-License-Identifier: Apache-2.0
"""Computes calls of constants with NumPy, where exactly one result is right.

These are data movement, integer and boolean arithmetic, comparisons, casts, and the operations
whose results IEEE 754 prescribes. TVM's own kernels compute the rest, such as exponentials and
floating-point sums; see `fold.py`. Neither computes calls that would trap or read out of bounds on
the compiling machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..ir.calls import Constant, attributes_of, items_of
from ..shared.aliases import Array, Attributes
from .arrays import DTYPES, array_of, constant_with


class Undefined(Exception):
    """The call has no defined result; no kernel may run it at compile time."""


def fixed_shape(ty: relax.Type) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of a tensor, whose sizes may be zero; None if a size is unknown."""
    if not isinstance(ty, relax.TensorType) or ty.dtype is None or ty.vdevice is not None:
        return None
    if not isinstance(ty.shape, relax.ShapeExpr):
        return None
    sizes = [getattr(size, "value", None) for size in items_of(ty.shape.values)]
    fixed = tuple(size for size in sizes if isinstance(size, int))
    return (str(ty.dtype), fixed) if len(fixed) == len(sizes) else None


def constant_of(call: relax.Call) -> relax.Expr | None:
    """Compute a call of constants; None if an argument is not constant, or NumPy is not exact."""
    name = str(getattr(call.op, "name", "")).removeprefix("relax.")
    if name not in _FUNCTIONS:
        return None
    if name == "shape_of":
        return _shape_of(call)
    arrays: list[Array | list[Array]] = []
    for argument in call.args:
        if isinstance(argument, relax.Tuple):
            if not all(isinstance(field, Constant) for field in argument.fields):
                if all(isinstance(field.ty, tvm.ir.PrimType) for field in argument.fields):
                    continue
                return None
            arrays.append([array_of(field) for field in argument.fields])
        elif isinstance(argument, Constant):
            arrays.append(array_of(argument))
        elif isinstance(argument, relax.Var) or isinstance(argument.ty, relax.TensorType):
            return None
    if name == "shape_to_tensor":
        sizes = _numbers(call.args[0])
        return None if sizes is None else relax.const(np.array(sizes, "int64"), "int64")
    if not arrays:
        return None
    if name == "tensor_to_shape":
        return relax.ShapeExpr([int(size) for size in arrays[0]])
    parts = (operand if isinstance(operand, list) else [operand] for operand in arrays)
    if any(str(array.dtype) not in DTYPES for part in parts for array in part):
        return None
    fields = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    types = [fixed_shape(ty) for ty in fields]
    if any(ty is None or ty[0] not in DTYPES for ty in types):
        return None
    dtype, shape = types[0] or ("", ())
    attributes = {**attributes_of(call, {}), "dtype": dtype, "out_shape": shape, "out": types}
    with np.errstate(all="ignore"):
        result = _FUNCTIONS[name](attributes, *arrays)
    if result is None:
        return None
    # NumPy functions return scalars instead of arrays without dimensions.
    outputs = result if isinstance(result, list | tuple) else [result]
    results = [np.asarray(output) for output in outputs]
    # A result of another type means that we have misread the op.
    if [(str(array.dtype), array.shape) for array in results] != types:
        return None
    constants = [constant_with(array) for array in results]
    return relax.Tuple(constants) if isinstance(call.ty, relax.TupleType) else constants[0]


def is_computed(call: relax.Call) -> bool:
    """Whether NumPy computes such calls, at least for most values."""
    name = str(getattr(call.op, "name", "")).removeprefix("relax.")
    if name not in _FUNCTIONS:
        return False
    if name in _OF_INTEGERS:
        return "float" not in str(getattr(call.ty, "dtype", None) or "float")
    return True


def _shape_of(call: relax.Call) -> relax.ShapeExpr | None:
    values = getattr(call.ty, "values", None)
    if values is None:
        operand = fixed_shape(call.args[0].ty)
        return None if operand is None else relax.ShapeExpr(operand[1])
    fixed = all(isinstance(size, tvm.tirx.IntImm) for size in values)
    return relax.ShapeExpr(list(values)) if fixed else None


def _numbers(shape: relax.Expr) -> list[int] | None:
    if not isinstance(shape, relax.ShapeExpr):
        return None
    sizes = [getattr(size, "value", None) for size in shape.values]
    fixed = [size for size in sizes if isinstance(size, int)]
    return fixed if len(fixed) == len(sizes) else None


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _has_nan(*arrays: Array) -> bool:
    return any(_is_float(array) and bool(np.isnan(array).any()) for array in arrays)


# ---- Arithmetic ---------------------------------------------------------------------------------


def _plain(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return an evaluator for an op with an equivalent NumPy function."""

    def compute(attributes: Attributes, *arrays: Array) -> Array:
        return np.asarray(function(*arrays))

    return compute


def _of_floats(function: Callable[[Array], Array]) -> Callable[..., Array | None]:
    def compute(attributes: Attributes, x: Array) -> Array | None:
        return np.asarray(function(x)) if _is_float(x) else None

    return compute


def _trapping(function: Callable[[Array, Array], Array]) -> Callable[..., Array | None]:
    """Return an evaluator for integer divisions, some of which would trap."""

    def compute(attributes: Attributes, x: Array, y: Array) -> Array | None:
        if _is_float(x):
            return np.asarray(np.divide(x, y)) if function is _truncated_quotient else None
        if (y == 0).any():
            raise Undefined
        if x.dtype.kind == "i" and ((x == np.iinfo(x.dtype).min) & (y == -1)).any():
            raise Undefined
        return np.asarray(function(x, y))

    return compute


def _truncated_quotient(x: Array, y: Array) -> Array:
    # Not in floating point, which lacks the digits of int64.
    quotient = x // y
    return np.where((x % y != 0) & ((x < 0) != (y < 0)), quotient + 1, quotient).astype(x.dtype)


def _larger(attributes: Attributes, x: Array, y: Array) -> Array | None:
    return None if _has_nan(x, y) else np.where(x > y, x, y)


def _smaller(attributes: Attributes, x: Array, y: Array) -> Array | None:
    return None if _has_nan(x, y) else np.where(x < y, x, y)


def _logical(function: Callable[..., Any]) -> Callable[..., Array | None]:
    def compute(attributes: Attributes, *arrays: Array) -> Array | None:
        boolean = all(array.dtype == bool for array in arrays)
        return np.asarray(function(*arrays)) if boolean else None

    return compute


def _shifted(function: Callable[..., Any]) -> Callable[..., Array]:
    def compute(attributes: Attributes, x: Array, y: Array) -> Array:
        if ((y < 0) | (y >= x.dtype.itemsize * 8)).any():
            raise Undefined
        return np.asarray(function(x, y))

    return compute


def _clip(attributes: Attributes, x: Array) -> Array | None:
    low, high = attributes.get("min"), attributes.get("max")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    if _is_float(x):
        if _has_nan(x) or math.isnan(low) or math.isnan(high) or low > high:
            return None
        limits = [np.asarray(limit).astype(x.dtype) for limit in (low, high)]
        raised = np.where(x > limits[0], x, limits[0])
        return np.where(raised < limits[1], raised, limits[1])
    if x.dtype.kind not in "iu":
        return None
    # Front ends clip integers at one end with an infinity at the other.
    info = np.iinfo(x.dtype)
    low = info.min if low == -math.inf else low
    high = info.max if high == math.inf else high
    if any(not info.min <= bound <= info.max or bound != int(bound) for bound in (low, high)):
        return None
    return np.clip(x, int(low), int(high)) if low <= high else None


def _cast(attributes: Attributes, x: Array) -> Array | None:
    dtype = np.dtype(attributes["dtype"])
    if _is_float(x) and dtype.kind in "iu":
        # Compilers differ in out-of-range casts.
        limits = np.iinfo(dtype.name)
        if not np.isfinite(x).all():
            return None
        integers = np.trunc(x.astype("float64"))
        if (integers < float(limits.min)).any() or (integers >= float(limits.max) + 1).any():
            return None
    if x.dtype == "float64" and dtype == "float16":
        return None  # TVM rounds twice on some targets.
    return x.astype(dtype)


def _quantize(attributes: Attributes, x: Array, scale: Array, zero_point: Array) -> Array | None:
    dtype, axis = attributes["dtype"], int(attributes["axis"])
    if x.dtype != "float32" or scale.dtype != "float32" or dtype == "int32" or _has_nan(x, scale):
        return None
    along = [-1 if index == axis % x.ndim else 1 for index in range(x.ndim)]
    steps, zeros = (array.reshape(along if array.size > 1 else ()) for array in (scale, zero_point))
    limits = np.iinfo(dtype)
    integers = np.rint(x / steps) + zeros.astype("float32")
    return None if _has_nan(integers) else np.clip(integers, limits.min, limits.max).astype(dtype)


def _cumulative(attributes: Attributes, x: Array) -> Array | None:
    if attributes.get("exclusive"):
        return None
    axis = attributes.get("axis")
    return np.cumsum(x, axis if isinstance(axis, int) else None, attributes["dtype"])


def _reduced(function: Callable[..., Any], of_floats: bool) -> Callable[..., Array | None]:
    def compute(attributes: Attributes, x: Array) -> Array | None:
        if (_is_float(x) and not of_floats) or _has_nan(x) or x.size == 0:
            return None
        axes = attributes.get("axis")
        axis = axes if isinstance(axes, int | tuple) else None
        result = np.asarray(function(x, axis=axis, keepdims=bool(attributes.get("keepdims"))))
        # Wrap integer sums as their own type does.
        return result.astype(x.dtype) if result.dtype.kind in "iu" else result

    return compute


# ---- Data movement ------------------------------------------------------------------------------


def _reshape(attributes: Attributes, x: Array) -> Array:
    return np.reshape(x, attributes["out_shape"])


def _broadcast(attributes: Attributes, x: Array) -> Array:
    return np.broadcast_to(x, attributes["out_shape"])


def _transpose(attributes: Attributes, x: Array) -> Array:
    return np.transpose(x, attributes["axes"] or None)


def _concat(attributes: Attributes, parts: list[Array]) -> Array:
    axis = attributes["axis"]
    return np.concatenate(parts, axis if isinstance(axis, int) else None)


def _stack(attributes: Attributes, parts: list[Array]) -> Array:
    return np.stack(parts, attributes["axis"] or 0)


def _split(attributes: Attributes, x: Array) -> list[Array]:
    axis = attributes["axis"]
    ends = np.cumsum([shape[axis] for _, shape in attributes["out"]])
    return np.split(x, [int(end) for end in ends[:-1]], axis)


def _slice(attributes: Attributes, x: Array) -> Array | None:
    parts = [attributes.get(name) for name in ("axes", "begin", "end", "strides")]
    axes, begin, end, strides = parts
    strides = strides or (1,) * len(begin or ())
    numbers = [number for part in (axes, begin, end, strides) for number in part or ()]
    if any(not isinstance(number, int) for number in numbers) or min(strides, default=1) < 1:
        return None
    index = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes or (), begin or (), end or (), strides, strict=True):
        index[axis] = slice(first, last, step)
    return x[tuple(index)]


def _take(attributes: Attributes, x: Array, indices: Array) -> Array | None:
    axis = attributes["axis"]
    if axis == "":
        x, axis = x.reshape(-1), 0
    size = x.shape[axis]
    mode = attributes["mode"]
    if mode == "wrap":
        indices = indices % size
    elif mode == "clip":
        indices = np.clip(indices, 0, size - 1)
    elif mode == "fast":
        indices = _from_start(indices, size)
    else:
        return None
    return np.take(x, indices, axis)


def _from_start(indices: Array, size: int) -> Array:
    """Return non-negative indices; importers leave negative ones as they are."""
    if indices.dtype.kind not in "iu" or ((indices < -size) | (indices >= size)).any():
        raise Undefined
    return np.where(indices < 0, indices + size, indices)


def _gather_elements(attributes: Attributes, x: Array, indices: Array) -> Array:
    axis = attributes["axis"]
    indices = _from_start(indices, x.shape[axis])
    places = list(np.indices(indices.shape))
    places[axis] = indices
    return np.asarray(x[tuple(places)])


def _gather_nd(attributes: Attributes, x: Array, indices: Array) -> Array | None:
    if attributes.get("batch_dims") or indices.dtype.kind not in "iu":
        return None
    parts = [_from_start(indices[..., at], x.shape[at]) for at in range(indices.shape[-1])]
    return np.asarray(x[tuple(parts)])


def _index(attributes: Attributes, x: Array, indices: list[Array]) -> Array | None:
    if any(place.dtype.kind not in "iu" for place in indices):
        return None
    parts = [_from_start(place, size) for place, size in zip(indices, x.shape, strict=False)]
    return np.asarray(x[tuple(parts)])


def _repeat(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"]
    return np.repeat(x, attributes["repeats"], axis if isinstance(axis, int) else None)


def _triangle(function: Callable[[Array, int], Array]) -> Callable[..., Array | None]:
    def compute(attributes: Attributes, x: Array) -> Array | None:
        k = attributes.get("k")
        return function(x, k) if isinstance(k, int) and x.ndim > 1 else None

    return compute


def _where(attributes: Attributes, condition: Array, x: Array, y: Array) -> Array | None:
    return np.where(condition, x, y) if condition.dtype == bool else None


def _full_of(number: int | None) -> Callable[..., Array]:
    def compute(attributes: Attributes, x: Array, *value: Array) -> Array:
        element = number if number is not None else value[0]
        return np.full(attributes["out_shape"], element, attributes["dtype"])

    return compute


def _meshgrid(attributes: Attributes, parts: list[Array]) -> list[Array] | None:
    if attributes.get("indexing") not in ("", "ij"):
        return None
    return list(np.meshgrid(*parts, indexing="ij"))


_FUNCTIONS: dict[str, Callable[..., Array | Sequence[Array] | None]] = {
    **dict.fromkeys(("shape_of", "shape_to_tensor", "tensor_to_shape"), _plain(np.asarray)),
    "abs": _plain(np.abs),
    "add": _plain(np.add),
    "astype": _cast,
    "bitwise_and": _plain(np.bitwise_and),
    "bitwise_not": _plain(np.invert),
    "bitwise_or": _plain(np.bitwise_or),
    "bitwise_xor": _plain(np.bitwise_xor),
    "broadcast_to": _broadcast,
    "ceil": _of_floats(np.ceil),
    "clip": _clip,
    "concat": _concat,
    "cumsum": _cumulative,
    "divide": _trapping(_truncated_quotient),
    "equal": _plain(np.equal),
    "expand_dims": _reshape,
    "flatten": _reshape,
    "flip": lambda attributes, x: np.flip(x, attributes["axis"]),
    "floor": _of_floats(np.floor),
    "floor_divide": _trapping(np.floor_divide),
    "floor_mod": _trapping(np.mod),
    "full_like": _full_of(None),
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "greater": _plain(np.greater),
    "greater_equal": _plain(np.greater_equal),
    "index_tensor": _index,
    "isfinite": _of_floats(np.isfinite),
    "isinf": _of_floats(np.isinf),
    "isnan": _of_floats(np.isnan),
    "left_shift": _shifted(np.left_shift),
    "less": _plain(np.less),
    "less_equal": _plain(np.less_equal),
    "logical_and": _logical(np.logical_and),
    "logical_not": _logical(np.logical_not),
    "logical_or": _logical(np.logical_or),
    "logical_xor": _logical(np.logical_xor),
    "max": _reduced(np.max, of_floats=True),
    "maximum": _larger,
    "meshgrid": _meshgrid,
    "min": _reduced(np.min, of_floats=True),
    "minimum": _smaller,
    "mod": _trapping(np.fmod),
    "multiply": _plain(np.multiply),
    "negative": _plain(np.negative),
    "not_equal": _plain(np.not_equal),
    "ones_like": _full_of(1),
    "permute_dims": _transpose,
    "prod": _reduced(np.prod, of_floats=False),
    "quantize": _quantize,
    "repeat": _repeat,
    "reshape": _reshape,
    "right_shift": _shifted(np.right_shift),
    "split": _split,
    "sqrt": _of_floats(np.sqrt),
    "square": lambda attributes, x: x * x,
    "squeeze": _reshape,
    "stack": _stack,
    "strided_slice": _slice,
    "subtract": _plain(np.subtract),
    "sum": _reduced(np.sum, of_floats=False),
    "take": _take,
    "tile": lambda attributes, x: np.tile(x, attributes["repeats"]),
    "tril": _triangle(np.tril),
    "triu": _triangle(np.triu),
    "trunc": _of_floats(np.trunc),
    "where": _where,
    "zeros_like": _full_of(0),
}
_OF_INTEGERS = ("sum", "prod", "mod", "floor_mod", "floor_divide")
"""Floating-point ones are left to kernels."""
