# SPDX-License-Identifier: Apache-2.0
"""Puts factors beside products of integers into the scales of what they multiply."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..ir.calls import Constant, Values, resolve, with_arguments
from ..shared.aliases import Array
from .evaluate import constant_of
from .quantized import DEQUANTIZE, REARRANGES
from .rewriting import Bindings, Site, Steps, is_call_of, op_name

_REALS = ("float16", "float32")
"""The types of scales, and of weights that are dequantized."""


def scale_weights(site: Site) -> Bindings | None:
    """Turn `matmul(x, astype(weight)) * scale` into a matmul of a dequantized weight.

    Scales are by column, or one; torchao writes weights of 8 bits like this. In float16, TVM's
    importer sums products in float32, and multiplies by scales of float32.
    """
    for product, factor in (site.call.args, site.call.args[::-1]):
        matmul = site.value(product)
        if not is_call_of(matmul, "relax.matmul"):
            continue
        scale = _known(factor, site.values)
        if scale is None:
            continue
        weight, dtype = matmul.args[1], str(matmul.args[1].ty.dtype)
        if not {dtype, str(scale.ty.dtype)} <= set(_REALS) or not site.is_used_once(product):
            continue
        numbers = _integers_of(site, weight)
        if numbers is None:
            continue
        steps, shape = scale.value.numpy(), list(numbers.value.shape)
        of_columns = steps.ndim <= 1 or steps.size == steps.shape[-1]
        by_column = of_columns and len(shape) > 1 and steps.size == shape[-1]
        if not (by_column or steps.size == 1) or not _holds(dtype, steps):
            continue
        steps = steps.reshape(-1) if steps.size > 1 else steps.reshape(())
        zeros = relax.const(np.zeros(steps.shape, str(numbers.ty.dtype)))
        added = Steps(site)
        real = added.add(relax.op.dequantize(numbers, relax.const(steps), zeros, -1, dtype))
        return added.end(relax.op.matmul(matmul.args[0], real, matmul.attrs.out_dtype))
    return None


def keep_weights(site: Site) -> Bindings | None:
    """Turn `matmul(x, astype(weight))` into a matmul of a weight that is dequantized with scale 1.

    Its factors stay ops of their own: `scale_weights` leaves those that no scale can be.
    """
    call = site.call
    data, weight = call.args
    dtype = str(weight.ty.dtype)
    numbers = _integers_of(site, weight) if dtype in _REALS else None
    if numbers is None:
        return None
    zero = relax.const(0, str(numbers.ty.dtype))
    added = Steps(site)
    real = added.add(relax.op.dequantize(numbers, relax.const(1.0), zero, -1, dtype))
    return added.end(relax.op.matmul(data, real, call.attrs.out_dtype))


def _integers_of(site: Site, weight: relax.Expr) -> Constant | None:
    """Return the constant of 8 bits that a weight is cast from, if products take such weights."""
    source = _before_casts(site, weight)
    # The type first, because the value of a transposed weight is a copy.
    if str(source.ty.dtype) not in ("int8", "uint8"):
        return None
    if not site.table.takes_integer_weights("relax.matmul"):
        return None
    return _known(source, site.values)


def _before_casts(site: Site, expr: relax.Expr) -> relax.Expr:
    """Return what casts to real numbers read: each of them holds all integers of 8 bits."""
    kinds = (*_REALS, "bfloat16")
    while is_call_of(cast := site.value(expr), "relax.astype") and str(expr.ty.dtype) in kinds:
        expr = cast.args[0]
    return expr


def _holds(dtype: str, steps: Array) -> bool:
    """Whether products of scales and integers of 8 bits are rounded in a type, but not lost."""
    exact = np.multiply.outer([1.0, 256.0], steps)
    with np.errstate(over="ignore"):
        error = np.abs(exact.astype(dtype) - exact)
    return bool((error <= np.finfo(dtype).eps / 2 * np.abs(exact)).all())


def _known(expr: relax.Expr, values: Values) -> Constant | None:
    """Return the constant of an expression, also through reshapes, transpositions and casts."""
    found = resolve(expr, values)
    found = values.get(found, found)
    if isinstance(found, relax.Call) and op_name(found) in (*REARRANGES, "relax.astype"):
        source = _known(found.args[0], values)
        if source is None:
            return None
        found = constant_of(with_arguments(found, [source, *found.args[1:]]))
    return found if isinstance(found, Constant) else None


def scale_factors(site: Site) -> Bindings | None:
    """Turn `matmul(dequantize(x, s) * c, y)` into `matmul(dequantize(x, s * c), y)`.

    ONNX's Gemm has such a factor. If only y is dequantized, its scales are multiplied.
    """
    call = site.call
    for index, operand in enumerate(call.args):
        found = _factor_in(site, operand)
        if found is None:
            continue
        product, factor, data = found
        other = call.args[1 - index]
        for source, is_scaled in ((data, True), (other, False)):
            end = _first(site, source)
            scaled = _scaled(site, end, factor)
            if scaled is None:
                continue
            steps = Steps(site)
            new = _moved(site, steps, source, end, steps.add(scaled))
            plain = _moved(site, steps, operand, product, new if is_scaled else data)
            operands = [other if is_scaled else new] * 2
            operands[index] = plain
            return steps.end(relax.op.matmul(*operands, call.attrs.out_dtype))
    return None


def _factor_in(site: Site, expr: relax.Expr) -> tuple[relax.Expr, np.float64, relax.Expr] | None:
    """Return the multiplication by a number that makes a value, the number, and its operand."""
    end = _first(site, expr, once=True)
    value = site.value(end)
    if not is_call_of(value, "relax.multiply") or not site.is_used_once(end):
        return None
    for data, factor in (value.args, value.args[::-1]):
        number = site.constant(factor)
        if number is not None and number.value.numpy().shape == ():
            return end, np.float64(number.value.numpy()), data
    return None


def _first(site: Site, expr: relax.Expr, once: bool = False) -> relax.Expr:
    """Return what a value is before it is reshaped and transposed."""
    while is_call_of(value := site.value(expr), *REARRANGES):
        if once and not site.is_used_once(expr):
            break
        expr = value.args[0]
    return expr


def _moved(
    site: Site, steps: Steps, expr: relax.Expr, end: relax.Expr, new: relax.Expr
) -> relax.Expr:
    """Reshape and transpose another value as a value was."""
    if expr.same_as(end):
        return new
    value = site.values[expr]
    inner = _moved(site, steps, value.args[0], end, new)
    return steps.add(with_arguments(value, [inner, *value.args[1:]]))


def _scaled(site: Site, expr: relax.Expr, factor: np.float64) -> relax.Call | None:
    """Return a dequantize with its scale multiplied; None if a value is not a dequantize."""
    value = site.value(expr)
    if not is_call_of(value, DEQUANTIZE):
        return None
    scale = site.constant(value.args[1])
    if scale is None:
        return None
    product = (scale.value.numpy() * factor).astype(str(scale.ty.dtype))
    # A composite takes no other scales.
    if not (np.isfinite(product) & (product > 0)).all():
        return None
    data, _, zero_point = value.args
    return with_arguments(value, [data, relax.const(product), zero_point])
