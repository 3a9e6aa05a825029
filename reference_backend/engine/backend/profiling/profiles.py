# SPDX-License-Identifier: Apache-2.0
"""The contents of a profile, and its output formats."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TextIO, TypeVar

from ..shared.aliases import JsonFields, JsonObject
from ..shared.backend import BACKEND
from ..shared.entry_points import entry_point
from ..shared.plain_data import plain
from . import profile_text
from .clock import Clock, clocks_of, common_clock, incomparable
from .origin_names import named, split_label
from .parts import (
    Allocation,
    Busy,
    Event,
    HostCall,
    KernelProfile,
    Memory,
    OpProfile,
    Peaks,
    RegionProfile,
    Run,
    Traffic,
)
from .sums import (
    active_of,
    attributed_to,
    busy_of,
    by_op,
    is_program,
    kernels_of,
    peak_of,
    peak_share,
    scalar_share,
    scalar_time,
    share_of_peak,
    traffic_of,
    waits_of,
)
from .trace import trace_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ..report.report import Report
    from .record import Recording

T = TypeVar("T", bound="DataclassInstance")

VERSION = 1
"""The version of the JSON; fields may be added without a new one."""


@dataclass(frozen=True)
class Profile:
    """Where the time of a model goes.

    Parameters
    ----------
    unit
        The unit of the device's times; none if the driver has no events, "ticks" for those of
        drivers with different units.
    ticks_per_us
        How many of them are a microsecond; 0 if it is not known, or not the same for all drivers.
    device
        The index of the NPU; none if it is not known.
    calls
        The calls of the model.
    regions, events, ops, host
        What happened.
    allocations
        What the first run of each region kept in memories; none if the driver does not tell.
    kernels
        The kernels of regions that are programs of instructions.
    """

    unit: str | None
    ticks_per_us: float
    device: int | None
    calls: tuple[Run, ...]
    regions: tuple[RegionProfile, ...]
    events: tuple[Event, ...]
    ops: tuple[OpProfile, ...]
    host: tuple[HostCall, ...]
    allocations: tuple[Allocation, ...] = ()
    kernels: tuple[KernelProfile, ...] = ()

    @classmethod
    def from_recording(
        cls, recording: Recording, report: Report | None = None, origin_us: float | None = None
    ) -> Profile:
        """Make a profile of a recording.

        Parameters
        ----------
        recording
            The recording.
        report
            Where each op runs, and the names of the author.
        origin_us
            When time begins; left out, at the first call of the model.

        Returns
        -------
        profile
            The profile.
        """
        calls = recording["calls"]
        origin = (calls[0][0] if calls else 0.0) if origin_us is None else origin_us
        clock = Clock(recording, origin)

        def run(begin: float, end: float, span: int = 0) -> Run:
            return Run(clock.at(begin), clock.at(end), span)

        regions, events, allocations = [], [], []
        for region in sorted(recording["regions"], key=_first_begin):
            symbol, mine, runs = region["symbol"], [], []
            for index, call in enumerate(region["profile"]["calls"]):
                run_events = [
                    _event({"region": symbol, "call": index, **e}) for e in call["events"]
                ]
                span = max((event.end for event in run_events), default=0)
                runs.append(run(call["begin_us"], call["end_us"], span))
                mine += run_events
            events += mine
            for call in region["profile"]["calls"][:1]:
                allocations += [
                    _read(Allocation, {"region": symbol, **allocation})
                    for allocation in call.get("allocations", ())
                ]
            span = sum(each.span for each in runs)
            busy = busy_of(mine)
            operations = sum(event.operations for event in mine)
            peaks = _peaks(region["profile"].get("peaks"))
            regions.append(
                RegionProfile(
                    symbol=symbol,
                    calls=len(runs),
                    wall_us=_length(runs),
                    span=span,
                    runs=tuple(runs),
                    busy=busy,
                    utilisation={name: round(n / span, 6) for name, n in busy.items() if span},
                    traffic=traffic_of(mine),
                    counters=region["counters"],
                    operations=operations,
                    peaks=peaks,
                    driver=region.get("driver", ""),
                    unit=region["profile"]["unit"] or None,
                    ticks_per_us=float(region["profile"]["ticks_per_us"]),
                    of_peak=share_of_peak(operations, span, peaks.operations if peaks else 0.0),
                )
            )
        unit, ticks = common_clock(regions)
        host = tuple(
            HostCall(name, clock.at(begin), clock.at(end)) for name, begin, end in recording["host"]
        )
        profile = cls(
            unit,
            float(ticks),
            recording.get("device"),
            tuple(run(*call) for call in calls),
            tuple(regions),
            tuple(events),
            _ops(events, incomparable(regions), {it.symbol: peak_of(it) for it in regions}),
            host,
            tuple(allocations),
            tuple(kernels_of(events, {it.symbol: peak_of(it) for it in regions if is_program(it)})),
        )
        return profile if report is None else named(profile, report)

    @property
    def busy(self) -> Busy:
        """How long each engine worked, in all regions."""
        return busy_of(self.events)

    @property
    def traffic(self) -> Traffic:
        """The bytes read from and written to each memory, in all regions."""
        return traffic_of(self.events)

    @property
    def memory(self) -> dict[str, int]:
        """The highest address in use of each memory, in bytes."""
        most: dict[str, int] = {}
        for allocation in self.allocations:
            most[allocation.memory] = max(
                most.get(allocation.memory, 0), allocation.offset + allocation.bytes
            )
        return most

    @property
    def totals(self) -> JsonObject:
        """The sums over all regions and calls."""
        return {
            "calls": len(self.calls),
            "events": len(self.events),
            "wall_us": _length(self.calls),
            "npu_us": round(sum(region.wall_us for region in self.regions), 3),
            "host_us": _length(self.host),
            "span": sum(region.span for region in self.regions),
            "busy": self.busy,
            "traffic": self.traffic,
            "operations": sum(region.operations for region in self.regions),
            "of_peak": peak_share(self.regions),
            "scalar": scalar_time(self.regions),
            "scalar_share": scalar_share(self.regions),
            "memory": self.memory,
        }

    @property
    def summary(self) -> str:
        """The profile in one line."""
        totals = self.totals
        text = f"{totals['wall_us']:,.0f} us on the host in {_count(len(self.calls), 'call')}"
        text += f", {totals['npu_us']:,.0f} us of it in {_count(len(self.regions), 'region')}"
        clocks = clocks_of(self.regions)
        if len(clocks) > 1:
            for driver, clock in clocks.items():
                span = sum(region.span for region in self.regions if region.driver == driver)
                text += f", {_time(span, *clock)} on '{driver}'"
        elif self.unit is not None:
            text += f", {_time(totals['span'], self.unit, self.ticks_per_us, ' on the NPU')}"
            if totals["of_peak"] is not None:
                text += f", {100 * totals['of_peak']:.1f} % of its peak"
        elif self.regions:
            text += "; the driver does not tell what its engines do"
        if totals["scalar_share"] is not None:
            text += (
                f"; scalar code: {100 * totals['scalar_share']:.1f} % of {self.unit or 'its time'}"
            )
        return text

    def to_dict(self) -> JsonObject:
        """Return the profile as plain data."""
        return {
            "version": VERSION,
            "backend": BACKEND,
            "summary": self.summary,
            "device": self.device,
            "unit": self.unit,
            "ticks_per_us": self.ticks_per_us,
            "calls": [{"begin_us": call.begin_us, "end_us": call.end_us} for call in self.calls],
            "regions": plain(self.regions),
            "events": plain(self.events),
            "ops": plain(self.ops),
            "kernels": plain(self.kernels),
            "host": plain(self.host),
            "allocations": plain(self.allocations),
            "totals": plain(self.totals),
        }

    def to_json(self) -> str:
        """Return the profile as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text
            The JSON.

        Returns
        -------
        profile
            The profile.

        Raises
        ------
        ValueError
            It is not a profile, or one of a newer version.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ValueError(f"The profile is not JSON: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: object) -> Profile:
        """Read what `to_dict` returned.

        Parameters
        ----------
        data
            The plain data.

        Returns
        -------
        profile
            The profile.

        Raises
        ------
        ValueError
            It is not a profile, or one of a newer version.
        """
        version = data.get("version") if isinstance(data, dict) else None
        if not isinstance(data, dict) or version != VERSION or "events" not in data:
            raise ValueError(
                f"The profile has the version {version!r}; supported: {VERSION}, as `to_json` of a "
                "profile writes it. Make it again with this release."
            )
        events = tuple(_event(event) for event in data["events"])
        ops = tuple(_read(OpProfile, op) for op in data["ops"])
        if not all("attributed" in op for op in data["ops"]):  # An earlier release wrote it.
            ops = _with_times(ops, events, {})
        return cls(
            data["unit"],
            data["ticks_per_us"],
            data["device"],
            tuple(_read(Run, call) for call in data["calls"]),
            tuple(
                _read(
                    RegionProfile,
                    {
                        **region,
                        "runs": tuple(_read(Run, run) for run in region["runs"]),
                        "peaks": _peaks(region.get("peaks")),
                    },
                )
                for region in data["regions"]
            ),
            events,
            ops,
            tuple(_read(HostCall, call) for call in data["host"]),
            tuple(_read(Allocation, allocation) for allocation in data.get("allocations", ())),
            tuple(_read(KernelProfile, kernel) for kernel in data.get("kernels", ())),
        )

    def to_trace(self) -> str:
        """Return a trace for https://ui.perfetto.dev, as JSON of Chrome's trace events."""
        return trace_of([self])

    def to_svg(self, picture: str = "timeline") -> str:
        """Draw a picture.

        Parameters
        ----------
        picture
            "timeline": what each engine did, and when; "top_ops": the ops that need the most time;
            "roofline": how fast each op is, against what the device could do; "memory": what lies
            in the memories, and when.

        Returns
        -------
        svg
            SVG text that stands alone.

        Raises
        ------
        ValueError
            There is no such picture.
        """
        pictures = entry_point("PICTURES")
        if picture not in pictures:
            supported = ", ".join(pictures)
            raise ValueError(
                f"There is no picture '{picture}' of a profile; supported: {supported}."
            )
        return str(pictures[picture](self))

    def __str__(self) -> str:
        """Return tables of the regions, the ops and the host's functions, and the summary."""
        return profile_text.as_text(self)

    def show(self, file: TextIO | None = None, most: int | None = None) -> None:
        """Print the tables: with colours on a terminal, else as plain text.

        Parameters
        ----------
        file
            Where to print; standard output if it is left out.
        most
            How many ops are shown, the longest first; all if it is left out.
        """
        profile_text.show(self, file, most)


# ---- Sums ---------------------------------------------------------------------------------------


def _length(calls: Iterable[Run | HostCall]) -> float:
    return round(sum(call.end_us - call.begin_us for call in calls), 3)


def _ops(
    events: Sequence[Event], drivers: Mapping[str, str], peaks: Mapping[str, float]
) -> tuple[OpProfile, ...]:
    """Sum the events of each label, in the order in which they begin.

    `drivers`: by region, where shares are those of a driver's time.
    `peaks`: by region, the operations of its device.
    """
    totals: Counter[str] = Counter()
    for event in events:
        totals[drivers.get(event.region, "")] += event.end - event.begin
    profiles = []
    for (region, label), op_events in by_op(events).items():
        op, variable = split_label(label)
        span = sum(event.end - event.begin for event in op_events)
        total = totals[drivers.get(region, "")]
        operations, active = sum(event.operations for event in op_events), active_of(op_events)
        profiles.append(
            OpProfile(
                region=region,
                label=label,
                op=op,
                variable=variable,
                origin=None,
                composite=None,
                span=span,
                busy=busy_of(op_events),
                traffic=traffic_of(op_events),
                share=round(span / total, 6) if total else 0.0,
                operations=operations,
                active=active,
                of_peak=share_of_peak(operations, active, peaks[region]),
            )
        )
    return _with_times(profiles, events, drivers)


def _with_times(
    ops: Iterable[OpProfile], events: Sequence[Event], drivers: Mapping[str, str]
) -> tuple[OpProfile, ...]:
    """Give ops their shares of the whole time, and the engines that they waited for."""
    times, waits = attributed_to(events), waits_of(events)
    totals: Counter[str] = Counter()
    for (region, _), time in times.items():
        totals[drivers.get(region, "")] += time
    timed = []
    for op in ops:
        total = totals[drivers.get(op.region, "")]
        time = times.get((op.region, op.label), 0)
        share = round(time / total, 6) if total else 0.0
        op_waits = waits.get((op.region, op.label), {})
        timed.append(replace(op, attributed=time, attributed_share=share, waits=op_waits))
    return tuple(timed)


# ---- Plain data ---------------------------------------------------------------------------------


def _pairs(traffic: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, int]]:
    return {name: (pair[0], pair[1]) for name, pair in traffic.items()}


def _time(span: int, unit: str, ticks_per_us: float, where: str = "") -> str:
    text = f"{span:,} {unit}{where}"
    return f"{text} ({span / ticks_per_us:,.1f} us)" if ticks_per_us else text


def _first_begin(region: JsonFields) -> float:
    """Return when a region ran first; a library does not keep the order of its regions."""
    calls = region["profile"]["calls"]
    return float(calls[0]["begin_us"]) if calls else float("inf")


def _event(data: Mapping[str, object]) -> Event:
    return _read(Event, data)


def _peaks(data: JsonFields | None) -> Peaks | None:
    if not data:
        return None
    memories = {name: _read(Memory, memory) for name, memory in data["memories"].items()}
    return Peaks(float(data["operations"]), memories)


def _read(kind: type[T], data: JsonFields) -> T:
    """Read a dataclass; fields that are newer than this release are left out."""
    values = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    if "traffic" in values:
        values["traffic"] = _pairs(values["traffic"])
    return kind(**values)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
