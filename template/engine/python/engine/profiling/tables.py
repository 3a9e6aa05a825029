# SPDX-License-Identifier: Apache-2.0
"""A profile as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TextIO

from .. import terminal
from ..terminal import Row, TextTable, aligned
from .parts import Traffic
from .result import Profile

_MOST_HOST_FUNCTIONS = 10


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
    blocks = ["\n".join(aligned([item.header, *item.rows])) for item in _tables(profile)]
    return "\n\n".join([*blocks, profile.summary])


def show(profile: Profile, file: TextIO | None) -> None:
    """Print the tables: with colours on a terminal, else as plain text.

    Parameters
    ----------
    profile
        The profile.
    file
        Where to print; none: standard output.
    """
    terminal.show(profile, lambda: [*_tables(profile), profile.summary], file)


def _tables(profile: Profile) -> list[TextTable]:
    """Return the tables that have lines, each with its header."""
    tables: list[TextTable] = []
    unit = profile.unit or "-"
    if profile.regions:
        header = ("region", "calls", "host us", unit, "busy", "traffic")
        tables.append(
            TextTable(
                header,
                [
                    (
                        item.symbol,
                        str(item.calls),
                        f"{item.wall_us:,.1f}",
                        f"{item.span:,}" if profile.unit else "",
                        _parts(
                            f"{name} " + format(part, ".0%")
                            for name, part in item.utilisation.items()
                        ),
                        traffic_text(item.traffic),
                    )
                    for item in profile.regions
                ],
                numbers=True,
            )
        )
    if profile.ops:
        header = ("op", "name", "share", unit, "busy", "traffic")
        ordered = sorted(profile.ops, key=lambda item: -item.span)
        tables.append(
            TextTable(
                header,
                [
                    (
                        item.composite or item.op or "",
                        item.title,
                        format(item.share, ".1%"),
                        f"{item.span:,}",
                        _parts(f"{name} {n:,}" for name, n in item.busy.items()),
                        traffic_text(item.traffic),
                    )
                    for item in ordered
                ],
                numbers=True,
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
        tables.append(TextTable(("on the host", "calls", "us"), shown, numbers=True))
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
