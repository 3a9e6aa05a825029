# SPDX-License-Identifier: Apache-2.0
"""A change between two reports, and what is none."""

from __future__ import annotations

from dataclasses import dataclass

SLOWER = 1.1
"""Times that differ by a smaller factor are the same: clocks are not exact."""


@dataclass(frozen=True)
class Change:
    """How something differs.

    Parameters
    ----------
    kind
        "placement", "type", "time", "span", "accuracy", "added" or "removed". A "time" is in
        microseconds, a "span" in the unit of the device's clock.
    name
        The op, by the name that its author gave it; a region, a layer, or the whole model.
    op
        The Relax op; "" for regions, layers and the whole model.
    before, after
        The values: npu or host, a type, a time, or decibels. None where the op is absent.
    worse
        Whether it moved to the host, got slower or less exact, or computes in a wider type than the
        model asks for.
    reason
        Why, as far as the report tells.
    unit
        Of numbers: "us", "cycles", "dB".
    """

    kind: str
    name: str
    op: str
    before: str | float | None
    after: str | float | None
    worse: bool = False
    reason: str = ""
    unit: str = ""
