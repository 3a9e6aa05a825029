# SPDX-License-Identifier: Apache-2.0
"""Products of integers whose scales and zero points the run computes, as for dynamic activations.

A scale of a row is a factor of the product's row, so that integers with a scale of 1 are
multiplied: no composite reads a scale that only the run knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tvm_ffi
from tvm import relax

from ..shared.aliases import Array
from ..table.table import Table
from .evaluate import fixed_shape
from .quantized_form import DEQUANTIZE
from .rewriting import Bindings, Site, Steps, is_call_of, is_full_of

_BYTES = ("int8", "uint8")
_REAL = "float32"


def takes_products(table: Table) -> bool:
    """Whether the chip multiplies integers of 8 bits to real numbers."""
    kinds = [entry.quantized for entry in table.entries_of("relax.matmul")]
    takes = any(kind and kind.to_real and "int8" in kind.dtypes for kind in kinds)
    return takes and table.computes_quantized and table.get("dequantize") is not None


# ---- Integers that are multiplied as they are ---------------------------------------------------


def multiply_bytes(site: Site) -> Bindings | None:
    """Turn `astype(matmul(astype(x), astype(weight)))` of integers into a product to real numbers.

    PyTorch's `_int_mm` is read like this. torchao may add 128 to the data, and subtract as many
    times the sums of the weights; both go.
    """
    call = site.call
    sums = call.args[0]
    if str(call.ty.dtype) != _REAL or str(sums.ty.dtype) != "int32" or not site.is_used_once(sums):
        return None
    if not site.table.entries_of("relax.matmul") or site.table.get("dequantize") is None:
        return None
    value, offset = site.value(sums), None
    if is_call_of(value, "relax.subtract"):
        product, offset = value.args[0], site.constant(value.args[1])
        if offset is None or not site.is_used_once(product):
            return None
        value = site.value(product)
    if not is_call_of(value, "relax.matmul"):
        return None
    data, weight = _before_cast(site, value.args[0], *_BYTES), site.constant(value.args[1])
    if data is None:
        return None
    numbers = None if weight is None else weight.value.numpy()
    if numbers is None or numbers.ndim != 2 or abs(numbers + 0.5).max() > 128:
        return None
    zero = 0
    if offset is not None:
        zero = _factor(offset.value.numpy(), numbers)
        if not 0 < zero < 256 or str(data.ty.dtype) != "uint8":
            return None
        signed = _before_shift(site, data, zero)
        data, zero = (data, zero) if signed is None else (signed, 0)
    steps = Steps(site)
    product = _product(steps, data, zero, relax.const(numbers.astype("int8")))
    return steps.end(product)


def _factor(offset: Array, numbers: Array) -> int:
    """Return the number by which sums of columns were multiplied; -1 if there is none."""
    sums = numbers.sum(0)
    largest = abs(sums).argmax()
    if offset.size != sums.size or not sums[largest]:
        return -1
    factor = int(offset.reshape(-1)[largest] // sums[largest])
    return factor if (sums * factor == offset.reshape(-1)).all() else -1


def _before_cast(site: Site, expr: relax.Expr, *dtypes: str) -> relax.Expr | None:
    """Return what a cast converts, if it is of one of these types."""
    value = site.value(expr)
    if not is_call_of(value, "relax.astype") or str(value.args[0].ty.dtype) not in dtypes:
        return None
    return value.args[0]


def _before_shift(site: Site, data: relax.Expr, number: int) -> relax.Expr | None:
    """Return the int8 to which a number was added for uint8."""
    total = site.value(_before_cast(site, data, "int32"))
    if not is_call_of(total, "relax.add"):
        return None
    added = site.constant(total.args[1])
    if added is None or not (added.value.numpy() == number).all():
        return None
    return _before_cast(site, total.args[0], "int8")


def _product(steps: Steps, data: relax.Expr, zero: int, weight: relax.Expr) -> relax.Call:
    """Return a product of integers, as they are."""
    one = relax.const(1.0)
    kinds = [str(operand.ty.dtype) for operand in (data, weight)]
    points = [relax.const(point, kind) for point, kind in zip((zero, 0), kinds, strict=True)]
    reals = [
        steps.add(relax.op.dequantize(operand, one, point, -1, _REAL))
        for operand, point in zip((data, weight), points, strict=True)
    ]
    return relax.op.matmul(*reals, _REAL)


# ---- Integers whose scales the run computes ------------------------------------------------------


_LEAST = 64
"""The least elements of a group whose products are sums of integers of their own."""

_PER_ROW = 16
"""How many elements a group has at least for each row of the data.

