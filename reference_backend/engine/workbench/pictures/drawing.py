# SPDX-License-Identifier: Apache-2.0
"""Marks of SVG for the pictures of a profile."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from ...backend.profiling.parts import OpProfile

WIDTH = 960
"""Of all pictures; heights differ."""
PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#bbbbbb")
"""Colours that can be told apart, also on black and by those who do not see red or green."""

GRID = ' stroke-opacity="0.15" pointer-events="none"'
"""The style of lines through a picture: clicks go through them."""

Marks = list[str]
"""Elements of SVG, in the order in which they are drawn."""


def colours_of(ops: Sequence[OpProfile]) -> dict[tuple[str, str | None], str]:
    """Return a colour for each op, by region and label."""
    return {(op.region, op.label): PALETTE[index % len(PALETTE)] for index, op in enumerate(ops)}


def box(
    x: float, y: float, width: float, height: float, colour: str, title: str, attributes: str = ""
) -> str:
    """Return a rectangle with a title as its tooltip."""
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.2f}" fill="{colour}" '
        f'stroke="none"{attributes}><title>{escaped(title)}</title></rect>'
    )


def line(x: float, y: float, to_x: float, to_y: float, attributes: str = "") -> str:
    """Return a line of the colour of the text."""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="currentColor"'
        f"{attributes}/>"
    )


def text(x: float, y: float, content: str, anchor: str = "start", attributes: str = "") -> str:
    """Return a line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor"{attributes}>'
        f"{escaped(content)}</text>"
    )


def attribute(name: str, value: str | int) -> str:
    """Return an attribute, with a space before it."""
    return f" {name}={quoteattr(_allowed(str(value)))}"


def ticks(most: float, count: int = 6) -> list[int]:
    """Return round numbers from 0 to the end of an axis: steps of 1, 2 or 5 by powers of ten."""
    power = 10 ** max(math.floor(math.log10(max(most, 1) / count)), 0)
    step = next(power * factor for factor in (1, 2, 5, 10) if most <= power * factor * count)
    return list(range(0, int(most) + 1, step))


def time_axis(whole: int, left: float, right: float, top: float, bottom: float, unit: str) -> Marks:
    """Return an axis of time below a picture, with faint lines through it."""
    marks: Marks = []
    for value in ticks(whole):
        x = left + (right - left) * value / max(whole, 1)
        marks.append(line(x, top, x, bottom, GRID))
        anchor = "middle" if value and x < right - 30 else "end" if value else "start"
        marks.append(text(x, bottom + 16, f"{value:,}", anchor))
    return [*marks, text(right, bottom + 32, f"{unit}, {whole:,} in all", "end")]


def short(content: str, most: int = 28) -> str:
    """Return the end of a text: the end of a path tells more than its beginning."""
    return content if len(content) <= most else "…" + content[1 - most :]


def nothing(why: str) -> str:
    """Return a picture with a sentence: why there is nothing to draw."""
    return picture(40, why, [text(10, 24, why)])


def picture(height: float, title: str, marks: Sequence[str]) -> str:
    """Return a picture, which stands alone and has the colour of the text around it."""
    body = "\n".join(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="100%" role="img" font-family="sans-serif" font-size="12">\n'
        f"<title>{escaped(title)}</title>\n{body}\n</svg>\n"
    )


def escaped(content: str) -> str:
    """Return text for XML, without the characters that XML does not allow."""
    return escape(_allowed(content))


def _allowed(content: str) -> str:
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", content)
