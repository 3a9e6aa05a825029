# SPDX-License-Identifier: Apache-2.0
"""Moves factors of integer matmuls into the scales of an operand."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..ir.calls import Constant, Values, resolve, with_arguments
from ..shared.aliases import Array
from .evaluate import constant_of
from .quantized_form import DEQUANTIZE, REARRANGES
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
        scale = _constant_behind(factor, site.values)
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
        if not (by_column or steps.size == 1) or not holds(dtype, steps):
            continue
        steps = steps.reshape(-1) if steps.size > 1 else steps.reshape(())
        zeros = relax.const(np.zeros(steps.shape, str(numbers.ty.dtype)))
        added = Steps(site)
        real = added.add(relax.op.dequantize(numbers, relax.const(steps), zeros, -1, dtype))
        return added.end(relax.op.matmul(matmul.args[0], real, matmul.attrs.out_dtype))
    return None


def keep_weights(site: Site) -> Bindings | None:
    """Turn `matmul(x, astype(weight))` into a matmul of a weight that is dequantized with scale 1.

    A factor that no scale can be remains an op; `scale_weights` takes the others.
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
    """Return the 8-bit constant that a weight is cast from, if matmuls take such weights."""
    source = _before_casts(site, weight)
    # The type first, because the value of a transposed weight is a copy.
    if str(source.ty.dtype) not in ("int8", "uint8"):
        return None
    if not site.table.takes_integer_weights("relax.matmul"):
        return None
    return _constant_behind(source, site.values)


def _before_casts(site: Site, expr: relax.Expr) -> relax.Expr:
    """Return the source of casts to real numbers, all of which hold every 8-bit integer."""
    kinds = (*_REALS, "bfloat16")
    while is_call_of(cast := site.value(expr), "relax.astype") and str(expr.ty.dtype) in kinds:
        expr = cast.args[0]
    return expr


def holds(dtype: str, steps: Array) -> bool:
    """Whether products of scales and 8-bit integers stay in the normal range of a type."""
    exact = np.multiply.outer([1.0, 256.0], steps)
    with np.errstate(over="ignore"):
        error = np.abs(exact.astype(dtype) - exact)
    return bool((error <= np.finfo(dtype).eps / 2 * np.abs(exact)).all())


def _constant_behind(expr: relax.Expr, values: Values) -> Constant | None:
    """Return the constant of an expression, also through reshapes, transpositions and casts."""
    constant = resolve(expr, values)
    constant = values.get(constant, constant)
    if isinstance(constant, relax.Call) and op_name(constant) in (*REARRANGES, "relax.astype"):
        source = _constant_behind(constant.args[0], values)
        if source is None:
            return None
        constant = constant_of(with_arguments(constant, [source, *constant.args[1:]]))
    return constant if isinstance(constant, Constant) else None


def scale_factors(site: Site) -> Bindings | None:
    """Turn `matmul(dequantize(x) * c, dequantize(y, s))` into `matmul(dequantize(x), ... s * c)`.

    ONNX's Gemm has such a factor. It belongs to the operand that is constant: others may read or
    write the integers of an activation with the scale that they have, and a chip with scales at
    tensors knows one. Without such an operand, other chips have the scale of another multiplied.
    """
    call = site.call
    keeps_scales = site.table.chip.requantize.is_float32
    for index, operand in enumerate(call.args):
        scaling = _factor_in(site, operand)
        if scaling is None:
            continue
        product, factor, data = scaling
        partner = call.args[1 - index]
        choices = [(data, True), (partner, False)]
        constant = [choice for choice in choices if _is_constant(site, choice[0])]
        for source, is_scaled in constant or ([] if keeps_scales else choices):
            end = _before_rearranged(site, source)
            scaled = _scaled(site, end, factor)
            if scaled is None:
                continue
            steps = Steps(site)
            rearranged = _rearranged_like(site, steps, source, end, steps.add(scaled))
            plain = _rearranged_like(
                site, steps, operand, product, rearranged if is_scaled else data
            )
            operands = [partner if is_scaled else rearranged] * 2
            operands[index] = plain
            return steps.end(relax.op.matmul(*operands, call.attrs.out_dtype))
    return None


def _factor_in(site: Site, expr: relax.Expr) -> tuple[relax.Expr, np.float64, relax.Expr] | None:
    """Return a multiplication by a number behind a value: the product, number and operand."""
    end = _before_rearranged(site, expr, once=True)
    value = site.value(end)
    if not is_call_of(value, "relax.multiply") or not site.is_used_once(end):
        return None
    for data, factor in (value.args, value.args[::-1]):
        number = site.constant(factor)
        if number is not None and number.value.numpy().shape == ():
            return end, np.float64(number.value.numpy()), data
    return None


def _before_rearranged(site: Site, expr: relax.Expr, once: bool = False) -> relax.Expr:
    """Return the value that was reshaped and transposed to this one."""
    while is_call_of(value := site.value(expr), *REARRANGES):
        if once and not site.is_used_once(expr):
            break
        expr = value.args[0]
    return expr


def _rearranged_like(
    site: Site, steps: Steps, expr: relax.Expr, end: relax.Expr, new: relax.Expr
) -> relax.Expr:
    """Reshape and transpose `new` as `end` was to give `expr`."""
    if expr.same_as(end):
        return new
    value = site.values[expr]
    inner = _rearranged_like(site, steps, value.args[0], end, new)
    return steps.add(with_arguments(value, [inner, *value.args[1:]]))


def _is_constant(site: Site, expr: relax.Expr) -> bool:
    """Whether it is a constant of integers, dequantized for one reader, and rearranged."""
    end = _before_rearranged(site, expr)
    value = site.value(end)
    if not is_call_of(value, DEQUANTIZE) or not site.is_used_once(end):
        return False
    return site.constant(value.args[0]) is not None


def _scaled(site: Site, expr: relax.Expr, factor: np.float64) -> relax.Call | None:
    """Return a dequantize with its scale multiplied; None if a value is not a dequantize."""
    value = site.value(expr)
    if not is_call_of(value, DEQUANTIZE):
        return None
    scale = site.constant(value.args[1])
    if scale is None:
        return None
    product = (scale.value.numpy() * factor).astype(str(scale.ty.dtype))
    # A composite takes only positive, finite scales.
    if not (np.isfinite(product) & (product > 0)).all():
        return None
    data, _, zero_point = value.args
    return with_arguments(value, [data, relax.const(product), zero_point])
