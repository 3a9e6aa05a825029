# SPDX-License-Identifier: Apache-2.0
"""Sizes, fixed and open: those that a caller gives, and those of tensors of Relax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

import tvm
from tvm import relax


def tiled(
    x: relax.Expr, sizes: Sequence[object], counts: Sequence[object], joined: Sequence[object]
) -> relax.Expr:
    """Return a tensor several times along each axis, by a broadcast; TVM's op takes numbers only.

    `joined`: the sizes of the result: the products of sizes and counts.
    """
    apart = [part for size in sizes for part in (1, size)]
    wide = [part for pair in zip(counts, sizes, strict=True) for part in pair]
    x = relax.op.broadcast_to(relax.op.reshape(x, apart), wide)
    return relax.op.reshape(x, joined)


def sizes_of(ty: relax.TensorType) -> list[int | None] | None:
    """Return the sizes of a tensor, with None for each open one; None of an unknown rank."""
    if isinstance(ty.shape, relax.ShapeExpr):
        return [int(i) if isinstance(i, tvm.tirx.IntImm) else None for i in ty.shape.values]
    return [None] * ty.ndim if ty.ndim >= 0 else None


def require_shapes(shapes: object, may_be_open: bool = False) -> None:
    """Refuse what is no mapping from names of inputs to their sizes; None gives none.

    `may_be_open`: whether a size may also be a variable of TVM.
    """
    if shapes is None:
        return
    if not isinstance(shapes, Mapping):
        raise ValueError(
            f"shape_dict is of type {type(shapes).__name__}; supported is a dict of names and "
            "sizes, such as {'x': (1, 3, 224, 224)}"
        )
    for name, shape in shapes.items():
        is_sequence = isinstance(shape, Iterable) and not isinstance(shape, str)
        if not is_sequence or not all(_is_size(size, may_be_open) for size in shape):
            raise ValueError(
                f"the shape of the input {name!r} in shape_dict is {shape!r}; supported are whole "
                "numbers, such as (1, 3, 224, 224)"
            )


def _is_size(size: object, may_be_open: bool) -> bool:
    if isinstance(size, Integral):
        return int(size) >= 0
    is_variable = isinstance(size, tvm.tirx.Var) and str(getattr(size.ty, "dtype", "")) == "int64"
    return is_variable and may_be_open
