# SPDX-License-Identifier: Apache-2.0
"""Reductions, scans and normalizations of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import relax

from .call import Call, Make, Rule, sizes_of


def _axes(op: Call) -> list[int] | None:
    """Return the axes that are reduced; None for all."""
    given = op["dim"]
    if given is None:
        return None
    axes = list(given) if isinstance(given, (tuple, list)) else [given]
    return axes or None


def _reduced(op: Call, make: Make, value: relax.Expr) -> relax.Expr:
    if value.ty.ndim == 0:
        return value
    return make(value, _axes(op), keepdims=bool(op["keepdim"]))


def _wide(make: Make, of_none: float, op: Call) -> relax.Expr:
    """Reduce in the type of the result, into which PyTorch converts first."""
    none = _of_none(op, of_none)
    return _reduced(op, make, op.converted(op.value("self"))) if none is None else none


def _of_none(op: Call, value: float) -> relax.Expr | None:
    """Return what a reduction of no elements is, of which TVM computes nothing."""
    sizes = sizes_of(op.value("self"))
    if 0 not in [sizes[axis] for axis in _axes(op) or range(len(sizes))]:
        return None
    shape, dtype = op.known_sizes(op.result.shape), op.result_type
    fixed = [size for size in shape or () if isinstance(size, int)]
    if shape is None or len(fixed) != len(shape):
        op.refuse("it reduces no elements to an open size; export the model with fixed sizes")
    return relax.const(np.full(fixed, value, dtype), dtype)


def _extreme(make: Make, op: Call) -> relax.Expr:
    """Return the largest or smallest element."""
    value = op.value("self")
    is_bool = value.ty.dtype == "bool"
    # TVM orders no booleans.
    result = _reduced(op, make, op.cast(value, "int8") if is_bool else value)
    return op.cast(result, "bool") if is_bool else result


def _with_index(make: Make, find: Make, pair: Make, op: Call) -> relax.Expr:
    """Return the largest or smallest elements along an axis, and where they are.

    The same op without an axis returns only the element, or is one of two operands.
    """
    if "other" in op.arguments:
        dtype = op.result_type
        if dtype == "bool":
            op.refuse("operands of type bool are not supported; supported are numbers")
        return pair(op.operand("self", dtype), op.operand("other", dtype))
    if "dim" not in op.arguments:
        return _extreme(make, op)
    value = op.value("self")
    if value.ty.ndim == 0:
        return relax.Tuple([value, relax.op.zeros_like(value, "int64")])
    return relax.Tuple([_extreme(make, op), _found(op, find, value)])


def _searched(find: Make, op: Call) -> relax.Expr:
    value = op.value("self")
    if value.ty.ndim == 0:
        return relax.op.zeros_like(value, "int64")
    return _found(op, find, value)


def _found(op: Call, find: Make, value: relax.Expr) -> relax.Expr:
    value = op.cast(value, "int8") if value.ty.dtype == "bool" else value
    return find(value, op["dim"], bool(op["keepdim"]))


def _truth(make: Make, of_none: bool, op: Call) -> relax.Expr:
    """Tell whether any or all elements differ from 0."""
    none = _of_none(op, of_none)
    if none is not None:
        return none
    result = _reduced(op, make, op.cast(op.truth(op.value("self")), "int8"))
    return op.cast(result, op.result_type)


# ---- Moments ------------------------------------------------------------------------------------


def _variance(op: Call) -> relax.Expr:
    value, dtype = op.value("self"), op.result_type
    correction = 1 if op["correction"] is None else op["correction"]
    if "unbiased" in op.arguments:
        correction = 1 if op["unbiased"] else 0
    axes = _axes(op)
    none = _of_none(op, math.nan)
    if none is not None:
        return none
    if value.ty.ndim == 0:
        op.refuse("a variance of a tensor without axes is not supported; supported is one or more")
    result = op.emit(relax.op.variance(value, axes, keepdims=bool(op["keepdim"])))
    if correction == 0:
        return result
    sizes = sizes_of(value)
    count = math.prod(sizes if axes is None else [sizes[axis] for axis in axes])
    if isinstance(count, int):
        factor = count / (count - correction) if count > correction else math.nan
        return relax.op.multiply(result, relax.const(factor, dtype))
    whole = op.scalar(count, dtype)
    rest = relax.op.subtract(whole, relax.const(correction, dtype))
    rest = relax.op.maximum(rest, relax.const(0, dtype))
    return relax.op.multiply(result, relax.op.divide(whole, rest))


def _deviation(op: Call) -> relax.Expr:
    return relax.op.sqrt(_variance(op))


def _with_mean(rule: Rule, op: Call) -> relax.Expr:
    return relax.Tuple([rule(op), _reduced(op, relax.op.mean, op.value("self"))])


def _norm(op: Call) -> relax.Expr:
    value, order, dtype = op.converted(op.value("self")), op["ord"], op.result_type
    if order == 2:
        return relax.op.sqrt(_reduced(op, relax.op.sum, op.emit(relax.op.multiply(value, value))))
    size = op.emit(relax.op.abs(value))
    if abs(order) == math.inf:
        return _reduced(op, relax.op.max if order > 0 else relax.op.min, size)
    if order == 0:
        counted = relax.op.not_equal(size, relax.const(0, dtype))
        return _reduced(op, relax.op.sum, op.cast(counted, dtype))
    if order == 1:
        return _reduced(op, relax.op.sum, size)
    powers = op.emit(relax.op.power(size, relax.const(order, dtype)))
    return relax.op.power(_reduced(op, relax.op.sum, powers), relax.const(1 / order, dtype))


# ---- Scans, softmax, order ----------------------------------------------------------------------


def _scanned(make: Make, op: Call) -> relax.Expr:
    value = op.converted(op.value("self"))
    return value if value.ty.ndim == 0 else make(value, op["dim"])


def _softmax(make: Make, op: Call) -> relax.Expr:
    value = op.converted(op.value("self"))
    if value.ty.ndim:
        return make(value, op["dim"])
    return relax.op.reshape(make(relax.op.reshape(value, (1,)), 0), ())


def _sorted(op: Call) -> relax.Expr:
    value = op.value("self")
    if value.ty.ndim == 0:
        return relax.Tuple([value, relax.op.zeros_like(value, "int64")])
    if value.ty.dtype == "bool":
        value = op.cast(value, "int8")
    axis = -1 if op["dim"] is None else op["dim"]
    index = op.emit(relax.op.argsort(value, axis, bool(op["descending"]), dtype="int64"))
    result = relax.op.gather_elements(value, index, axis=axis)
    return relax.Tuple([op.cast(result, op.result_type), index])


def _top(op: Call) -> relax.Expr:
    value = op.value("self")
    if value.ty.ndim == 0:
        return relax.Tuple([value, relax.op.zeros_like(value, "int64")])
    # PyTorch may ask for any order; sorted elements are right, too.
    axis = -1 if op["dim"] is None else op["dim"]
    return relax.op.topk(
        value, k=op["k"], axis=axis, largest=bool(op["largest"]), ret_type="both", dtype="int64"
    )


# ---- Normalization ------------------------------------------------------------------------------


def _first_only(op: Call) -> relax.Expr:
    """Return the first result; TVM's converter computes no others."""
    if not isinstance(sizes_of(op.value("input"))[1], int):
        return _open_norm(op)
    if op.result_type == "float64" and "running_mean" not in op.arguments:
        op.refuse("data of type float64 are not supported; supported are float32 and float16")
    result = op.by_tvm()
    if isinstance(result.ty, relax.TupleType):
        return relax.TupleGetItem(result, 0)
    return result


