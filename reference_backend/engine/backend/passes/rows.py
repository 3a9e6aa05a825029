# SPDX-License-Identifier: Apache-2.0
"""Computes only those rows of a product that are read, such as the scores of the last token."""

from __future__ import annotations

from typing import NamedTuple

from tvm import relax

from ..ir.calls import attributes_of, items_of, plain
from .evaluate import fixed_shape
from .rewriting import Bindings, Site, Steps, is_call_of

_BY_ELEMENT = tuple(
    f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "tanh", "clip", "astype")
)
"""What may be between a product and its rows: a bias, scales, a soft cap."""


class _Rows(NamedTuple):
    """Which rows are read: along the last axis but one, those from `begin` to `end`."""

    begin: int
    end: int
    size: int
    """How many there are."""


def take_rows_first(site: Site) -> Bindings | None:
    """Turn `matmul(x, w)[:, -1:]` into `matmul(x[:, -1:], w)`."""
    data = site.call.args[0]
    rows = _rows_of(site)
    if rows is None or not _is_product(data, rows, site):
        return None
    steps = Steps(site)
    call = _call(data, rows, site, steps)
    if is_call_of(site.call, "relax.take"):
        call = relax.op.reshape(steps.add(call), site.binding.var.ty.shape)
    return steps.end(call)


def _rows_of(site: Site) -> _Rows | None:
    """Return which rows a call reads; None if it reads all of them, or something else."""
    call = site.call
    _, sizes = fixed_shape(call.args[0].ty) or ("", ())
    if len(sizes) < 2:
        return None
    size = sizes[-2]
    given = attributes_of(call, site.values)
    if is_call_of(call, "relax.take"):
        index = site.constant(call.args[1])
        if index is None or index.value.shape or given["axis"] != len(sizes) - 2:
            return None
        begin = int(index.value.numpy())
        return _Rows(begin, begin + 1, size) if 0 <= begin < size else None
    axes, begins, ends = (plain(given[name]) for name in ("axes", "begin", "end"))
    if axes not in ((-2,), (len(sizes) - 2,)) or given.get("strides", (1,)) != (1,):
        return None
    (begin,), (end,) = begins, ends
    if not isinstance(begin, int) or not isinstance(end, int):
        return None
    begin, end, _ = slice(begin, end).indices(size)
    return _Rows(begin, end, size) if 0 < end - begin < size else None


def _has(rows: _Rows, expr: relax.Expr) -> bool:
    """Whether an operand has these rows, and not one for all of them."""
    _, sizes = fixed_shape(expr.ty) or ("", ())
    return len(sizes) > 1 and sizes[-2] == rows.size


def _is_product(expr: relax.Expr, rows: _Rows, site: Site) -> bool:
    """Whether a value, which nothing else reads, is a product, perhaps with ops by element."""
    value = site.value(expr)
    if not _has(rows, expr) or not site.is_used_once(expr):
        return False
    if is_call_of(value, "relax.matmul"):
        x, w = value.args
        return _has(rows, x) and w.ty.ndim > 1
    return is_call_of(value, *_BY_ELEMENT) and any(
        _is_product(operand, rows, site) for operand in items_of(value.args)
    )


def _call(expr: relax.Expr, rows: _Rows, site: Site, steps: Steps) -> relax.Call:
    """Return a call that computes these rows of a value alone."""
    if not _is_product(expr, rows, site):
        axis = expr.ty.ndim - 2
        return relax.op.strided_slice(expr, [axis], [rows.begin], [rows.end])
    value = site.value(expr)
    assert isinstance(value, relax.Call)
    operands = items_of(value.args)
    count = 1 if is_call_of(value, "relax.matmul") else len(operands)
    for place, operand in enumerate(operands[:count]):
        if _has(rows, operand):
            operands[place] = steps.add(_call(operand, rows, site, steps))
    return relax.Call(value.op, operands, value.attrs, value.ty_args, value.span)