The sums of the groups, in float32, take a quarter of the memory of weights of 8 bits then. Rows or
groups beyond that cost more than integers save, on the emulated machine.
"""


class _Weights(NamedTuple):
    """A matrix of integers, with a scale for each column, or for each group of rows in it."""

    numbers: Array
    scales: Array

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many groups there are, and their rows and columns."""
        groups = len(self.scales) if self.scales.ndim > 1 else 1
        depth, columns = self.numbers.shape
        return groups, depth // groups, columns


def multiply_rows(site: Site) -> Bindings | None:
    """Turn `matmul(dequantize(x, s, z), dequantize(w, t))` with `s` and `z` of the run.

    It becomes `(matmul(x, w) * t - z * sum(w * t)) * s`, with sums of integers, where `s` and `z`
    are those of rows or one number, and `t` has one element for each column; if it has one for each
    group of rows, the products of the groups are added up.
    """
    call = site.call
    if not takes_products(site.table) or str(call.ty.dtype) not in ("float16", _REAL):
        return None
    rows = _rows_of(site, call.args[0])
    weights = None if rows is None else _weights_of(site, call.args[1])
    if rows is None or weights is None:
        return None
    steps = Steps(site)

    def factor(numbers: relax.Expr) -> relax.Expr:
        if str(numbers.ty.dtype) != _REAL:
            numbers = steps.add(relax.op.astype(numbers, _REAL))
        return numbers if rows.shape is None else steps.add(relax.op.reshape(numbers, rows.shape))

    if weights.scales.ndim > 1:
        total = _sum_of_groups(site, steps, rows, weights)
        if total is None:
            return None
    else:
        data = rows.data
        if rows.view is not None:
            data = steps.add(relax.op.reshape(data, rows.view))
        matrix = relax.const(np.ascontiguousarray(weights.numbers))
        total = steps.add(_product(steps, data, 0, matrix))
    if not is_full_of(0, rows.zero, site.values):
        sums = weights.numbers.astype("int32").reshape(weights.counts).sum(1)
        sums = sums if weights.scales.ndim < 2 else sums * weights.scales
        offset = relax.op.multiply(factor(rows.zero), relax.const(sums.sum(0).astype(_REAL)))
        total = steps.add(relax.op.subtract(total, steps.add(offset)))
    last = relax.op.multiply(total, factor(rows.scale))
    if weights.scales.ndim < 2:
        # In PyTorch's order.
        last = relax.op.multiply(steps.add(last), relax.const(weights.scales.astype(_REAL)))
    if str(call.ty.dtype) != _REAL:
        last = relax.op.astype(steps.add(last), call.ty.dtype)
    return steps.end(last)


class _Rows(NamedTuple):
    """Integers with scales and zero points of the run.

    `view`: the shape in which they are multiplied; None for their own.
    `shape`: that of the factors of a product; None of one number.
    """

    data: relax.Expr
    scale: relax.Expr
    zero: relax.Expr
    view: relax.ShapeExpr | None
    shape: Sequence[object] | None


