# SPDX-License-Identifier: Apache-2.0
"""Images of PyTorch in other sizes.

Relax resizes two axes, by the ratio of the sizes. All else that PyTorch does is linear, and each
axis is resized alone: so PyTorch itself computes the matrix of each axis, and the image is
multiplied by these constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tvm import relax

from ...shared.aliases import Array
from .call import Call, Rule, inverse, permuted, sizes_of


def _resize(op: Call) -> relax.Expr:
    x, dtype = op.value("input" if "input" in op.arguments else "self"), op.result_type
    axes = list(range(2, x.ty.ndim))
    before, after = op.fixed_sizes(x, axes), [int(size) for size in op.result.shape[2:]]
    is_nearest = "nearest" in op.name
    if not is_nearest and "float" not in dtype:
        op.refuse(f"elements of type {dtype} are not supported; supported are real numbers")
    if len(axes) == 2 and _is_by_ratio(op, before, after):
        plain = _by_relax(op, x, before, after)
        if plain is not None:
            return plain
    for axis, (size, count) in zip(axes, zip(before, after, strict=True), strict=True):
        if is_nearest:
            places = _measured(op, axis - 2, before, after, np.arange(size))
            if size == count and list(places[0]) == list(range(size)):
                continue
            index = relax.const(np.round(places[0]).astype("int64"), "int64")
            x = op.emit(relax.op.take(x, index, axis=axis))
            continue
        matrix = _measured(op, axis - 2, before, after, np.eye(size))
        if size == count and np.array_equal(matrix, np.eye(size)):
            continue
        x = _multiplied(op, x, matrix, axis, dtype)
    return x


def _multiplied(op: Call, x: relax.Expr, matrix: Array, axis: int, dtype: str) -> relax.Expr:
    """Multiply along an axis, by a matrix whose columns are the results."""
    last = x.ty.ndim - 1
    if axis == last:
        return op.emit(relax.op.matmul(x, relax.const(matrix, dtype), out_dtype=dtype))
    if axis == last - 1:
        rows = relax.const(np.ascontiguousarray(matrix.T), dtype)
        return op.emit(relax.op.matmul(rows, x, out_dtype=dtype))
    order = [*(other for other in range(last + 1) if other != axis), axis]
    x = permuted(op, x, order)
    x = op.emit(relax.op.matmul(x, relax.const(matrix, dtype), out_dtype=dtype))
    return permuted(op, x, inverse(order))


_SCALES = {"scales_d": -3, "scales_h": -2, "scales_w": -1, "scales": -1}
"""The axes of factors that are arguments of their own."""


def _factors(op: Call, count: int) -> list[float | None]:
    """Return the factor of each axis, where the model gives one."""
    if op["scale_factors"] is not None:
        return list(op["scale_factors"])
    factors: list[float | None] = [None] * count
    for name, axis in _SCALES.items():
        if op[name] is not None and -axis <= count:
            factors[axis] = op[name]
    return factors


def _is_by_ratio(op: Call, before: list[int], after: list[int]) -> bool:
    """Whether each factor is the ratio of the sizes."""
    factors = _factors(op, len(before))
    return all(
        factor is None or size * factor == count
        for size, count, factor in zip(before, after, factors, strict=True)
    )


def _by_relax(op: Call, x: relax.Expr, before: list[int], after: list[int]) -> relax.Expr | None:
    """Return the same as an op of Relax, if there is one."""
    mode, rounding = "align_corners" if op["align_corners"] else "half_pixel", "round"
    if op.name == "upsample_nearest2d":
        method = "nearest_neighbor"
        if any(count % size for size, count in zip(before, after, strict=True)):
            mode, rounding = "asymmetric", "floor"
    elif op.name == "upsample_bilinear2d":
        method = "linear"
    else:
        return None
    return relax.op.image.resize2d(
        x,
        tuple(after),
        layout="NCHW",
        method=method,
        rounding_method=rounding,
        coordinate_transformation_mode=mode,
    )


def _measured(op: Call, axis: int, before: list[int], after: list[int], rows: Array) -> Array:
    """Return what the op makes of rows along an axis, and of equal ones along the others."""
    # PyTorch smooths images wrongly whose last axis has one element.
    equal = 2
    rows = np.atleast_2d(rows)
    others = [other for other in range(len(before)) if other != axis]
    image = torch.tensor(rows, dtype=torch.float64)[None]
    for place in (other + 2 for other in others):
        sizes = image.shape
        image = image.unsqueeze(place).expand(*sizes[:place], equal, *sizes[place:])
    arguments: dict[str, Any] = dict(op.arguments)
    arguments["input" if "input" in arguments else "self"] = image.contiguous()

    def alone(value: object, rest: object) -> list[object]:
        return [value if other == axis else rest for other in range(len(before))]

    if arguments.get("output_size") is not None:
        arguments["output_size"] = alone(after[axis], equal)
    if arguments.get("scale_factors") is not None:
        arguments["scale_factors"] = alone(_factors(op, len(before))[axis], 1.0)
    for name, place in _SCALES.items():
        if name in arguments and len(before) + place != axis:
            arguments[name] = None
    result = op.node.target(**arguments)
    for other in reversed(others):
        result = result.select(other + 2, 0)
    made: Array = result[0].numpy()
    return made


def _grid_sample(op: Call) -> relax.Expr:
    """Sample an image; the coordinates are first in Relax, and last in PyTorch."""
    x, grid, dtype = op.value("input"), op.value("grid"), op.result_type
    if x.ty.ndim != 4:
        op.refuse(f"images with {x.ty.ndim} axes are not supported; supported are 4")
    method = ("bilinear", "nearest", "bicubic")[op["interpolation_mode"]]
    padding = ("zeros", "border", "reflection")[op["padding_mode"]]
    first = op.emit(relax.op.permute_dims(op.cast(grid, dtype), [0, 3, 1, 2]))
    return relax.op.image.grid_sample(
        x,
        first,
        method=method,
        layout="NCHW",
        padding_mode=padding,
        align_corners=bool(op["align_corners"]),
    )


def _affine_grid(op: Call) -> relax.Expr:
    """Compute a grid: the product of coordinates, which are constants, and of matrices."""
    theta, size, dtype = op.value("theta"), op["size"], op.result_type
    if not all(isinstance(number, int) for number in size):
        op.refuse("sizes that are open are not supported; supported are fixed ones")
    rows = len(size) - 2
    # Matrices that pick one coordinate each make the op return the coordinates.
    picks = torch.zeros(rows + 1, rows, rows + 1, dtype=torch.float64)
    picks[:, 0, :] = torch.eye(rows + 1, dtype=torch.float64)
    base = op.node.target(picks, [rows + 1, *size[1:]], op["align_corners"])[..., 0]
    points = base.reshape(rows + 1, -1).T.contiguous().numpy()
    turned = op.emit(relax.op.permute_dims(theta, [0, 2, 1]))
    grid = op.emit(relax.op.matmul(relax.const(points, dtype), turned, out_dtype=dtype))
    return relax.op.reshape(grid, (sizes_of(theta)[0], *size[2:], rows))


_RESIZED = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _resize for name in _RESIZED},
    "aten.grid_sampler_2d": _grid_sample,
    "aten.affine_grid_generator": _affine_grid,
}
