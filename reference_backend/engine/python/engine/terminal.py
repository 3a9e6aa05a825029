# SPDX-License-Identifier: Apache-2.0
"""Tables for people: with colours on a terminal, else as plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

Row = tuple[str, ...]


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Parameters
    ----------
    header
        The names of the columns.
    rows
        The lines.
    styles
        The colour of each line on a terminal; none: no colours.
    title
        What stands above it on a terminal.
    numbers
        Whether all columns but the first are numbers.
    """

    header: Row
    rows: Sequence[Row]
    styles: Sequence[str] = ()
    title: str = ""
    numbers: bool = False


def aligned(rows: Sequence[Row]) -> list[str]:
    """Return lines with columns of the same width.

    Parameters
    ----------
    rows
        The cells.

    Returns
    -------
    lines
        One for each row.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def show(
    plain: object, blocks: Callable[[], Iterable[str | TextTable]], file: TextIO | None
) -> None:
    """Print something.

    Parameters
    ----------
    plain
        What is printed where there is no terminal.
    blocks
        Returns tables, and lines of text, for a terminal.
    file
        Where to print; none: standard output.
    """
    stream = sys.stdout if file is None else file
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # A board has the runtime alone.
        print(plain, file=stream)
        return
    console = Console(file=stream)
    if not console.is_terminal:
        print(plain, file=stream)
        return
    for block in blocks():
        # As text: names may have brackets.
        if isinstance(block, str):
            console.print(Text(block, style="bold"))
            continue
        table = Table(title=block.title or None, header_style="bold")
        for index, name in enumerate(block.header):
            # A name that is too long goes on in the next line: it is never cut.
            justify: Literal["left", "right"] = "right" if block.numbers and index else "left"
            table.add_column(name, justify=justify, overflow="fold")
        for index, row in enumerate(block.rows):
            table.add_row(*map(Text, row), style=block.styles[index] if block.styles else None)
        console.print(table)
