# SPDX-License-Identifier: Apache-2.0
"""A profile as a trace: JSON of Chrome's trace events, which Perfetto opens."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..shared.aliases import JsonObject
from .parts import Run

if TYPE_CHECKING:
    from .profiles import Profile

_Run = tuple[str, int]
"""A run of a region: symbol and number of the run."""
_HOST = 1
"""The process of the host's tracks; processes of the NPUs follow."""


def trace_of(profiles: Sequence[Profile]) -> str:
    """Return one trace of profiles, as JSON: tracks for the host, and for each engine of each NPU.

    If a driver does not tell the length of its unit, a unit is drawn as a us.
    """
    events = [
        event
        for index, profile in enumerate(profiles)
        for event in _events(profile, _HOST + 2 * index)
    ]
    # Viewers want events in order, the long ones before those inside them.
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def _events(profile: Profile, host: int) -> Iterator[JsonObject]:
    npu = host + 1
    number = "" if profile.device is None else f" {profile.device}"
    yield _name("process_name", host, 0, f"host of NPU{number}")
    yield _name("thread_name", host, 1, "calls")
    yield _name("thread_name", host, 2, "functions")
    for index, run in enumerate(profile.calls):
        yield _slice(host, 1, f"call {index}", run.begin_us, run.end_us, "call")
    for function in profile.host:
        name, origin = function.name, function.origin
        title = name if origin is None else f"{name}: {origin}"
        details: JsonObject = {"function": name, "origin": origin}
        yield _slice(host, 2, title, function.begin_us, function.end_us, "host", details)
    runs = _runs(profile)
    ends: list[float] = []  # By track: regions may be in flight together.
    for (symbol, call), run in runs.items():
        free = (index for index, end in enumerate(ends) if end <= run.begin_us)
        lane = next(free, len(ends))
        if lane == len(ends):
            ends.append(0.0)
            title = f"regions {lane + 1}" if lane else "regions"
            yield _name("thread_name", host, 3 + lane, title)
        ends[lane] = run.end_us
        details = {"call": call, "span": run.span, "unit": profile.unit}
        yield _slice(host, 3 + lane, symbol, run.begin_us, run.end_us, "region", details)
    if not profile.events:
        return
    yield _name("process_name", npu, 0, f"NPU{number}")
    # In the order of first events, which is the way of the data: in, compute, out.
    engines = dict.fromkeys(event.engine for event in profile.events)
    tracks = {engine: index for index, engine in enumerate(engines, 1)}
    for engine, track in tracks.items():
        yield _name("thread_name", npu, track, engine)
    starts = _starts(profile, runs)
    origins = {(op.region, op.label): op.origin for op in profile.ops}
    for event in profile.events:
        start = starts[event.region, event.call]
        begin, end = (start + _us(profile, time) for time in (event.begin, event.end))
        origin = origins.get((event.region, event.label))
        op = origin or event.label
        details = {
            "region": event.region,
            "call": event.call,
            "label": event.label,
            "origin": origin,
            "busy": event.busy,
            "waits_for": event.waits_for,
            "traffic": {memory: list(pair) for memory, pair in event.traffic.items()},
            "begin": event.begin,
            "end": event.end,
            "unit": profile.unit,
        }
        title = event.name if op is None else f"{event.name}: {op}"
        yield _slice(npu, tracks[event.engine], title, begin, end, "npu", details)


def _us(profile: Profile, ticks: int) -> float:
    return ticks / (profile.ticks_per_us or 1.0)


def _runs(profile: Profile) -> dict[_Run, Run]:
    """Return the runs of all regions, as they began on the host."""
    runs = [
        ((region.symbol, call), run)
        for region in profile.regions
        for call, run in enumerate(region.runs)
    ]
    return dict(sorted(runs, key=lambda entry: entry[1].begin_us))


def _starts(profile: Profile, runs: Mapping[_Run, Run]) -> dict[_Run, float]:
    """Return where each run begins on the tracks of the engines.

    The device's clock is not the host's: an emulated run can take longer than the host's call. So
    a run begins after all runs that had ended on the host before, and when its engines are free.
    """
    first: dict[_Run, dict[str, int]] = {}
    last: dict[_Run, dict[str, int]] = {}
    for event in profile.events:
        key = event.region, event.call
        begins, ends = first.setdefault(key, {}), last.setdefault(key, {})
        begins[event.engine] = min(event.begin, begins.get(event.engine, event.begin))
        ends[event.engine] = max(event.end, ends.get(event.engine, 0))
    starts: dict[_Run, float] = {}
    free: dict[str, float] = {}
    in_flight: list[tuple[float, float]] = []
    done = 0.0
    for key, run in runs.items():
        while in_flight and in_flight[0][0] <= run.begin_us:
            done = max(done, heapq.heappop(in_flight)[1])
        waits = [
            free.get(engine, 0.0) - _us(profile, begin)
            for engine, begin in first.get(key, {}).items()
        ]
        starts[key] = max(run.begin_us, done, *waits)
        for engine, end in last.get(key, {}).items():
            free[engine] = starts[key] + _us(profile, end)
        heapq.heappush(in_flight, (run.end_us, starts[key] + _us(profile, run.span)))
    return starts


def _name(kind: str, process: int, track: int, name: str) -> JsonObject:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _slice(
    process: int,
    track: int,
    name: str,
    begin: float,
    end: float,
    category: str,
    args: JsonObject | None = None,
) -> JsonObject:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": track,
        "ts": round(begin, 6),
        "dur": round(max(end - begin, 0.0), 6),
        "args": args or {},
    }
