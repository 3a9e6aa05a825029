# SPDX-License-Identifier: Apache-2.0
"""How ONNX's Resize says what a resize of a region does."""

from __future__ import annotations

import math
from fractions import Fraction

from .protobuf import Attribute
from .region import REALS, Node, Value

_ROUNDINGS = {
    "floor": "floor",
    "ceil": "ceil",
    "prefer_floor": "round_prefer_floor",
    "prefer_ceil": "round_prefer_ceil",
}


def resize_attributes(
    node: Node, data: Value, out: Value, rounds_positions: bool
) -> dict[str, Attribute]:
    """Return the attributes of Resize; decline what it computes differently.

    Parameters
    ----------
    node
        The node, a resize.
    data
        What it reads.
    out
        Its result.
    rounds_positions
        Whether positions may be rounded to float32 where elements are interpolated.

    Returns
    -------
    attributes
        By their names in ONNX.

    Raises
    ------
    Declined
        ONNX has nothing for the node.
    """
    given = node.attributes
    kind, position = given["kind"], given["position"]
    if position == "tf_half_pixel_for_nn":
        node.decline("Resize of ONNX has no tf_half_pixel_for_nn since opset 13")
    attributes: dict[str, Attribute] = {"mode": kind, "coordinate_transformation_mode": position}
    if kind == "cubic":
        attributes["cubic_coeff_a"] = float(given["cubic_alpha"])
        attributes["exclude_outside"] = int(given["cubic_exclude"])
    if kind != "nearest":
        sizes = [(data.shape[axis], out.shape[axis]) for axis in given["axes"]]
        if not (rounds_positions or all(_is_exact(position, *both) for both in sizes)):
            node.decline("Resize of ONNX rounds positions to float32 (rounds_positions)")
        return attributes
    if data.dtype not in (*REALS, "int8", "uint8", "int32"):
        node.decline(f"runtimes of ONNX do not resize {data.dtype}")
    if given["rounding"] not in _ROUNDINGS:
        node.decline("Resize of ONNX does not round halves to even")
    for axis in given["axes"]:
        size, count = data.shape[axis], out.shape[axis]
        # Positions are computed in float32: where one is between two elements, its last bit
        # decides. Whole factors are exact.
        step = Fraction(1, 2 if "prefer" in given["rounding"] else 1)
        if count % size and any(
            (at := _position(position, i, size, count)) % step == 0
            and (step == 1 or at % 1 != 0)
            and 0 <= at <= size - 1
            for i in range(1, count)
        ):
            node.decline("which element is nearest is not certain: a position is between two")
    return {**attributes, "nearest_mode": _ROUNDINGS[given["rounding"]]}


def _is_exact(name: str, size: int, count: int) -> bool:
    """Whether float32 has all positions: those are divided by powers of two alone."""
    if name == "align_corners":
        divisor = max(count - 1, 1) // math.gcd(max(count - 1, 1), size - 1)
    else:
        small, large = sorted((size, count))
        if large % small:
            return False
        divisor = large // small
    return divisor & (divisor - 1) == 0


def _position(name: str, i: int, size: int, count: int) -> Fraction:
    """Return the position in the data of element `i`."""
    if name == "align_corners":
        return Fraction(i * (size - 1), max(count - 1, 1))
    if name == "asymmetric":
        return Fraction(i * size, count)
    if name == "pytorch_half_pixel" and count == 1:
        return Fraction(0)
    return (i + Fraction(1, 2)) * Fraction(size, count) - Fraction(1, 2)
