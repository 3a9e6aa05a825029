# SPDX-License-Identifier: Apache-2.0
"""A profile as a trace: JSON of Chrome's trace events, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .parts import Event
from .result import Profile

_HOST = 1
"""The process of the host's track; those of the NPUs follow."""


def trace_of(profiles: Sequence[Profile]) -> str:
    """Return one trace of some profiles: tracks for the host, and for each engine and NPU.

    Parameters
    ----------
    profiles
        Those of several NPUs have one clock, see `DataParallel.profile`.

    Returns
    -------
    trace
        JSON. Times are us; where the driver does not say how long its unit is, each unit is drawn
        as a us.
    """
    events = [
        event
        for index, profile in enumerate(profiles)
        for event in _events(profile, _HOST + 2 * index)
    ]
    # Viewers want them in order, with the long ones before what is inside of them.
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0), -event.get("dur", 0)))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def _events(profile: Profile, host: int) -> Iterator[dict[str, Any]]:
    npu = host + 1
    number = "" if profile.device is None else f" {profile.device}"
    yield _name("process_name", host, 0, f"host of NPU{number}")
    yield _name("thread_name", host, 1, "calls")
    yield _name("thread_name", host, 2, "functions")
    for index, call in enumerate(profile.calls):
        yield _slice(host, 1, f"call {index}", call.begin_us, call.end_us, "call")
    for item in profile.host:
        yield _slice(host, 2, item.name, item.begin_us, item.end_us, "host")
    if not profile.regions:
        return
    yield _name("process_name", npu, 0, f"NPU{number}")
    track = 0
    for region in profile.regions:
        track += 1
        yield _name("thread_name", npu, track, f"{region.symbol}: on the host")
        for run in region.runs:
            args = {"span": run.span, "unit": profile.unit}
            yield _slice(npu, track, region.symbol, run.begin_us, run.end_us, "region", args)
        mine = [event for event in profile.events if event.region == region.symbol]
        # By the first event, which is the way of the data: in, compute, out.
        tracks = {engine: track + 1 + i for i, engine in enumerate(_engines(mine))}
        for engine, number_of_track in tracks.items():
            yield _name("thread_name", npu, number_of_track, f"{region.symbol}: {engine}")
        track += len(tracks)
        starts = _starts(profile, region.symbol)
        for event in mine:
            begin = starts[event.call] + _us(profile, event.begin)
            end = starts[event.call] + _us(profile, event.end)
            title = event.name if event.label is None else f"{event.name}: {event.label}"
            details: dict[str, Any] = {
                "label": event.label,
                "busy": event.busy,
                "waits_for": event.waits_for,
                "traffic": {name: list(pair) for name, pair in event.traffic.items()},
                "begin": event.begin,
                "end": event.end,
                "unit": profile.unit,
            }
            yield _slice(npu, tracks[event.engine], title, begin, end, "npu", details)


def _engines(events: Sequence[Event]) -> list[str]:
    return list(dict.fromkeys(event.engine for event in events))


def _us(profile: Profile, ticks: int) -> float:
    return ticks / (profile.ticks_per_us or 1.0)


def _starts(profile: Profile, symbol: str) -> list[float]:
    """Return where each run of a region begins on the tracks of its engines.

    The device's clock is not the host's: an emulated run can take longer than the host's call, and
    must not overlap with the next one.
    """
    region = next(item for item in profile.regions if item.symbol == symbol)
    starts: list[float] = []
    free = 0.0
    for run in region.runs:
        starts.append(max(run.begin_us, free))
        free = starts[-1] + _us(profile, run.span)
    return starts


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _slice(
    process: int,
    track: int,
    name: str,
    begin: float,
    end: float,
    category: str,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
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