def _open_norm(op: Call) -> relax.Expr:
    """Normalize channels whose count is open, such as those of all images in an instance norm."""
    value, dtype = op.value("input"), op.result_type
    inner = "float32" if dtype == "float16" else dtype
    sizes, rank = sizes_of(value), value.ty.ndim
    value = op.cast(value, inner)
    shape = [1, sizes[1], *([1] * (rank - 2))]

    def of_channels(name: str) -> relax.Expr:
        return relax.op.reshape(op.operand(name, inner), shape)

    if op["running_mean"] is not None and not op["training"]:
        moments = [of_channels("running_mean"), of_channels("running_var")]
    else:
        moments = _moments(value, [axis for axis in range(rank) if axis != 1])
    return op.cast(_normalized(op, value, moments, of_channels), dtype)


def _moments(value: relax.Expr, axes: Sequence[int]) -> list[relax.Expr]:
    return [make(value, axes, keepdims=True) for make in (relax.op.mean, relax.op.variance)]


def _normalized(
    op: Call, value: relax.Expr, moments: Sequence[relax.Expr], operand: Callable[[str], relax.Expr]
) -> relax.Expr:
    """Subtract a mean and divide by a deviation, then apply the weight and the bias of an op."""
    mean, variance = map(op.emit, moments)
    eps = relax.const(op["eps"], value.ty.dtype)
    scale = op.emit(relax.op.rsqrt(relax.op.add(variance, eps)))
    value = op.emit(relax.op.multiply(relax.op.subtract(value, mean), scale))
    if op["weight"] is not None:
        value = op.emit(relax.op.multiply(value, operand("weight")))
    return value if op["bias"] is None else relax.op.add(value, operand("bias"))


