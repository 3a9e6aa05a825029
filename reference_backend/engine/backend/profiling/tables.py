# SPDX-License-Identifier: Apache-2.0
"""A profile as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from ..shared import terminal
from ..shared.terminal import Row, TextTable, aligned
from .parts import Traffic

if TYPE_CHECKING:
    from .result import Profile

_MOST_HOST_FUNCTIONS = 10


def as_text(profile: Profile, most: int | None = None) -> str:
    """Return the tables as plain text, and the summary.

    `most`: how many ops are shown, the longest first; none: all.
    """
    blocks = ["\n".join(aligned([item.header, *item.rows])) for item in _tables(profile, most)]
    return "\n\n".join([*blocks, profile.summary])


def show(profile: Profile, file: TextIO | None, most: int | None = None) -> None:
    """Print the tables: with colours on a terminal, else as plain text.

    `file`: where to print; none: standard output.
    `most`: how many ops are shown, the longest first; none: all.
    """
    plain = as_text(profile, most)
    terminal.show(plain, lambda: [*_tables(profile, most), profile.summary], file)


def _tables(profile: Profile, most: int | None) -> list[TextTable]:
    """Return the tables that have lines, each with its header."""
    tables: list[TextTable] = []
    unit = profile.unit or "-"
    header: Row
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
                figures=(1, 2, 3),
                kept=5,
                folded=(4,),
            )
        )
    if profile.ops:
        columns = ("op", "name", "share", unit, "waits for", "busy", "traffic")
        ordered = sorted(profile.ops, key=lambda item: -item.attributed)
        shown, rest = ordered[:most], ordered[len(ordered[:most]) :]
        rows: list[Row] = [
            (
                item.composite or item.op or "",
                item.title,
                format(item.attributed_share, ".1%"),
                f"{item.attributed:,}",
                _amounts(item.waits),
                _amounts(item.busy),
                traffic_text(item.traffic),
            )
            for item in shown
        ]
        if rest:
            share = format(sum(item.attributed_share for item in rest), ".1%")
            time = f"{sum(item.attributed for item in rest):,}"
            rows.append((f"({len(rest):,} others)", "--all shows them", share, time, "", "", ""))
        tables.append(TextTable(columns, rows, figures=(2, 3), kept=4, folded=(1,)))
    times = host_times(profile)
    if times:
        lines: list[Row] = [
            (name, origin or "", str(count), f"{time:,.1f}")
            for (name, origin), (count, time) in times.items()
        ]
        if most is not None and len(lines) > _MOST_HOST_FUNCTIONS:
            others = list(times.values())[_MOST_HOST_FUNCTIONS:]
            sums = str(sum(count for count, _ in others)), f"{sum(time for _, time in others):,.1f}"
            del lines[_MOST_HOST_FUNCTIONS:]
            lines.append((f"({len(others):,} others)", "--all shows them", *sums))
        header = ("on the host", "name", "calls", "us")
        tables.append(TextTable(header, lines, figures=(2, 3), kept=4, folded=(1,)))
    return tables


def host_times(profile: Profile) -> Mapping[tuple[str, str | None], tuple[int, float]]:
    """Return how often each function of the host was called, and how long in all.

    Counts and us by the name of the function and that of its op, the longest first.
    """
    found: dict[tuple[str, str | None], tuple[int, float]] = {}
    for item in profile.host:
        key = item.name, item.origin
        count, time = found.get(key, (0, 0.0))
        found[key] = count + 1, time + item.end_us - item.begin_us
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def traffic_text(traffic: Traffic) -> str:
    """Return what was read and written, for people.

    `traffic`: the bytes by memory.
    """
    return _parts(f"{name} {read:,} + {written:,} B" for name, (read, written) in traffic.items())


def _amounts(amounts: Mapping[str, int]) -> str:
    return _parts(f"{name} {amount:,}" for name, amount in amounts.items())


def _parts(parts: Iterable[str]) -> str:
    return ", ".join(parts)
