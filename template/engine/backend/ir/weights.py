# SPDX-License-Identifier: Apache-2.0
"""The bytes of a module's constants."""

from __future__ import annotations

import zlib

import numpy as np
import tvm
from tvm import relax

from .calls import Constant

_LARGE = 4096
"""From how many bytes on a library stores equal parts once."""


def bytes_of(tensor: tvm.runtime.Tensor) -> memoryview:
    """Return the bytes of a tensor, which are not copied where NumPy itself has its type."""
    try:
        array = np.from_dlpack(tensor)
    except RuntimeError:
        array = tensor.numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def shared_by_functions(mod: tvm.IRModule) -> int:
    """Return the bytes of large constants that several functions of a module have, each once."""
    functions = [
        function
        for _, function in mod.functions_items()
        if isinstance(function, relax.Function) and "Codegen" not in (function.attrs or {})
    ]
    if len(functions) < 2:
        return 0
    users: dict[tuple[str, int], set[int]] = {}
    sizes: dict[tuple[str, int], int] = {}

    def visit(number: int, expr: relax.Expr) -> None:
        if isinstance(expr, Constant) and (content := bytes_of(expr.value)).nbytes >= _LARGE:
            key = (str(expr.ty), zlib.crc32(content))
            sizes[key] = content.nbytes
            users.setdefault(key, set()).add(number)

    for number, function in enumerate(functions):
        relax.analysis.post_order_visit(function, lambda expr, at=number: visit(at, expr))
    return sum(sizes[key] for key, those in users.items() if len(those) > 1)
