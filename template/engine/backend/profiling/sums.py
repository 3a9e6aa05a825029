# SPDX-License-Identifier: Apache-2.0
"""Sums over the events of a profile: for engines, memories and ops."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from .parts import Event, KernelProfile, RegionProfile

Op = tuple[str, str | None]
"""An op of a profile: the symbol of its region, and its label."""

SCALAR = ".scalar"
"""How the name of an engine ends that stands for the scalar code of a program of instructions."""


def busy_of(events: Iterable[Event]) -> dict[str, int]:
    """Return how long each engine worked."""
    busy: Counter[str] = Counter()
    for event in events:
        busy[event.engine] += event.busy
    return dict(busy)


def traffic_of(events: Iterable[Event]) -> dict[str, tuple[int, int]]:
    """Return the bytes read from and written to each memory."""
    traffic: dict[str, tuple[int, int]] = {}
    for event in events:
        for memory, (read, written) in event.traffic.items():
            before = traffic.get(memory, (0, 0))
            traffic[memory] = before[0] + read, before[1] + written
    return traffic


def scalar_of(busy: Mapping[str, int]) -> int:
    """Return how long engines worked as scalar code: the driver has an engine for it."""
    return sum(time for engine, time in busy.items() if engine.endswith(SCALAR))


def share_of_peak(operations: int, time: int, peak: float) -> float | None:
    """Return operations as a share of those at the peak; None if either is not known."""
    return round(operations / (time * peak), 6) if operations and time and peak else None


def peak_of(region: RegionProfile) -> float:
    """Return how many operations a region's device does per unit of time; 0: not known."""
    return 0.0 if region.peaks is None else region.peaks.operations


def peak_share(regions: Iterable[RegionProfile]) -> float | None:
    """Return the operations of regions as a share of those at the peak; None: not known."""
    known = [region for region in regions if region.of_peak]
    operations = sum(region.operations for region in known)
    return share_of_peak(operations, 1, sum(region.span * peak_of(region) for region in known))


def is_program(region: RegionProfile) -> bool:
    """Whether a region is a program of instructions, whose driver counts scalar code."""
    return any(counter.endswith(SCALAR) for counter in region.counters)


def scalar_time(regions: Iterable[RegionProfile]) -> int | None:
    """Return how long programs of instructions ran scalar code; None if no region is one."""
    programs = [scalar_of(region.busy) for region in regions if is_program(region)]
    return sum(programs) if programs else None


def scalar_share(regions: Sequence[RegionProfile]) -> float | None:
    """Return the share of scalar code in the time of programs of instructions."""
    time = scalar_time(regions)
    span = sum(region.span for region in regions if is_program(region))
    return None if time is None else round(time / max(span, 1), 6)


def by_op(events: Iterable[Event]) -> dict[Op, list[Event]]:
    """Return the events of each op."""
    groups: dict[Op, list[Event]] = {}
    for event in events:
        groups.setdefault((event.region, event.label), []).append(event)
    return groups


def kernels_of(events: Sequence[Event], peaks: Mapping[str, float]) -> Iterator[KernelProfile]:
    """Sum the events of each kernel, in the order in which they begin.

    `peaks`: of the regions that are programs of kernels, their peaks of operations.
    """
    groups: dict[tuple[str, str | None, str], list[Event]] = {}
    for event in events:
        if event.region in peaks:
            groups.setdefault((event.region, event.label, event.name), []).append(event)
    # Time is divided among kernels as among ops.
    as_ops = [
        replace(event, label=f"{event.label} {event.name}")
        for event in events
        if event.region in peaks
    ]
    times = attributed_to(as_ops)
    total = sum(times.values())
    for (region, label, name), own in groups.items():
        busy, active = busy_of(own), active_of(own)
        operations = sum(event.operations for event in own)
        time = times.get((region, f"{label} {name}"), 0)
        share = round(time / total, 6) if total else 0.0
        peak = share_of_peak(operations, active, peaks[region])
        yield KernelProfile(region, label, name, busy, operations, active, time, share, peak)


def active_of(events: Iterable[Event]) -> int:
    """Return how long at least one event of a region was under way."""
    total, call, reached = 0, -1, 0
    for event in sorted(events, key=lambda event: (event.call, event.begin)):
        if event.call != call:
            call, reached = event.call, event.begin
        total += max(event.end, reached) - max(event.begin, reached)
        reached = max(event.end, reached)
    return total


def attributed_to(events: Iterable[Event]) -> Mapping[Op, int]:
    """Divide the time of each run among its ops: each instant belongs to exactly one op.

    Of several ops that have engines, it belongs to the one that is done first in this run, which
    hides the work of later ops. If none has an engine, all wait for the op that begins next.
    """
    runs: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        runs.setdefault((event.region, event.call), []).append(event)
    times: Counter[Op] = Counter()
    for (region, _), run in runs.items():
        for label, time in _divided(run).items():
            times[region, label] += time
    return times


def _divided(events: Sequence[Event]) -> Counter[str | None]:
    """Divide the time of one run, from 0 to the end of the last event."""
    done: dict[str | None, tuple[int, int]] = {}
    for event in events:
        end, order = done.get(event.label, (0, len(done)))
        done[event.label] = max(end, event.end), order
    coming = sorted(events, key=lambda event: (event.begin, done[event.label]))
    instants = sorted({0, *(time for event in events for time in (event.begin, event.end))})
    times: Counter[str | None] = Counter()
    at_work: list[tuple[tuple[int, int], int, int]] = []
    begun = 0
    for begin, end in pairwise(instants):
        while begun < len(coming) and coming[begun].begin <= begin:
            event = coming[begun]
            heapq.heappush(at_work, (done[event.label], event.end, begun))
            begun += 1
        # Events that have ended matter only at the top of the heap.
        while at_work and at_work[0][1] <= begin:
            heapq.heappop(at_work)
        owner = coming[at_work[0][2] if at_work else begun]
        times[owner.label] += end - begin
    return times


def waits_of(events: Iterable[Event]) -> Mapping[Op, dict[str, int]]:
    """Return how long engines stood still during an op because they waited for another engine.

    An event with `waits_for` adds the time before it in which its engine was free, and the op had
    already begun in this run.
    """
    free: dict[tuple[str, int, str], int] = {}
    begun: dict[tuple[str, int, str | None], int] = {}
    waits: dict[Op, dict[str, int]] = {}
    for event in sorted(events, key=lambda event: event.begin):
        engine = event.region, event.call, event.engine
        since = begun.setdefault((event.region, event.call, event.label), event.begin)
        still = event.begin - max(since, free.get(engine, 0))
        free[engine] = max(event.end, free.get(engine, 0))
        if event.waits_for is not None and still > 0:
            op_waits = waits.setdefault((event.region, event.label), {})
            op_waits[event.waits_for] = op_waits.get(event.waits_for, 0) + still
    return waits
