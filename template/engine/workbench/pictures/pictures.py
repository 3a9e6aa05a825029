# SPDX-License-Identifier: Apache-2.0
"""Pictures of a profile: SVG text that stands alone, and has the colour of the text around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...backend.profiling.parts import Event
from ...backend.profiling.profiles import Profile
from .drawing import WIDTH, Marks, box, colours_of, line, nothing, picture, short, text, time_axis
from .memory_map import memory_svg
from .roofline import roofline_svg

_LEFT = 200
"""Where the bars begin; names are to the left."""
_ROW = 22
_MOST_MARKS = 4000
"""How many rectangles a browser draws at once; the longest events are drawn."""


def timeline_svg(profile: Profile) -> str:
    """Draw the events of each engine in the first run of each region; colours are of ops."""
    if not profile.events:
        return nothing("The driver has no events.")
    marks: Marks = []
    begin = 0
    first = {}  # The first run of each region.
    for region in profile.regions:
        if region.runs:
            first[region.symbol] = begin, region.runs[0].span
            begin += region.runs[0].span
    shown = [event for event in profile.events if event.call == 0]
    engines = list(dict.fromkeys(event.engine for event in shown))
    colours = colours_of(profile.ops)
    origins = {(op.region, op.label): op.origin for op in profile.ops}
    scale = (WIDTH - _LEFT - 10) / max(begin, 1)
    top = 30
    for event in sorted(shown, key=lambda event: event.begin - event.end)[:_MOST_MARKS]:
        x = _LEFT + (first[event.region][0] + event.begin) * scale
        width = max((event.end - event.begin) * scale, 0.5)
        row = top + engines.index(event.engine) * _ROW
        marks.append(
            box(
                x,
                row,
                width,
                _ROW - 4,
                colours[event.region, event.label],
                _about(event, profile, origins[event.region, event.label]),
            )
        )
    bottom = top + len(engines) * _ROW
    for index, engine in enumerate(engines):
        marks.append(text(_LEFT - 8, top + index * _ROW + 14, engine, "end"))
    for symbol, (start, span) in first.items():
        x = _LEFT + start * scale
        marks.append(line(x, top - 6, x, bottom, ' stroke-opacity="0.4" stroke-dasharray="3 3"'))
        if span * scale > 7 * len(symbol):
            marks.append(text(x + 3, top - 10, symbol))
    marks += time_axis(begin, _LEFT, WIDTH - 10, top - 6, bottom, profile.unit or "")
    hidden = len(shown) - _MOST_MARKS
    if hidden > 0:
        marks.append(text(_LEFT, bottom + 32, f"without the {hidden:,} shortest events"))
    return picture(bottom + 42, "What each engine did", marks)


def top_ops_svg(profile: Profile, most: int = 15) -> str:
    """Draw the ops that need the most time."""
    ops = sorted(profile.ops, key=lambda op: -op.attributed)[:most]
    if not ops:
        return nothing("The driver has no events.")
    colours = colours_of(profile.ops)
    scale = (WIDTH - _LEFT - 230) / max(ops[0].attributed, 1)
    marks = []
    for index, op in enumerate(ops):
        y = 10 + index * _ROW
        title = f"{op.composite or op.op or ''} {op.title} in {op.region}"
        width = op.attributed * scale
        marks.append(text(_LEFT - 8, y + 14, short(op.title), "end"))
        marks.append(box(_LEFT, y, max(width, 0.5), _ROW - 4, colours[op.region, op.label], title))
        share = format(op.attributed_share, ".1%")
        label = f"{share}, {op.attributed:,} {profile.unit}"
        marks.append(text(_LEFT + width + 6, y + 14, label))
    return picture(20 + len(ops) * _ROW, "The ops that need the most time", marks)


def _about(event: Event, profile: Profile, origin: str | None) -> str:
    label = event.label or "no op"
    lines = [
        f"{event.name}: {label}" if origin is None else f"{event.name}: {origin}\n{label}",
        f"{event.region}, {event.engine}",
        f"{event.begin:,} to {event.end:,} {profile.unit}, busy {event.busy:,}",
    ]
    if event.waits_for is not None:
        lines.append(f"waited for {event.waits_for}")
    return "\n".join(lines)


PICTURES: Mapping[str, Callable[[Profile], str]] = {
    "timeline": timeline_svg,
    "top_ops": top_ops_svg,
    "roofline": roofline_svg,
    "memory": memory_svg,
}
"""What `Profile.to_svg` draws, by name."""
