# SPDX-License-Identifier: Apache-2.0
"""How the times of two profiles differ, in a call of the model."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...backend.profiling.origin_names import require_match
from ...backend.profiling.parts import HostCall, RegionProfile, Run
from ...backend.profiling.profiles import Profile
from .changes import SLOWER, Change

if TYPE_CHECKING:
    from ...backend.report.report import Report

HOST_SLOWER = 2.0
"""Times on the host that differ by a smaller factor are the same: other programs run there too."""
HOST_LEAST = 0.05
"""So are those that differ by a smaller part of the model's call."""

_Reports = tuple["Report", "Report"]
_Profiles = tuple[Profile, Profile]
_Times = tuple[float, float]


def differences(
    reports: _Reports, profiles: _Profiles
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Compare two profiles: the whole call, the regions, the ops, and the functions of the host.

    `whole`: the times of a call, whether they differ or not.
    `changes`: what differs by more than measurements vary.
    """
    for when, report, profile in zip(("before", "after"), reports, profiles, strict=True):
        require_match(profile, report, f" {when}")
    one, two = profiles
    walls = _usual(one.calls, one), _usual(two.calls, two)
    whole = [_change("time", "a call of the model", "", walls, "us")]
    unit = _unit(profiles)
    if unit is not None:
        spans = _span(one.regions, one), _span(two.regions, two)
        whole.append(_change("span", "on the NPU in a call", "", spans, unit))
    # Where the device has no clock, that of the host is all there is.
    factor = SLOWER if unit is None else HOST_SLOWER
    changes = [whole[0]] if _differ(walls, factor) else []
    changes += _regions(reports, profiles, factor, HOST_LEAST * walls[0])
    changes += _ops(reports, profiles)
    changes += _host(profiles, HOST_LEAST * walls[0])
    return tuple(whole), tuple(changes)


def _regions(
    reports: _Reports, profiles: _Profiles, factor: float, least: float
) -> Iterator[Change]:
    """Compare the regions that have the same ops in both models."""
    one, two = ({region.symbol: region for region in item.regions} for item in profiles)
    before, after = ({item.symbol: item.composites for item in each.regions} for each in reports)
    unit = _unit(profiles)
    for symbol in one:
        if symbol not in two or before[symbol] != after[symbol]:
            continue
        both = one[symbol], two[symbol]
        if unit is not None:
            spans = _span(both[:1], profiles[0]), _span(both[1:], profiles[1])
            is_exact = unit == "cycles" and all(map(_is_exact, both))
            if _differ(spans, 1.0 if is_exact else SLOWER):
                yield _change("span", symbol, "", spans, unit)
        times = _usual(both[0].runs, profiles[0]), _usual(both[1].runs, profiles[1])
        if _differ(times, factor, least):
            yield _change("time", f"{symbol}, on the host", "", times, "us")


def _ops(reports: _Reports, profiles: _Profiles) -> Iterator[Change]:
    """Compare how long engines worked for each op, hidden behind other ops or not."""
    is_timed = all(profile.ticks_per_us for profile in profiles)
    unit = "us" if is_timed else _unit(profiles)
    if unit is None:
        return
    found: list[dict[tuple[str, str], float]] = []
    for report, profile in zip(reports, profiles, strict=True):
        times: dict[tuple[str, str], float] = {}
        titles = {(op.region, op.name): op.title for op in report.ops}
        scale = (profile.ticks_per_us if is_timed else 1.0) * max(len(profile.calls), 1)
        for op in profile.ops:
            key = titles.get((op.region, op.variable or ""), op.title), op.op or ""
            times[key] = times.get(key, 0.0) + (op.active or op.span) / scale
        found.append(times)
    kind = "time" if is_timed else "span"
    one, two = found
    for key in {**two, **one}:
        before, after = one.get(key), two.get(key)
        if before is None or after is None:
            where = "after" if before is None else "before"
            why = f"only the profile {where} has it"
            yield Change(kind, *key, before, after, False, why, unit)
        elif _differ((before, after), SLOWER):
            yield _change(kind, *key, (before, after), unit)


def _host(profiles: _Profiles, least: float) -> Iterator[Change]:
    """Compare the functions of the host; one that is not called takes no time."""
    groups: list[dict[tuple[str, str], list[HostCall]]] = []
    for profile in profiles:
        mine: dict[tuple[str, str], list[HostCall]] = {}
        for item in profile.host:
            mine.setdefault((item.title, item.name if item.origin else ""), []).append(item)
        groups.append(mine)
    for name, function in {**groups[1], **groups[0]}:
        before, after = (mine.get((name, function), ()) for mine in groups)
        times = _usual(before, profiles[0]), _usual(after, profiles[1])
        if _differ(times, HOST_SLOWER, least):
            yield _change("time", name, function or "on the host", times, "us")


def _unit(profiles: _Profiles) -> str | None:
    """Return the unit of the devices' clocks; none if there is none, or each has its own."""
    one, two = ((profile.unit, profile.ticks_per_us) for profile in profiles)
    return one[0] if one == two else None


def _usual(items: Sequence[Run | HostCall], profile: Profile) -> float:
    """Return the us in a call of the model: the median, since others disturb single ones."""
    if not items:
        return 0.0
    middle = statistics.median(item.end_us - item.begin_us for item in items)
    return round(middle * len(items) / max(len(profile.calls), 1), 3)


def _span(regions: Sequence[RegionProfile], profile: Profile) -> float:
    return sum(region.span for region in regions) / max(len(profile.calls), 1)


def _is_exact(region: RegionProfile) -> bool:
    """Whether all runs took equally long, so that times do not vary by chance."""
    return len({run.span for run in region.runs}) <= 1


def _differ(times: _Times, factor: float, least: float = 0.0) -> bool:
    low, high = sorted(times)
    return low != high and high >= factor * low and high - low >= least


def _change(kind: str, name: str, op: str, times: _Times, unit: str) -> Change:
    before, after = times
    reason = f"{after / before:.2f} times as long" if before and after and before != after else ""
    return Change(kind, name, op, before, after, after > before, reason, unit)
