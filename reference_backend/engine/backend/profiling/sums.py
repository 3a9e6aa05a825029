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
    found: Counter[str] = Counter()
    for event in events:
        found[event.engine] += event.busy
    return dict(found)


def traffic_of(events: Iterable[Event]) -> dict[str, tuple[int, int]]:
    """Return the bytes that each memory was read and written."""
    found: dict[str, tuple[int, int]] = {}
    for event in events:
        for memory, (read, written) in event.traffic.items():
            before = found.get(memory, (0, 0))
            found[memory] = before[0] + read, before[1] + written
    return found


def by_op(events: Iterable[Event]) -> dict[Op, list[Event]]:
    """Return the events of each op."""
    groups: dict[Op, list[Event]] = {}
    for event in events:
        groups.setdefault((event.region, event.label), []).append(event)
    return groups


def active_of(events: Iterable[Event]) -> int:
    """Return how long at least one of some events of a region lasted."""
    total, call, reached = 0, -1, 0
    for event in sorted(events, key=lambda item: (item.call, item.begin)):
        if event.call != call:
            call, reached = event.call, event.begin
        total += max(event.end, reached) - max(event.begin, reached)
        reached = max(event.end, reached)
    return total


def attributed_to(events: Iterable[Event]) -> Mapping[Op, int]:
    """Divide the time of each run among its ops: each instant is that of exactly one op.

    An instant in which several ops have engines is that of the op which is done first in this run:
    what engines do for later ops meanwhile is hidden behind it. An instant in which no op has an
    engine is that of the op which begins next: all wait for it.
    """
    runs: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        runs.setdefault((event.region, event.call), []).append(event)
    found: Counter[Op] = Counter()
    for (region, _), mine in runs.items():
        for label, time in _divided(mine).items():
            found[region, label] += time
    return found


def _divided(events: Sequence[Event]) -> Counter[str | None]:
    """Divide the time of one run, from 0 to the end of the last event."""
    done: dict[str | None, tuple[int, int]] = {}
    for event in events:
        end, order = done.get(event.label, (0, len(done)))
        done[event.label] = max(end, event.end), order
    coming = sorted(events, key=lambda item: (item.begin, done[item.label]))
    instants = sorted({0, *(time for item in events for time in (item.begin, item.end))})
    found: Counter[str | None] = Counter()
    at_work: list[tuple[tuple[int, int], int, int]] = []
    begun = 0
    for begin, end in pairwise(instants):
        while begun < len(coming) and coming[begun].begin <= begin:
            item = coming[begun]
            heapq.heappush(at_work, (done[item.label], item.end, begun))
            begun += 1
        # Those that have ended are in the way only at the top.
        while at_work and at_work[0][1] <= begin:
            heapq.heappop(at_work)
        owner = coming[at_work[0][2] if at_work else begun]
        found[owner.label] += end - begin
    return found


def waits_of(events: Iterable[Event]) -> Mapping[Op, dict[str, int]]:
    """Return how long engines stood still during an op because they waited for another engine.

    An event with `waits_for` adds the time before it in which its engine was free, and the op had
    already begun in this run.
    """
    free: dict[tuple[str, int, str], int] = {}
    begun: dict[tuple[str, int, str | None], int] = {}
    found: dict[Op, dict[str, int]] = {}
    for event in sorted(events, key=lambda item: item.begin):
        engine = event.region, event.call, event.engine
        since = begun.setdefault((event.region, event.call, event.label), event.begin)
        still = event.begin - max(since, free.get(engine, 0))
        free[engine] = max(event.end, free.get(engine, 0))
        if event.waits_for is not None and still > 0:
            mine = found.setdefault((event.region, event.label), {})
            mine[event.waits_for] = mine.get(event.waits_for, 0) + still
    return found
