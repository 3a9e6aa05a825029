# SPDX-License-Identifier: Apache-2.0
"""A profile as text, in tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from ..shared import terminal
from ..shared.terminal import Row, TextTable, aligned
from .parts import Traffic
from .sums import scalar_of

if TYPE_CHECKING:
    from .profiles import Profile

_MOST_HOST_FUNCTIONS = 10


def as_text(profile: Profile, most: int | None = None) -> str:
    """Return the tables with the `most` longest ops, or all, and the summary as plain text."""
    blocks = ["\n".join(aligned([table.header, *table.rows])) for table in _tables(profile, most)]
    return "\n\n".join([*blocks, profile.summary])


def show(profile: Profile, file: TextIO | None, most: int | None = None) -> None:
    """Print the tables with the `most` longest ops, or all, in colours on a terminal."""
    plain = as_text(profile, most)
    terminal.show(plain, lambda: [*_tables(profile, most), profile.summary], file)


def _tables(profile: Profile, most: int | None) -> list[TextTable]:
    """Return the tables that have lines, each with its header."""
    tables: list[TextTable] = []
    unit = profile.unit or "-"
    drivers = {region.driver for region in profile.regions}
    places = {it.symbol: f" on '{it.driver}'" for it in profile.regions if len(drivers) > 1}
    header: Row
    if profile.regions:
        header = ("region", "calls", "host us", unit, "busy", "traffic")
        tables.append(
            TextTable(
                header,
                [
                    (
                        region.symbol + places.get(region.symbol, ""),
                        str(region.calls),
                        f"{region.wall_us:,.1f}",
                        f"{region.span:,}" if profile.unit else "",
                        _parts(
                            f"{name} " + format(part, ".0%")
                            for name, part in region.utilisation.items()
                        ),
                        traffic_text(region.traffic),
                    )
                    for region in profile.regions
                ],
                figures=(1, 2, 3),
                kept=5,
                folded=(4,),
            )
        )
    if profile.ops:
        columns = ("op", "name", "share", unit, "of peak", "waits for", "busy", "traffic")
        ordered = sorted(profile.ops, key=lambda op: -op.attributed)
        shown, hidden = ordered[:most], ordered[len(ordered[:most]) :]
        rows: list[Row] = [
            (
                op.composite or op.op or "",
                op.title + places.get(op.region, ""),
                format(op.attributed_share, ".1%"),
                f"{op.attributed:,}",
                _share(op.of_peak),
                _amounts(op.waits),
                _amounts(op.busy),
                traffic_text(op.traffic),
            )
            for op in shown
        ]
        if hidden:
            share = format(sum(op.attributed_share for op in hidden), ".1%")
            time = f"{sum(op.attributed for op in hidden):,}"
            others = f"({len(hidden):,} others)", "--all shows them", share, time, "", "", "", ""
            rows.append(others)
        tables.append(TextTable(columns, rows, figures=(2, 3, 4), kept=5, folded=(1,)))
    if profile.kernels:
        tables.append(_kernels(profile, most))
    times = host_times(profile)
    if times:
        lines: list[Row] = [
            (name, origin or "", str(count), f"{time:,.1f}")
            for (name, origin), (count, time) in times.items()
        ]
        if most is not None and len(lines) > _MOST_HOST_FUNCTIONS:
            unlisted = list(times.values())[_MOST_HOST_FUNCTIONS:]
            sums = [sum(column) for column in zip(*unlisted, strict=True)]
            figures = str(sums[0]), f"{sums[1]:,.1f}"
            del lines[_MOST_HOST_FUNCTIONS:]
            lines.append((f"({len(unlisted):,} others)", "--all shows them", *figures))
        header = ("on the host", "name", "calls", "us")
        tables.append(TextTable(header, lines, figures=(2, 3), kept=4, folded=(1,)))
    return tables


def _kernels(profile: Profile, most: int | None) -> TextTable:
    """Return a table of the kernels of programs of instructions."""
    titles = {(op.region, op.label): op.title for op in profile.ops}
    ordered = sorted(profile.kernels, key=lambda kernel: -kernel.attributed)
    rows: list[Row] = [
        (
            kernel.name,
            titles.get((kernel.region, kernel.label), ""),
            format(kernel.attributed_share, ".1%"),
            f"{kernel.attributed:,}",
            _share(kernel.of_peak),
            _share(scalar_of(kernel.busy) / kernel.active if kernel.active else None),
            _amounts(kernel.busy),
        )
        for kernel in ordered[:most]
    ]
    if hidden := ordered[len(rows) :]:
        share = format(sum(kernel.attributed_share for kernel in hidden), ".1%")
        time = f"{sum(kernel.attributed for kernel in hidden):,}"
        rows.append((f"({len(hidden):,} others)", "--all shows them", share, time, "", "", ""))
    header = ("kernel", "of", "share", profile.unit or "-", "of peak", "scalar", "busy")
    return TextTable(header, rows, figures=(2, 3, 4, 5), kept=6, folded=(0, 1))


def host_times(profile: Profile) -> Mapping[tuple[str, str | None], tuple[int, float]]:
    """Return calls and total us by the names of a host function and its op, longest first."""
    times: dict[tuple[str, str | None], tuple[int, float]] = {}
    for call in profile.host:
        key = call.name, call.origin
        count, time = times.get(key, (0, 0.0))
        times[key] = count + 1, time + call.end_us - call.begin_us
    return dict(sorted(times.items(), key=lambda entry: -entry[1][1]))


def traffic_text(traffic: Traffic) -> str:
    """Return the bytes read from and written to each memory, for people."""
    return _parts(f"{name} {read:,} + {written:,} B" for name, (read, written) in traffic.items())


def _amounts(amounts: Mapping[str, int]) -> str:
    return _parts(f"{name} {amount:,}" for name, amount in amounts.items())


def _share(share: float | None) -> str:
    return format(share, ".1%") if share else ""


def _parts(parts: Iterable[str]) -> str:
    return ", ".join(parts)
