# SPDX-License-Identifier: Apache-2.0
"""Pictures of a profile: SVG text that stands alone, and follows the colour of the text around."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from .result import Event, OpProfile, Profile

_WIDTH = 960
_LEFT = 200
"""Where the bars begin; names are to the left."""
_ROW = 22
_PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#bbbbbb")
"""Colours that can be told apart, also on black and by those who do not see red or green."""
_MOST_MARKS = 4000
"""How many rectangles a browser draws at once; longer events go first."""


def timeline_svg(profile: Profile) -> str:
    """Draw what each engine did, and when.

    Parameters
    ----------
    profile
        The profile.

    Returns
    -------
    svg
        A line for each engine, the first run of each region after the other; colours are of ops.
    """
    if not profile.events:
        return _nothing("The driver has no events.")
    marks, begin = [], 0
    first = {}  # The first run of each region.
    for region in profile.regions:
        if region.runs:
            first[region.symbol] = begin, region.runs[0].span
            begin += region.runs[0].span
    shown = [event for event in profile.events if event.call == 0]
    engines = list(dict.fromkeys(event.engine for event in shown))
    colours = _colours(profile.ops)
    scale = (_WIDTH - _LEFT - 10) / max(begin, 1)
    top = 30
    for event in sorted(shown, key=lambda item: item.begin - item.end)[:_MOST_MARKS]:
        left = _LEFT + (first[event.region][0] + event.begin) * scale
        width = max((event.end - event.begin) * scale, 0.5)
        row = top + engines.index(event.engine) * _ROW
        marks.append(
            _box(left, row, width, colours[event.region, event.label], _about(event, profile))
        )
    bottom = top + len(engines) * _ROW
    for index, engine in enumerate(engines):
        marks.append(_text(_LEFT - 8, top + index * _ROW + 14, engine, "end"))
    for symbol, (start, span) in first.items():
        x = _LEFT + start * scale
        marks.append(
            f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}" stroke="currentColor" '
            'stroke-opacity="0.4" stroke-dasharray="3 3"/>'
        )
        if span * scale > 7 * len(symbol):
            marks.append(_text(x + 3, top - 10, symbol))
    marks.append(_text(_LEFT, bottom + 16, "0"))
    marks.append(_text(_WIDTH - 10, bottom + 16, f"{begin:,} {profile.unit}", "end"))
    hidden = len(shown) - _MOST_MARKS
    if hidden > 0:
        marks.append(_text(_LEFT + 60, bottom + 16, f"without the {hidden:,} shortest events"))
    return _svg(bottom + 26, "What each engine did", marks)


def top_ops_svg(profile: Profile, most: int = 15) -> str:
    """Draw the ops that need the most time.

    Parameters
    ----------
    profile
        The profile.
    most
        How many.

    Returns
    -------
    svg
        A bar for each op, as long as its share.
    """
    ops = sorted(profile.ops, key=lambda op: -op.span)[:most]
    if not ops:
        return _nothing("The driver has no events.")
    colours = _colours(profile.ops)
    scale = (_WIDTH - _LEFT - 230) / max(ops[0].span, 1)
    marks = []
    for index, op in enumerate(ops):
        y = 10 + index * _ROW
        title = f"{op.composite or op.op or ''} {op.title} in {op.region}"
        width = op.span * scale
        marks.append(_text(_LEFT - 8, y + 14, _short(op.title), "end"))
        marks.append(_box(_LEFT, y, max(width, 0.5), colours[op.region, op.label], title))
        share = format(op.share, ".1%")
        label = f"{share}, {op.span:,} {profile.unit}"
        marks.append(_text(_LEFT + width + 6, y + 14, label))
    return _svg(20 + len(ops) * _ROW, "The ops that need the most time", marks)


def _colours(ops: Sequence[OpProfile]) -> dict[tuple[str, str | None], str]:
    return {(op.region, op.label): _PALETTE[index % len(_PALETTE)] for index, op in enumerate(ops)}


def _about(event: Event, profile: Profile) -> str:
    lines = [
        f"{event.name}: {event.label or 'no op'}",
        f"{event.region}, {event.engine}",
        f"{event.begin:,} to {event.end:,} {profile.unit}, busy {event.busy:,}",
    ]
    if event.waits_for is not None:
        lines.append(f"waited for {event.waits_for}")
    return "\n".join(lines)


def _box(x: float, y: float, width: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_ROW - 4}" fill="{colour}" '
        f'stroke="none"><title>{escape(title)}</title></rect>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">'
        f"{escape(text)}</text>"
    )


def _short(text: str, most: int = 28) -> str:
    # The end of a path is more informative than its beginning.
    return text if len(text) <= most else "…" + text[1 - most :]


def _nothing(text: str) -> str:
    return _svg(40, text, [_text(10, 24, text)])


def _svg(height: float, title: str, marks: Sequence[str]) -> str:
    body = "\n".join(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'width="100%" role="img" font-family="sans-serif" font-size="12">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>\n"
    )
