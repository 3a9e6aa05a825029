# SPDX-License-Identifier: Apache-2.0
"""A profile as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from .result import Profile, Traffic

_MOST_HOST_FUNCTIONS = 10
Row = tuple[str, ...]


def as_text(profile: Profile) -> str:
    """Return the tables as plain text, and the summary.

    Parameters
    ----------
    profile
        The profile.

    Returns
    -------
    text
        Columns of the same width, a table after the other.
    """
    blocks = [_aligned([header, *rows]) for header, rows in _tables(profile)]
    return "\n\n".join([*blocks, profile.summary])


def show(profile: Profile, file: TextIO) -> None:
    """Print the tables: with colours on a terminal, else as plain text.

    Parameters
    ----------
    profile
        The profile.
    file
        Where to print.
    """
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # A board has the runtime alone.
        print(profile, file=file)
        return
    console = Console(file=file)
    if not console.is_terminal:
        print(profile, file=file)
        return
    for header, rows in _tables(profile):
        table = Table(header_style="bold")
        for index, name in enumerate(header):
            table.add_column(name, justify="left" if index == 0 else "right")
        for row in rows:
            # As text: names may have brackets.
            table.add_row(*map(Text, row))
        console.print(table)
    console.print(Text(profile.summary, style="bold"))


def _tables(profile: Profile) -> list[tuple[Row, list[Row]]]:
    """Return the tables that have lines, each with its header."""
    tables: list[tuple[Row, list[Row]]] = []
    unit = profile.unit or "-"
    if profile.regions:
        header = ("region", "calls", "host us", unit, "busy", "traffic")
        tables.append(
            (
                header,
                [
                    (
                        item.symbol,
                        str(item.calls),
                        f"{item.wall_us:,.1f}",
                        f"{item.span:,}" if profile.unit else "",
                        _parts(f"{name} {part:.0%}" for name, part in item.utilisation.items()),
                        traffic_text(item.traffic),
                    )
                    for item in profile.regions
                ],
            )
        )
    if profile.ops:
        header = ("op", "name", "share", unit, "busy", "traffic")
        ordered = sorted(profile.ops, key=lambda item: -item.span)
        tables.append(
            (
                header,
                [
                    (
                        item.composite or item.op or "",
                        item.title,
                        f"{item.share:.1%}",
                        f"{item.span:,}",
                        _parts(f"{name} {n:,}" for name, n in item.busy.items()),
                        traffic_text(item.traffic),
                    )
                    for item in ordered
                ],
            )
        )
    times = host_times(profile)
    if times:
        rows: list[Row] = [
            (name, str(count), f"{time:,.1f}") for name, (count, time) in times.items()
        ]
        more = len(rows) - _MOST_HOST_FUNCTIONS
        shown = rows[:_MOST_HOST_FUNCTIONS]
        if more > 0:
            rest = list(times.values())[_MOST_HOST_FUNCTIONS:]
            sums = str(sum(count for count, _ in rest)), f"{sum(time for _, time in rest):,.1f}"
            shown.append((f"({more} others)", *sums))
        tables.append((("on the host", "calls", "us"), shown))
    return tables


def host_times(profile: Profile) -> Mapping[str, tuple[int, float]]:
    """Return how often each function of the host was called, and how long in all.

    Parameters
    ----------
    profile
        The profile.

    Returns
    -------
    times
        Counts and us by name, the longest first.
    """
    found: dict[str, tuple[int, float]] = {}
    for item in profile.host:
        count, time = found.get(item.name, (0, 0.0))
        found[item.name] = count + 1, time + item.end_us - item.begin_us
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def traffic_text(traffic: Traffic) -> str:
    """Return what was read and written, for people.

    Parameters
    ----------
    traffic
        The bytes by memory.

    Returns
    -------
    text
        A line.
    """
    return _parts(f"{name} {read:,} + {written:,} B" for name, (read, written) in traffic.items())


def _parts(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _aligned(rows: Sequence[Row]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)
