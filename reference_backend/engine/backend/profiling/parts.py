# SPDX-License-Identifier: Apache-2.0
"""The data classes of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Busy = Mapping[str, int]
"""How long each engine worked."""
Traffic = Mapping[str, tuple[int, int]]
"""The bytes read from and written to each memory."""


@dataclass(frozen=True)
class Event:
    """One piece of work of an engine.

    `region`: the symbol of the region.
    `call`: which of the region's runs.
    `name`: the work.
    `label`: its op, as "op (variable)"; None if it belongs to no op.
    `engine`: the engine, with a part behind a "." where there are several.
    `begin`, `end`: when it held the engine, since the beginning of the run.
    `busy`: how much of this time the engine worked.
    `waits_for`: the engine whose work it waited for, or None.
    `traffic`: the bytes moved.
    `operations`: arithmetic, a multiply-add as two; 0 if the driver does not count.
    """

    region: str
    call: int
    name: str
    label: str | None
    engine: str
    begin: int
    end: int
    busy: int
    waits_for: str | None
    traffic: Traffic
    operations: int = 0


@dataclass(frozen=True)
class Allocation:
    """Bytes that a region reserves in a memory.

    `region`: the symbol of the region.
    `memory`: the memory, such as "scratchpad".
    `label`: the op that uses them first; None if no op does.
    `offset`, `bytes`: their address and number.
    `begin`, `end`: from when to when, since the beginning of the run.
    """

    region: str
    memory: str
    label: str | None
    offset: int
    bytes: int
    begin: int
    end: int


@dataclass(frozen=True)
class Memory:
    """A memory of the device.

    `bytes`: its size; 0 if it is not known.
    `bytes_per_unit`: the most bytes read and written per unit of time; 0 if it is not known.
    """

    bytes: int
    bytes_per_unit: float


@dataclass(frozen=True)
class Peaks:
    """The device's peak rates.

    `operations`: per unit of time, for the element types of the region; 0 if it is not known.
    `memories`: by name.
    """

    operations: float
    memories: Mapping[str, Memory]


@dataclass(frozen=True)
class Run:
    """One run of a region, or one call of the model.

    `begin_us`, `end_us`: the time on the host, from the beginning of the first call of the model.
    `span`: the end of the last event of the run; 0 without events.
    """

    begin_us: float
    end_us: float
    span: int = 0


@dataclass(frozen=True)
class RegionProfile:
    """A region in all of its runs.

    `symbol`: its name.
    `calls`: how many runs.
    `wall_us`: the time on the host, of all runs.
    `span`: the time on the device, of all runs.
    `runs`: the runs, in order.
    `busy`, `utilisation`: how long each engine worked, and its share of `span`.
    `traffic`: the bytes moved.
    `counters`: the growth of the driver's counters; sizes and frequencies as they are.
    `operations`: arithmetic, as of events.
    `peaks`: the device's peak rates; None if the driver does not tell.
    `driver`: the driver that it is for; "" if the recording does not tell.
    `unit`, `ticks_per_us`: its clock, as in `Profile`.
    `of_peak`: `operations` as a share of those that the device could do in `span`; None if it is
    not known.
    """

    symbol: str
    calls: int
    wall_us: float
    span: int
    runs: tuple[Run, ...]
    busy: Busy
    utilisation: Mapping[str, float]
    traffic: Traffic
    counters: Mapping[str, int]
    operations: int = 0
    peaks: Peaks | None = None
    driver: str = ""
    unit: str | None = None
    ticks_per_us: float = 0.0
    of_peak: float | None = None


@dataclass(frozen=True)
class OpProfile:
    """An op in all runs of its region.

    `region`: the region.
    `label`, `op`, `variable`: the driver's label, and its parts; None for work of no op.
    `origin`: the author's name of the op; None if it is not known.
    `composite`: the label of the composite that it is in, and whose time this is, or None.
    `span`: the sum over its events, from begin to end.
    `busy`, `traffic`: as for a region.
    `share`: the part of the sum of all spans.
    `operations`: arithmetic, as of events.
    `active`: how long at least one engine worked for it.
    `attributed`: its part of the region's time; the parts add up. See `sums.attributed_to`.
    `attributed_share`: the same as a share of the time of all regions; if drivers have different
    clocks, of those of its driver. So is `share`.
    `waits`: how long engines stood still since it began, by the engine that they waited for.
    `of_peak`: `operations` as a share of those that the device could do while `active`; None if it
    does none, or it is not known.
    """

    region: str
    label: str | None
    op: str | None
    variable: str | None
    origin: str | None
    composite: str | None
    span: int
    busy: Busy
    traffic: Traffic
    share: float
    operations: int = 0
    active: int = 0
    attributed: int = 0
    attributed_share: float = 0.0
    waits: Mapping[str, int] = field(default_factory=dict)
    of_peak: float | None = None

    @property
    def title(self) -> str:
        """The user's name of the op."""
        return self.origin or self.variable or self.label or "(no op)"


@dataclass(frozen=True)
class KernelProfile:
    """A kernel of a program of instructions, in all runs of its region.

    `name`: its name; `region` and `label` are those of its op. All else is as for an op.
    """

    region: str
    label: str | None
    name: str
    busy: Busy
    operations: int
    active: int
    attributed: int
    attributed_share: float
    of_peak: float | None = None


@dataclass(frozen=True)
class HostCall:
    """A call of the host.

    `name`: the function.
    `begin_us`, `end_us`: when, from the beginning of the first call of the model.
    `origin`: the author's name of the op that it computes; None if it is not known.
    """

    name: str
    begin_us: float
    end_us: float
    origin: str | None = None

    @property
    def title(self) -> str:
        """The user's name of the call."""
        return self.origin or self.name
