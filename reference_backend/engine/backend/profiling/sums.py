# SPDX-License-Identifier: Apache-2.0
"""Sums over the events of a profile: for engines, memories and ops."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from .parts import Event

Op = tuple[str, str | None]
"""An op of a profile: the symbol of its region, and its label."""


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


def by_op(events: Iterable[Event]) -> dict[Op, list[Event]]:
    """Return the events of each op."""
    groups: dict[Op, list[Event]] = {}
    for event in events:
        groups.setdefault((event.region, event.label), []).append(event)
    return groups


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
