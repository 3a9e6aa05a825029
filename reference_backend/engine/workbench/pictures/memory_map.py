# SPDX-License-Identifier: Apache-2.0
"""The memory map over time: what lies where, from when to when, and for which op."""

from __future__ import annotations

from ...backend.profiling.parts import Allocation
from ...backend.profiling.result import Profile
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
"""How many rectangles a browser draws at once; larger ones go first."""


def memory_svg(profile: Profile) -> str:
    """Draw what lies in each memory, and when.

    A map for each memory, from its first byte at the bottom to the last that is used: a box for
    each allocation, in the first run of each region, one region after the other.
    """
    if not profile.allocations:
        return nothing("The driver does not tell what its memories hold.")
    begins, whole = _begins(profile)
    scale = (_RIGHT - _LEFT) / max(whole, 1)
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
        mine = [item for item in profile.allocations if item.memory == memory]
        shown = sorted(mine, key=lambda item: (item.begin - item.end) * item.bytes)
        labels: Marks = []
        for item in shown[:_MOST_MARKS]:
            op = item.region, item.label
            height, width = item.bytes * high, (item.end - item.begin) * scale
            x = _LEFT + (begins[item.region] + item.begin) * scale
            y = bottom - item.offset * high - height
            number = numbers.get(op)
            marks.append(
                box(
                    x,
                    y,
                    max(width, 0.5),
                    max(height, 0.5),
                    colours.get(op, "#888888"),
                    _about(item, profile, titles.get(op)),
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
            if y > top + _LINE:  # Else it is over the number of the peak.
                marks.append(line(_LEFT, y, _RIGHT, y, GRID))
                marks.append(text(_LEFT - 8, y + 4, f"{value:,}", "end"))
        for begin in begins.values():
            x = _LEFT + begin * scale
            marks.append(line(x, top, x, bottom, ' stroke-opacity="0.4" stroke-dasharray="3 3"'))
        marks += time_axis(whole, _LEFT, _RIGHT, top, bottom, profile.unit or "")
        if len(shown) > _MOST_MARKS:
            hidden = f"without the {len(shown) - _MOST_MARKS:,} smallest"
            marks.append(text(_LEFT, bottom + 32, hidden))
        top = bottom + _GAP
    return picture(top - _GAP + 42, "What lies in the memories", marks)


def _begins(profile: Profile) -> tuple[dict[str, int], int]:
    """Return when the first run of each region begins, one after the other, and the end of all."""
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


def _about(item: Allocation, profile: Profile, title: str | None) -> str:
    name = f"{title}\n" if title is not None else ""
    return (
        f"{name}{item.label or 'no op'}\n{item.region}, {item.memory}\n{item.bytes:,} bytes at "
        f"{item.offset:,}\n{item.begin:,} to {item.end:,} {profile.unit}"
    )
