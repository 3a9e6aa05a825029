# SPDX-License-Identifier: Apache-2.0
"""NumPy references of quantization, and of rescaling integers.

`numpy_reference` gathers the references of all ops. This module does not import TVM, and loads
without its package.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...backend.api import Array
    from ...chip import Chip


def along_axis(values: Array, axis: int, rank: int) -> Array:
    """Reshape a vector so that it broadcasts along an axis; scalars stay."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


def to_nearest(values: Array, halves: str) -> Array:
    """Round to integers; halves go to the even one, or away from zero."""
    if halves == "half_even":
        return np.rint(values)
    whole = np.trunc(values)
    result: Array = whole + np.copysign(np.abs(values - whole) >= 0.5, values)
    return result


def quantize(
    data: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    out_dtype: str,
    halves: str = "half_even",
) -> Array:
    """Round(data / scale) + zero point, saturated; the division is in float32."""
    scale = along_axis(scale.astype(np.float32), axis, data.ndim)
    steps = to_nearest(data.astype(np.float32) / scale, halves)
    limits = np.iinfo(out_dtype)
    steps = steps.astype(np.float64) + along_axis(zero_point, axis, data.ndim)
    return np.clip(steps, limits.min, limits.max)


def dequantize(data: Array, scale: Array, zero_point: Array, axis: int, out_dtype: str) -> Array:
    """(data - zero point) * scale; float16 saturates."""
    steps = data.astype(np.float64) - along_axis(zero_point, axis, data.ndim)
    limits = np.finfo(out_dtype)
    result = steps * along_axis(scale, axis, data.ndim)
    return np.clip(result, float(limits.min), float(limits.max))


def rescale(values: Iterable[int], multiplier: int, shift: int, rounding: str) -> list[int]:
    """Integers times multiplier / 2^shift, in exact arithmetic; TOSA's RESCALE for "half_up"."""
    results = []
    for value in values:
        product = int(value) * multiplier
        if shift <= 0:
            results.append(product << -shift)
            continue
        down, rest = divmod(product, 1 << shift)
        half = 1 << (shift - 1)
        if rounding == "double" and shift > 31:
            down = (product + half + ((1 << 30) if value >= 0 else -(1 << 30))) >> shift
        elif rounding in ("half_up", "double"):
            down += rest >= half
        elif rounding == "half_even":
            down += rest > half or (rest == half and down % 2 == 1)
        elif rounding == "half_away":
            down += rest > half or (rest == half and product > 0)
        elif rounding == "to_zero":
            down += product < 0 and rest > 0
        results.append(down)
    return results


def factors(factor: float, bits: int) -> tuple[int, int]:
    """The multiplier of `bits` bits and the shift that are nearest to a positive number.

    Large numbers have negative shifts, which no chip takes: its driver declines such a case.
    """
    exact = Fraction(factor)
    shift = 0
    while exact * 2**shift >= 2**bits:
        shift -= 1
    while exact * 2 ** (shift + 1) < 2**bits:
        shift += 1
    multiplier = round(exact * Fraction(2) ** shift)
    return (multiplier // 2, shift - 1) if multiplier == 2**bits else (multiplier, shift)


def requantize(
    sums: Array, scale: Array | float, step: float, chip: Chip, wide: bool = False
) -> Array:
    """Integers of a scale in steps of another one: `scale` broadcasts, the chip's rule says how.

    `wide` ones are sums of int16, of 48 bits.
    """
    rule = chip.requantize
    if rule.is_float32:
        single = np.asarray(scale, np.float32) / np.float32(step)
        steps = to_nearest(np.asarray(sums).astype(np.float32) * single, chip.rounds)
        return steps.astype(np.float64)
    factor = scale / np.float64(step)
    bits = rule.wide_multiplier_bits if wide else rule.multiplier_bits
    rounding = "half_up" if wide and rule.rounding == "double" else rule.rounding
    sums, factor = np.broadcast_arrays(sums, factor)
    result = np.empty(sums.shape)
    for number in np.unique(factor):
        chosen = factor == number
        result[chosen] = rescale(sums[chosen], *factors(float(number), bits), rounding)
    return result
