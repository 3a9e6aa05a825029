# SPDX-License-Identifier: Apache-2.0
"""The memory map over time: the allocations of each op, their places and times."""

from __future__ import annotations

from ...backend.profiling.parts import Allocation
from ...backend.profiling.profiles import Profile
from .drawing import (
    GRID,
    WIDTH,
    Marks,
    attribute,
    box,
    colours_of,
    line,
    nothing,
    picture,
    short,
    text,
    ticks,
    time_axis,
)

_LEFT, _RIGHT, _TOP, _HEIGHT, _GAP = 120, WIDTH - 10, 34, 200, 62
_LETTER, _LINE = 7, 16
"""About the width of a letter, and the height of a line."""
_FEWEST_LETTERS = 4
_MOST_MARKS = 4000
"""How many rectangles a browser draws at once; the largest are drawn."""


def memory_svg(profile: Profile) -> str:
    """Draw a map of each memory in the first run of each region, one region after the other.

    The first byte is at the bottom, the last in use at the top, and each allocation is a box.
    """
    if not profile.allocations:
        return nothing("The driver does not tell what its memories hold.")
    begins, duration = _begins(profile)
    scale = (_RIGHT - _LEFT) / max(duration, 1)
    colours = colours_of(profile.ops)
    numbers = {(op.region, op.label): index for index, op in enumerate(profile.ops)}
    titles: dict[tuple[str, str | None], str] = {
        (op.region, op.label): op.title for op in profile.ops if op.label is not None
    }
    marks: Marks = []
    top = _TOP
    for memory, peak in profile.memory.items():
        bottom, high = top + _HEIGHT, _HEIGHT / peak
        size = _size(profile, memory)
        of = f" of {size:,}" if size else ""
        marks.append(text(_LEFT, top - 10, f"{memory}: {peak:,}{of} bytes in use at most"))
        allocations = [
            allocation for allocation in profile.allocations if allocation.memory == memory
        ]
        shown = sorted(
            allocations,
            key=lambda allocation: (allocation.begin - allocation.end) * allocation.bytes,
        )
        labels: Marks = []
        for allocation in shown[:_MOST_MARKS]:
            op = allocation.region, allocation.label
            height, width = allocation.bytes * high, (allocation.end - allocation.begin) * scale
            x = _LEFT + (begins[allocation.region] + allocation.begin) * scale
            y = bottom - allocation.offset * high - height
            number = numbers.get(op)
            marks.append(
                box(
                    x,
                    y,
                    max(width, 0.5),
                    max(height, 0.5),
                    colours.get(op, "#888888"),
                    _about(allocation, profile, titles.get(op)),
                    ' fill-opacity="0.75"'
                    + (attribute("data-op", number) if number is not None else ""),
                )
            )
            letters = int(width / _LETTER) - 1
            if height >= _LINE and letters >= _FEWEST_LETTERS and op in titles:
                label = short(titles[op], letters)
                place = x + width / 2, y + height / 2 + 4
                labels.append(text(*place, label, "middle", ' pointer-events="none"'))
        marks += labels
        marks.append(line(_LEFT, top, _RIGHT, top, ' stroke-dasharray="3 3"'))
        marks.append(line(_LEFT, bottom, _RIGHT, bottom))
        marks.append(text(_LEFT - 8, top + 5, f"{peak:,}", "end"))
        for value in ticks(peak, 4):
            y = bottom - value * high
            if y > top + _LINE:  # Else it would cover the number of the peak.
                marks.append(line(_LEFT, y, _RIGHT, y, GRID))
                marks.append(text(_LEFT - 8, y + 4, f"{value:,}", "end"))
        for begin in begins.values():
            x = _LEFT + begin * scale
            marks.append(line(x, top, x, bottom, ' stroke-opacity="0.4" stroke-dasharray="3 3"'))
        marks += time_axis(duration, _LEFT, _RIGHT, top, bottom, profile.unit or "")
        if len(shown) > _MOST_MARKS:
            hidden = f"without the {len(shown) - _MOST_MARKS:,} smallest"
            marks.append(text(_LEFT, bottom + 32, hidden))
        top = bottom + _GAP
    return picture(top - _GAP + 42, "What lies in the memories", marks)


def _begins(profile: Profile) -> tuple[dict[str, int], int]:
    """Return the begin of each region's first run, one after the other, and the end of all."""
    begins, end = {}, 0
    for region in profile.regions:
        if region.runs:
            begins[region.symbol] = end
            end += region.runs[0].span
    return begins, end


def _size(profile: Profile, memory: str) -> int:
    """Return the size of a memory; 0 if it is not known."""
    for region in profile.regions:
        if region.peaks is not None and memory in region.peaks.memories:
            return region.peaks.memories[memory].bytes
    return 0


def _about(allocation: Allocation, profile: Profile, title: str | None) -> str:
    name = f"{title}\n" if title is not None else ""
    return (
        f"{name}{allocation.label or 'no op'}\n{allocation.region}, {allocation.memory}\n"
        f"{allocation.bytes:,} bytes at {allocation.offset:,}\n"
        f"{allocation.begin:,} to {allocation.end:,} {profile.unit}"
    )
