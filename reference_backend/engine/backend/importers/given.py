# SPDX-License-Identifier: Apache-2.0
"""The sizes of inputs that a caller gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral

import tvm


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
