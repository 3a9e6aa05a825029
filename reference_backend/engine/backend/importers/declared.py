# SPDX-License-Identifier: Apache-2.0
"""What a model declares of its results, against what TVM's importer made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tvm
from tvm import relax

from .sizes import sizes_of


def text_of(shape: Sequence[int | None]) -> str:
    """Return sizes as messages have them, such as `[1, ?, 8]`."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


class Declared(NamedTuple):
    """The type of a result as the model's file has it.

    `dtype`: the element type by its name in NumPy; "" if the file does not say it.
    `shape`: the sizes, with None for each that is open; None if the file does not say the rank.
    """

    dtype: str
    shape: Sequence[int | None] | None

    def __str__(self) -> str:
        """Return the type as messages have it, such as `float32[1, ?, 8]`."""
        if self.shape is None:
            return self.dtype or "?"
        return f"{self.dtype or '?'}{text_of(self.shape)}"

    def agrees(self, other: Declared) -> bool:
        """Whether two types may be the same: only what both say is compared."""
        if self.dtype and other.dtype and self.dtype != other.dtype:
            return False
        if self.shape is None or other.shape is None:
            return True
        return len(self.shape) == len(other.shape) and all(
            a is None or b is None or a == b for a, b in zip(self.shape, other.shape, strict=True)
        )


def require_declared(
    node: str, result: str, declared: Declared, read: relax.Expr | tvm.ir.Type
) -> None:
    """Refuse a result whose type contradicts what the model declares.

    `declared`: what the model says of it. What it does not say is not compared, nor is an open
    size.
    `read`: what the importer made of it, or its type: a tensor; others are not compared.
    """
    ty = read if isinstance(read, tvm.ir.Type) else read.ty
    if not isinstance(ty, relax.TensorType):
        return
    made = Declared(str(ty.dtype) if ty.dtype else "", sizes_of(ty))
    if any(size is not None and size < 0 for size in made.shape or ()):
        raise ValueError(
            f"the node {node}: its result {result!r} would be {made}; its input is too small"
        )
    if declared.agrees(made):
        return
    raise ValueError(
        f"the node {node} is read wrongly: the model declares its result {result!r} as {declared}, "
        f"and TVM's importer makes it {made}. Its values would be wrong, so the model is refused; "
        "export it with another operator"
    )
