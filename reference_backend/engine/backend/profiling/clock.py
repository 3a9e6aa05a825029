# SPDX-License-Identifier: Apache-2.0
"""The clock of a profile, in which reading the driver's events takes no time."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Recording


class Clock:
    """Times as they would be if the runtime had not recorded.

    After each run of a region, the runtime reads its events, which may take longer than the run.

    `recording`: what was recorded; runtimes of earlier releases do not tell how long they read.
    `origin_us`: when time begins.
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
        """Return a time on this clock.

        The us since time began, without those in which events were read.
        """
        index = bisect_right(self._begins, time)
        passed = self._before[index]
        if index:  # It may be while events are read.
            passed -= max(0.0, self._pauses[index - 1][1] - time)
        return round(time - passed - self._origin, 3)