def _rows_of(site: Site, data: relax.Expr) -> _Rows | None:
    """Return what is multiplied as integers with a scale of the run for each row, or for all."""
    value, view = site.value(data), None
    if is_call_of(value, "relax.reshape"):
        view = value.ty.shape
        value = site.value(value.args[0])
    if not is_call_of(value, DEQUANTIZE) or str(value.args[0].ty.dtype) not in _BYTES:
        return None
    numbers, scale, zero = value.args
    sizes, rank = numbers.ty.shape.values, numbers.ty.ndim
    axis = int(value.attrs.axis) % rank
    if site.constant(scale) is not None:
        return None
    if scale.ty.ndim == 0 or zero.ty.ndim == 0:
        is_one = scale.ty.ndim == zero.ty.ndim == 0
        return _Rows(numbers, scale, zero, view, None) if is_one else None
    if view is None:
        shape = [size if at == axis else 1 for at, size in enumerate(sizes)]
        return _Rows(numbers, scale, zero, view, shape) if axis < rank - 1 else None
    is_of_rows = rank == 2 and axis == 0 and tvm_ffi.structural_equal(sizes[1], view.values[-1])
    return _Rows(numbers, scale, zero, view, (*[*view.values][:-1], 1)) if is_of_rows else None


def _sum_of_groups(site: Site, steps: Steps, rows: _Rows, weights: _Weights) -> relax.Expr | None:
    """Return the sum of products of integers by group; None if it costs more than it saves."""
    groups, size, columns = weights.counts
    shape = site.call.ty.shape
    sizes = [getattr(length, "value", None) for length in [*shape.values][:-1]]
    fixed = [length for length in sizes if isinstance(length, int)]
    count = math.prod(fixed)
    if len(fixed) < len(sizes) or size < max(_LEAST, _PER_ROW * count):
        return None
    if not all(map(site.table.entries_of, ("relax.sum", "relax.multiply", "relax.permute_dims"))):
        return None
    data = steps.add(relax.op.reshape(rows.data, (count, groups, size)))
    data = steps.add(relax.op.permute_dims(data, [1, 0, 2]))
    matrices = relax.const(weights.numbers.reshape(weights.counts))
    product = relax.BlockBuilder().normalize(_product(steps, data, 0, matrices))
    if site.table.refusal(product, site.values, asked_later=True) is not None:
        return None
    scales = relax.const(weights.scales.astype(_REAL).reshape(groups, 1, columns))
    scaled = steps.add(relax.op.multiply(steps.add(product), scales))
    return steps.add(relax.op.reshape(steps.add(relax.op.sum(scaled, [0])), shape))


def _weights_of(site: Site, weight: relax.Expr) -> _Weights | None:
    """Return weights with a scale for each column, or group of it, and without zero points."""
    value, is_turned, view = site.value(weight), False, None
    if is_call_of(value, "relax.permute_dims"):
        value, is_turned = site.value(value.args[0]), True
    if is_call_of(value, "relax.reshape"):
        view = fixed_shape(value.ty)
        value = site.value(value.args[0])
    if not is_call_of(value, DEQUANTIZE):
        return None
    numbers, scales, zeros = (site.constant(operand) for operand in value.args)
    if numbers is None or scales is None or zeros is None or zeros.value.numpy().any():
        return None
    if str(numbers.ty.dtype) != "int8" or numbers.ty.ndim != 2:
        return None
    matrix, steps, axis = numbers.value.numpy(), scales.value.numpy(), int(value.attrs.axis) % 2
    if view is not None:
        _, shape = view
        # Rows of groups, as the importers write them.
        if not (is_turned and axis == 0 and steps.ndim == 1 and len(shape) == 2):
            return None
        if shape[1] % matrix.shape[1]:
            return None
        return _Weights(
            np.ascontiguousarray(matrix.reshape(shape).T), steps.reshape(shape[0], -1).T
        )
    if steps.ndim and axis != (0 if is_turned else 1):
        return None
    return _Weights(matrix.T if is_turned else matrix, steps)
