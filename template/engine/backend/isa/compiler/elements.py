# SPDX-License-Identifier: Apache-2.0
"""Expressions of elements that several definitions share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ...sdk.npu_region.region import REALS
from .graph import Graph, Limits, Operand, limits_of

Expr = Any
"""An expression of TVM's."""


def number(value: float, dtype: str) -> Expr:
    """Return a constant of a type."""
    return tirx.const(float(value) if dtype in REALS else int(value), dtype)


def real(element: Expr) -> Expr:
    """Return an element as the real number that is computed with."""
    return element if str(element.ty) == "float32" else element.astype("float32")


def stored(element: Expr, dtype: str) -> Expr:
    """Return a result as an element of a type; real numbers become the nearest integer."""
    kind = str(element.ty)
    if kind == dtype:
        return element
    if dtype == "bool":
        return element != number(0, kind)
    if kind in REALS and dtype not in REALS:
        return te.nearbyint(element).astype(dtype)
    return element.astype(dtype)


def broadcast(tensor: te.Tensor, indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Return the element of a tensor that is broadcast to a shape, as NumPy does.

    Dimensions that the shape lacks have one element.
    """
    sizes = [int(size) for size in tensor.shape]
    skipped = len(indices) - len(sizes)
    zero = tirx.const(0, "int64")
    return tensor(
        *(
            zero if at < 0 or (size == 1 and shape[at] != 1) else indices[at]
            for at, size in enumerate(sizes, skipped)
        )
    )


def quotient(index: Expr, size: int) -> Expr:
    """Return an index divided by a number, rounded down."""
    return te.floordiv(index, number(size, str(index.ty)))


def rest(index: Expr, size: int) -> Expr:
    """Return what is left of an index divided by a number."""
    return te.floormod(index, number(size, str(index.ty)))


def is_multiple(index: Expr, size: int) -> Expr:
    """Return whether an index is divided by a number without rest."""
    return tirx.EQ(rest(index, size), number(0, str(index.ty)))


def all_of(conditions: Sequence[Expr]) -> Expr:
    """Return whether all conditions hold, of which there is at least one."""
    return conditions[0] if len(conditions) == 1 else te.all(*conditions)


def elementwise(
    graph: Graph,
    name: str,
    operands: Sequence[Operand],
    dtype: str,
    compute: Callable[..., Expr],
    limits: Limits | None = None,
    shape: Sequence[int] | None = None,
) -> Operand:
    """Add a function of elements that broadcast.

    Parameters
    ----------
    graph
        Where to add it.
    name
        Its name.
    operands
        What it reads; a constant of one element becomes a number in it.
    dtype
        The type of its result.
    compute
        Returns an element of the result from those of the operands.
    limits
        Of its elements, if they are integers of which more is known than their type.
    shape
        The shape of the result, if it is not that of the operands.

    Returns
    -------
    result
        Its result.
    """
    if shape is None:
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    shape = tuple(shape)
    known = graph.region.has_elements
    is_number = [
        known and operand.array is not None and operand.array.size == 1 for operand in operands
    ]
    read = [operand for operand, alone in zip(operands, is_number, strict=True) if not alone]
    if not read:
        # At least one tensor, so that there is something to read.
        is_number[0], read = False, [operands[0]]

    def define(*tensors: te.Tensor) -> te.Tensor:
        def element(*indices: Expr) -> Expr:
            left = iter(tensors)
            given = [
                number(operand.array.item(), operand.dtype)
                if alone and operand.array is not None
                else broadcast(next(left), indices, shape)
                for operand, alone in zip(operands, is_number, strict=True)
            ]
            return stored(compute(*given), dtype)

        return te.compute(shape, element, name=name)

    return graph.add(name, define, read, limits)


# ---- Reductions ----------------------------------------------------------------------------------


def _least(dtype: str) -> Expr:
    return number(-math.inf if dtype in REALS else limits_of(dtype)[0], dtype)


def _most(dtype: str) -> Expr:
    return number(math.inf if dtype in REALS else limits_of(dtype)[1], dtype)


greatest = te.comm_reducer(lambda a, b: te.max(a, b), _least, name="max")
smallest = te.comm_reducer(lambda a, b: te.min(a, b), _most, name="min")
product = te.comm_reducer(lambda a, b: a * b, lambda dtype: number(1, dtype), name="product")
