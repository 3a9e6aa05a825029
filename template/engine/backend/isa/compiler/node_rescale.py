# SPDX-License-Identifier: Apache-2.0
"""Rescaling of integers, bit for bit as the chip's table says.

What a machine's instruction may be selected for has one form (`rescaling.py`), which nothing else
has: integers `a`, multipliers `m` and results have 32 bits, and the shift `s` is not 0. It is
`(int64(a) * int64(m) + (1 << (s - 1))) >> s`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te, tirx

from ...sdk.npu_region.region import Node
from .elements import Expr, broadcast, number, stored
from .graph import Graph, Operand, fits, limits_of, products_of, stored_as

HALF_UP, DOUBLE, HALF_EVEN, HALF_AWAY, DOWN, TO_ZERO = range(6)
"""The values of npu_rounding."""


def rescale_step(graph: Graph, node: Node, operands: Sequence[Operand]) -> Operand:
    """Add a step that multiplies integers and cuts off bits, by constants.

    Parameters
    ----------
    graph
        Where to add it.
    node
        The step.
    operands
        Integers, multipliers and shifts.

    Returns
    -------
    result
        Its result.

    Raises
    ------
    Declined
        Multipliers or shifts are not constant, or the rounding is not known.
    """
    value = graph.region.value(node.output)
    data, multiplier, shift = operands
    rounding = int(node.attributes["numbers"][3])
    if not HALF_UP <= rounding <= TO_ZERO:
        node.decline(f"the instruction set has no rounding {rounding}")
    if multiplier.array is None or shift.array is None:
        node.decline("multipliers and shifts are constants")
    shifts = np.clip(shift.array, 0, 62)
    if not graph.region.has_elements:
        shifts = np.full_like(shifts, 31)
    least_shift, most_shift = int(shifts.min()), int(shifts.max())
    # Sums that a machine multiplies have 32 bits, and so do its multipliers.
    narrow = [
        graph.constant(array.astype("int32")) if fits(limits, "int32") else operand
        for operand, array, limits in (
            (multiplier, multiplier.array, multiplier.limits),
            (shift, shifts, (least_shift, most_shift)),
        )
    ]
    products = products_of(data.limits, multiplier.limits)
    half = (1 << most_shift) >> 1
    found = (
        (products[0] >> least_shift if products[0] < 0 else products[0] >> most_shift) - 2,
        (products[1] >> least_shift if products[1] > 0 else products[1] >> most_shift) + 2,
    )
    out, limits = stored_as(value.dtype, found)
    size = max(map(abs, products)) + half + (1 << 30)
    is_wide = graph.region.has_elements and size > limits_of("int64")[1]
    ranges = (data.limits, multiplier.limits, found)
    is_narrow = least_shift > 0 and all(fits(limits, "int32") for limits in ranges)
    round_down = _wide if is_wide else _plain
    if is_narrow and rounding == HALF_UP:
        round_down = _narrow

    def element(a: Expr, m: Expr, s: Expr) -> Expr:
        a, m, s = (item.astype("int64") for item in (a, m, s))
        return round_down(a, m, s, rounding, least_shift)

    operands = [data, *narrow]
    shape = value.shape

    def define(*tensors: te.Tensor) -> te.Tensor:
        return te.compute(
            shape,
            lambda *indices: stored(
                element(*(broadcast(tensor, indices, shape) for tensor in tensors)), out
            ),
            name="rescale",
        )

    return graph.add("rescale", define, operands, limits)


def _i64(value: int) -> Expr:
    return number(value, "int64")


def _addend(a: Expr, product: Expr, s: Expr, rounding: int, least_shift: int) -> Expr | None:
    """Return what is added to a product before the bits of a shift are cut off; None: nothing."""
    one = _i64(1)
    if rounding == DOWN:
        return None
    half = (one << s) >> one
    if rounding == HALF_UP:
        return half
    if rounding == DOUBLE:
        more = tirx.Select(a >= _i64(0), _i64(1 << 30), _i64(-(1 << 30)))
        return half + tirx.Select(s > _i64(31), more, _i64(0))
    if rounding == TO_ZERO:
        return tirx.Select(product < _i64(0), (one << s) - one, _i64(0))
    if rounding == HALF_AWAY:
        added = half - tirx.Select(product < _i64(0), one, _i64(0))
    else:
        added = half - one + ((product >> s) & one)
    return added if least_shift > 0 else tirx.Select(s > _i64(0), added, _i64(0))


def _narrow(a: Expr, m: Expr, s: Expr, rounding: int, least_shift: int) -> Expr:
    """Rescale in the form of the instruction."""
    one = _i64(1)
    return (a * m + (one << (s - one))) >> s


def _plain(a: Expr, m: Expr, s: Expr, rounding: int, least_shift: int) -> Expr:
    product = a * m
    added = _addend(a, product, s, rounding, least_shift)
    return (product if added is None else product + added) >> s


def _wide(a: Expr, m: Expr, s: Expr, rounding: int, least_shift: int) -> Expr:
    """Rescale where 64 bits do not have the product: it is high * 2^31 + low."""
    bits, mask = _i64(31), _i64((1 << 31) - 1)
    below = (a & mask) * m
    high, low = (a >> bits) * m + (below >> bits), below & mask
    is_small = s <= bits
    small = tirx.Select(is_small, s, bits)
    rest = tirx.Select(is_small, _i64(0), s - bits)
    # What decides about rounding: the sign, whether the quotient is odd, and all bits below it.
    zero = _i64(0)
    is_below = high < zero
    one = _i64(1)
    quotient = tirx.Select(is_small, (high << (bits - small)) + (low >> small), high >> rest)
    if rounding == DOWN:
        return quotient
    high_rest = tirx.Select(is_small, zero, high & ((one << rest) - one))
    low_rest = tirx.Select(is_small, low & ((one << small) - one), low)
    # Rest and half as pairs of high and low parts.
    half = (one << s) >> one
    high_half, low_half = half >> bits, half & mask
    equal = te.all(tirx.EQ(high_rest, high_half), tirx.EQ(low_rest, low_half))
    above = te.any(
        high_rest > high_half, te.all(tirx.EQ(high_rest, high_half), low_rest > low_half)
    )
    has_half = s > zero
    if rounding == DOUBLE:
        # 2^30 more or less, as the low part.
        more = tirx.Select(a >= zero, _i64(1 << 30), _i64(-(1 << 30)))
        moved = low + tirx.Select(s > bits, more, zero)
        high, low = high + (moved >> bits), moved & mask
        return _wide_half_up(high, low, s)
    if rounding == HALF_UP:
        up = te.all(has_half, te.any(above, equal))
    elif rounding == TO_ZERO:
        up = te.all(is_below, te.any(high_rest > zero, low_rest > zero))
    elif rounding == HALF_AWAY:
        up = te.any(above, te.all(equal, has_half, high >= zero))
    else:
        odd = tirx.EQ(quotient & one, one)
        up = te.any(above, te.all(equal, has_half, odd))
    return quotient + tirx.Select(up, one, zero)


def _wide_half_up(high: Expr, low: Expr, s: Expr) -> Expr:
    one, bits = _i64(1), _i64(31)
    is_small = s <= bits
    small = tirx.Select(is_small, s, bits)
    rest = tirx.Select(is_small, one, s - bits)
    below = (low + ((one << small) >> one)) >> small
    return tirx.Select(
        is_small, (high << (bits - small)) + below, (high + (one << (rest - one))) >> rest
    )
