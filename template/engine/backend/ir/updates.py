# SPDX-License-Identifier: Apache-2.0
"""The spelling of an update: slices of an axis that are replaced at positions of the call.

Relax has no such op. The scatters come near, but few NPUs have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax


def emit_update(
    emit: Callable[[relax.Expr], relax.Var],
    data: relax.Expr,
    value: relax.Expr,
    positions: relax.Expr,
    axis: int,
) -> relax.Expr:
    """Emit all calls of an update but the last, and return that.

    `value` has the rank of `data`, and a slice for each position; for one position, it may also be
    broadcast. Positions do not count from the end: one outside of the axis replaces nothing. The
    codegen knows these calls: see `codegen/updates.h`.
    """
    rank, dtype = data.ty.ndim, positions.ty.dtype
    axis %= rank
    size = int(data.ty.shape.values[axis])
    count = math.prod(map(int, positions.ty.shape.values))
    along = [size if other == axis else 1 for other in range(rank)]
    if count == 1:
        places = relax.const(np.arange(size).reshape(along), dtype)
        place = emit(relax.op.reshape(positions, [1] * rank))
        return relax.op.where(emit(relax.op.equal(places, place)), value, data)
    rows = relax.const(np.arange(size).reshape(-1, 1), dtype)
    is_it = emit(relax.op.equal(rows, emit(relax.op.reshape(positions, (1, count)))))
    order, none = relax.const(np.arange(count), "int64"), relax.const(-1, "int64")
    # Of several values for a place, the last stays.
    last = emit(relax.op.max(emit(relax.op.where(is_it, order, none)), axis=[1]))
    chosen = emit(relax.op.take(value, last, axis=axis, mode="clip"))
    is_kept = emit(relax.op.less(last, relax.const(0, "int64")))
    return relax.op.where(emit(relax.op.reshape(is_kept, along)), data, chosen)
