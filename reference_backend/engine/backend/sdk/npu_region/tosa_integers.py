# SPDX-License-Identifier: Apache-2.0
"""Integers in TOSA: what happens to a tensor is written as one RESCALE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .tosa_graph import LIMITS, PROPAGATE, Graph, Tensor

ROUNDINGS = ("SINGLE_ROUND", "DOUBLE_ROUND")
"""Roundings of TOSA, by the npu_rounding of a rescale step."""
MOST = 2**31 - 1


@dataclass(frozen=True)
class Integers:
    """Integers that are not written yet, since TOSA does all of this in one RESCALE.

    They are (tensor - zero_point) * multiplier / 2^shift + offset, between `least` and `most`.
    `bound` is the largest absolute value of tensor - zero_point.
    """

    tensor: Tensor
    bound: int
    zero_point: int = 0
    multipliers: tuple[int, ...] = (1 << 30,)
    shifts: tuple[int, ...] = (30,)
    rounding: str = ""
    """Empty where nothing is rescaled."""
    offset: int = 0
    least: int | None = None
    most: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing happens to the tensor."""
        return self == Integers(self.tensor, self.bound)

    @property
    def reach(self) -> int:
        """The largest absolute value."""
        reach = self.bound
        if self.rounding:
            factors = zip(self.multipliers, self.shifts, strict=True)
            reach = max((reach * multiplier >> shift) + 1 for multiplier, shift in factors)
        reach += abs(self.offset)
        if self.least is None or self.most is None:
            return reach
        return min(reach, max(abs(self.least), abs(self.most)))


class IntegerGraph(Graph):
    """Writes integers where a tensor of them is needed."""

    def __init__(self, is_whole: bool) -> None:
        super().__init__()
        self._is_whole = is_whole
        """Whether all limits are known; of a node alone, they are not."""

    def _written(self, given: Integers) -> Tensor:
        """Return integers as a tensor of int32."""
        tensor = given.tensor
        if given.rounding or tensor.dtype in LIMITS:
            tensor = self._rescaled(given, "int32", 0)
        for op, number in (
            ("add", given.offset or None),
            ("maximum", given.least),
            ("minimum", given.most),
        ):
            if number is not None:
                other = self._ranked(self._number("int32", number), len(tensor.shape))
                mode = "" if op == "add" else PROPAGATE
                tensor = self._add(op, [tensor, other], "int32", tensor.shape, mode)
        return tensor

    def _narrowed(self, given: Integers, dtype: str) -> Tensor:
        """Return integers as a tensor of 8 or 16 bits."""
        if dtype == "uint8":
            # TOSA knows int8 only, but for a RESCALE between both.
            least, most = (None if end is None else end - 128 for end in (given.least, given.most))
            moved = replace(given, offset=given.offset - 128, least=least, most=most)
            return self._rescale(self._narrowed(moved, "int8"), "uint8", (0, 128))
        least, most = LIMITS[dtype]
        wraps = (given.least is None and given.reach > -least) or (
            given.most is None and given.reach > most
        )
        if wraps and self._is_whole:
            self._decline(f"TOSA has no {dtype} that wraps around")
        limits = [
            end if limit is None else max(min(limit, most), least)
            for limit, end in ((given.least, least), (given.most, most))
        ]
        is_moved = given.offset != given.zero_point
        if given.tensor.dtype == dtype and not given.rounding and not is_moved:
            tensor = given.tensor
        elif least <= given.offset <= most:
            tensor = self._rescaled(given, dtype, given.offset)
        else:
            sums = self._written(replace(given, least=None, most=None))
            tensor = self._rescaled(Integers(sums, given.reach), dtype, 0)
        return tensor if limits == [least, most] else self._clamp(tensor, *limits)

    def _rescaled(self, given: Integers, dtype: str, offset: int) -> Tensor:
        """Add RESCALE, where its result is defined."""
        for multiplier, shift in zip(given.multipliers, given.shifts, strict=True):
            if not 2 <= shift <= 62 or not 0 <= multiplier <= MOST:
                self._decline(f"TOSA does not rescale by {multiplier} / 2^{shift}")
            if given.bound >= 1 << (shift - 1) or given.bound * multiplier >> shift > MOST:
                self._decline(
                    f"sums may reach {given.bound}, and TOSA does not define their RESCALE by "
                    f"{multiplier} / 2^{shift}"
                )
        shifted = 128 if given.tensor.dtype == "uint8" else 0
        return self._rescale(
            self._signed(given.tensor),
            dtype,
            (given.zero_point - shifted, offset),
            given.multipliers,
            given.shifts,
            given.rounding or ROUNDINGS[0],
        )

    def _signed(self, tensor: Tensor) -> Tensor:
        """Return uint8 as int8: 128 less."""
        return tensor if tensor.dtype != "uint8" else self._rescale(tensor, "int8", (128, 0))

    def _checked(self, given: Integers) -> Integers:
        if given.bound > MOST:
            self._decline(f"results may reach {given.bound}, and TOSA computes with int32")
        return given

    def _with_number(self, op: str, given: Integers, number: int) -> Integers | None:
        """Return integers after a step with one number, or None if it has to be written."""
        is_limited = given.least is not None or given.most is not None
        if op in ("add", "subtract"):
            change = number if op == "add" else -number
            if is_limited:
                given = Integers(self._written(given), given.reach)
            if given.is_plain and given.tensor.dtype in LIMITS:
                return replace(given, zero_point=-change, bound=given.bound + abs(change))
            return replace(given, offset=given.offset + change)
        if op == "maximum" and given.most is None:
            least = number if given.least is None else max(number, given.least)
            return replace(given, least=least)
        if op == "minimum" and (given.least is None or given.least <= number):
            return replace(given, most=number if given.most is None else min(number, given.most))
        return None
