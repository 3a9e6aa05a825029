# SPDX-License-Identifier: Apache-2.0
"""Reductions of no elements, whose results TVM's kernels do not write."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from tvm import relax

from .demands import Asked, reduced
from .shape_elements import is_open

_OF_NOTHING: Mapping[str, float] = {
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare"), 0),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "ReduceMax"), -math.inf),
    "ReduceMin": math.inf,
    "ReduceProd": 1,
}
"""What ONNX says of no elements; of integers, the least and the largest are no infinities."""


def of_nothing(op: str, x: relax.Expr | None, asked: Asked) -> relax.Expr | None:
    """Return what a reduction of no elements is; None of other operators."""
    sizes = list(asked.of(0))
    axes = {axis % len(sizes) for axis in reduced(op, asked)}
    if x is None or all(is_open(sizes[axis]) or sizes[axis] for axis in axes):
        return None
    dtype = str(x.ty.dtype)
    value = _OF_NOTHING.get(op)
    if value is not None and math.isinf(value) and "float" not in dtype:
        limits = np.iinfo(dtype)
        ends = {"ReduceMax": limits.min, "ReduceMin": limits.max}
        value = ends.get(op)
    if value is None:
        raise ValueError(
            f"ONNX does not say what it makes of no elements, which its first input has along the "
            f"axes {sorted(axes)}; supported is at least one"
        )
    is_kept = asked.attributes.get("keepdims", 1)
    kept = [axis for axis in range(len(sizes)) if is_kept or axis not in axes]
    result = [1 if axis in axes else sizes[axis] for axis in kept]
    return relax.op.broadcast_to(relax.const(value, dtype), relax.ShapeExpr(result))
