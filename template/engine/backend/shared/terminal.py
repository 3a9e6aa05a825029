# SPDX-License-Identifier: Apache-2.0
"""Tables for people: with colours on a terminal, else as plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from .messages import printable, printable_lines

Row = tuple[str, ...]


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    `header`: the names of the columns.
    `rows`: the lines.
    `styles`: the colour of each line on a terminal; none: no colours.
    `title`: the text above it on a terminal.
    `figures`: the columns that are numbers, by index.
    `kept`: how many columns stay where the terminal is too narrow: the last is left out first.
    `folded`: the columns that are broken into several lines if these are still too wide.
    """

    header: Row
    rows: Sequence[Row]
    styles: Sequence[str] = ()
    title: str = ""
    figures: Sequence[int] = ()
    kept: int = 1
    folded: Sequence[int] = (0,)

    def fitting(self, width: int) -> TextTable:
        """Return the table with the columns that fit."""
        rows = (self.header, *self.rows)
        widths = [max(len(row[at]) for row in rows) for at in range(len(self.header))]
        count = len(self.header)
        while count > self.kept and sum(widths[:count]) + len(_GAP) * (count - 1) > width:
            count -= 1
        shown = [row[:count] for row in self.rows]
        return replace(self, header=self.header[:count], rows=shown)


@dataclass(frozen=True)
class Indented:
    """A text whose lines are all indented.

    `text`: the text.
    `by`: the number of spaces.
    `style`: its colour; "": none.
    """

    text: str
    by: int = 0
    style: str = ""


Block = str | Indented | TextTable
"""What a terminal shows."""
_GAP = "  "


def short(number: int) -> str:
    """Return a number with three digits that count."""
    amount, unit = float(number), ""
    for unit in ("", " k", " M", " G", " T"):
        if amount < 999.5 or unit == " T":
            break
        amount /= 1000
    return f"{number}" if not unit else f"{amount:.3g}{unit}"


def aligned(rows: Sequence[Row]) -> list[str]:
    """Return lines with columns of the same width."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(_GAP.join([*cells, row[-1]]).rstrip())
    return lines


def say(text: object, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print a text, without what a terminal would interpret.

    `file`: where to print; none: standard output.
    `flush`: whether it appears at once.
    """
    print(printable_lines(str(text)), file=file, end=end, flush=flush)


def show(plain: object, blocks: Callable[[], Iterable[Block]], file: TextIO | None) -> None:
    """Print something.

    `plain`: the text that is printed without a terminal.
    `file`: where to print; none: standard output.
    """
    stream = sys.stdout if file is None else file
    try:
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # A board has the runtime alone.
        say(plain, stream)
        return
    console = Console(file=stream)
    if not console.is_terminal:
        say(plain, stream)
        return
    for number, block in enumerate(blocks()):
        if number and not isinstance(block, Indented):
            console.print()
        # As text: names may have brackets.
        if isinstance(block, str):
            console.print(Text(printable_lines(block), style="bold"))
            continue
        if isinstance(block, Indented):
            text = Text(printable_lines(block.text), style=block.style)
            console.print(Padding(text, (0, 0, 0, block.by)))
            continue
        shown = block.fitting(console.width)
        # Lines between columns would take the place of the text.
        table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
        if block.title:  # That of a table is broken where the table ends.
            console.print(Text(block.title, style="bold"))
        for index, name in enumerate(shown.header):
            table.add_column(
                name,
                justify="right" if index in block.figures else "left",
                overflow="fold",
                no_wrap=index not in block.folded,
            )
        for index, row in enumerate(shown.rows):
            table.add_row(
                *(Text(printable(cell)) for cell in row),
                style=block.styles[index] if block.styles else None,
            )
        console.print(table)
        if left_out := block.header[len(shown.header) :]:
            more = f"(a wider terminal shows, too: {', '.join(left_out)})"
            console.print(Text(more, style="dim"))