def _group_norm(op: Call) -> relax.Expr:
    value, dtype = op.value("input"), op.result_type
    (channels,) = op.fixed_sizes(value, [1])
    groups = op["group"] if "group" in op.arguments else op["num_groups"]
    if value.ty.ndim < 3:
        op.refuse("data of 2 axes are not supported; supported are 3 or more")
    if dtype == "float64":
        op.refuse("data of type float64 are not supported; supported are float32 and float16")
    weight, bias = (
        op.operand(name, dtype)
        if op[name] is not None
        else relax.const(np.full(channels, filled), dtype)
        for name, filled in (("weight", 1.0), ("bias", 0.0))
    )
    return relax.op.nn.group_norm(
        value,
        weight,
        bias,
        num_groups=groups,
        channel_axis=1,
        axes=list(range(2, value.ty.ndim)),
        epsilon=op["eps"],
    )


def _layer_norm(op: Call) -> relax.Expr:
    """Normalize the last axes; TVM's op has no float64."""
    value, dtype = op.value("input"), op.result_type
    if dtype != "float64":
        return op.by_tvm()
    axes = range(value.ty.ndim - len(op["normalized_shape"]), value.ty.ndim)
    moments = _moments(value, list(axes))
    return _normalized(op, value, moments, lambda name: op.operand(name, dtype))


def _whole_only(op: Call) -> relax.Expr:
    op.refuse("it is supported after run_decompositions() only; use run_ep_decomposition=True")


RULES: dict[str, Rule] = {
    "aten.sum": partial(_wide, relax.op.sum, 0),
    "aten.prod": partial(_wide, relax.op.prod, 1),
    "aten.mean": partial(_wide, relax.op.mean, math.nan),
    "aten.amax": partial(_extreme, relax.op.max),
    "aten.amin": partial(_extreme, relax.op.min),
    "aten.max": partial(_with_index, relax.op.max, relax.op.argmax, relax.op.maximum),
    "aten.min": partial(_with_index, relax.op.min, relax.op.argmin, relax.op.minimum),
    "aten.argmax": partial(_searched, relax.op.argmax),
    "aten.argmin": partial(_searched, relax.op.argmin),
    "aten.any": partial(_truth, relax.op.max, False),
    "aten.all": partial(_truth, relax.op.min, True),
    "aten.var": _variance,
    "aten.std": _deviation,
    "aten.var_mean": partial(_with_mean, _variance),
    "aten.std_mean": partial(_with_mean, _deviation),
    "aten.linalg_vector_norm": _norm,
    "aten.cumsum": partial(_scanned, relax.op.cumsum),
    "aten.cumprod": partial(_scanned, relax.op.cumprod),
    **{f"aten.{name}": partial(_softmax, relax.op.nn.softmax) for name in ("_softmax", "softmax")},
    "aten._log_softmax": partial(_softmax, relax.op.nn.log_softmax),
    "aten.log_softmax": partial(_softmax, relax.op.nn.log_softmax),
    "aten.sort": _sorted,
    "aten.topk": _top,
    **dict.fromkeys(("aten.layer_norm", "aten.native_layer_norm"), _layer_norm),
    **dict.fromkeys(("aten.group_norm", "aten.native_group_norm"), _group_norm),
    "aten.native_batch_norm": _first_only,
    "aten._native_batch_norm_legit": _first_only,
    "aten._native_batch_norm_legit_functional": _first_only,
    "aten._native_batch_norm_legit_no_training": _first_only,
    **dict.fromkeys(("aten.batch_norm", "aten.instance_norm"), _whole_only),
}
