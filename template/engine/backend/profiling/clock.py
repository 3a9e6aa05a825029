# SPDX-License-Identifier: Apache-2.0
"""The clock of a profile, which stands still while the runtime reads the driver's events."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
