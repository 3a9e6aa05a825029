# SPDX-License-Identifier: Apache-2.0
"""The clocks of a profile: the host's, which stands still while events are read, and devices'."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parts import RegionProfile
    from .record import Recording


class Clock:
    """Times as they would be without a recording: reading events may take longer than a run.

    Runtimes of earlier releases do not tell how long they read.
    """

    def __init__(self, recording: Recording, origin_us: float) -> None:
        self._origin = origin_us
        merged: list[list[float]] = []
        for begin, end in sorted(
            (call["end_us"], call["recorded_us"])
            for region in recording["regions"]
            for call in region["profile"]["calls"]
            if "recorded_us" in call
        ):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        self._pauses = merged
        self._begins = [begin for begin, _ in merged]
        self._before = [0.0, *accumulate(end - begin for begin, end in merged)]

    def at(self, time: float) -> float:
        """Return the us from the origin to a time, without those in which events were read."""
        index = bisect_right(self._begins, time)
        passed = self._before[index]
        if index:  # The time may lie inside a pause.
            passed -= max(0.0, self._pauses[index - 1][1] - time)
        return round(time - passed - self._origin, 3)


def clocks_of(regions: Sequence[RegionProfile]) -> Mapping[str, tuple[str, float]]:
    """Return the clocks of drivers that have events: the unit, and how many are a us."""
    clocks: dict[str, tuple[str, float]] = {}
    for region in regions:
        if region.unit is not None:
            # A region that did not run does not know its frequency.
            _, known = clocks.get(region.driver, ("", 0.0))
            clocks[region.driver] = region.unit, max(known, region.ticks_per_us)
    return clocks


def common_clock(regions: Sequence[RegionProfile]) -> tuple[str | None, float]:
    """Return the clock of all regions, as far as their drivers have the same."""
    clocks = set(clocks_of(regions).values())
    units = {unit for unit, _ in clocks}
    ticks = next(iter(clocks))[1] if len(clocks) == 1 else 0.0
    return units.pop() if len(units) == 1 else "ticks" if units else None, ticks


def incomparable(regions: Sequence[RegionProfile]) -> Mapping[str, str]:
    """Return the drivers of regions if their clocks differ; else nothing."""
    if len(set(clocks_of(regions).values())) < 2:
        return {}
    return {region.symbol: region.driver for region in regions}
