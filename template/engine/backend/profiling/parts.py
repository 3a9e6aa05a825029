# SPDX-License-Identifier: Apache-2.0
"""What a profile is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Busy = Mapping[str, int]
"""How long each engine worked."""
Traffic = Mapping[str, tuple[int, int]]
"""The bytes that each memory was read and written."""


@dataclass(frozen=True)
class Event:
    """What one engine did in one go.

    `region`: the symbol of the region.
    `call`: which of the region's runs.
    `name`: what it did.
    `label`: the op that it belongs to, as "op (variable)"; none if it belongs to none.
    `engine`: the engine, with a part behind a "." where there are several.
    `begin`, `end`: when it had the engine, since the beginning of the run.
    `busy`: how much of this time it worked.
    `waits_for`: the engine whose work it waited for; none if it did not.
    `traffic`: the bytes that it moved.
    `operations`: arithmetic, a multiplication with its addition as two; 0 if the driver does not
    count it.
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
    """Bytes that a region keeps for something.

    `region`: the symbol of the region.
    `memory`: the memory, such as "scratchpad".
    `label`: the op that uses it first; none if it belongs to none.
    `offset`, `bytes`: where it lies, and its size.
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
    `bytes_per_unit`: the most bytes read and written per unit of time, taken together; 0 if it is
    not known.
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
    """What a region did in all of its runs.

    `symbol`: its name.
    `calls`: how many runs.
    `wall_us`: the time on the host, of all runs.
    `span`: the time on the device, of all runs.
    `runs`: the runs, in order.
    `busy`, `utilisation`: how long each engine worked, and which part of `span` that is.
    `traffic`: the bytes that were moved.
    `counters`: what the driver's counters grew by; sizes and frequencies as they are.
    `operations`: arithmetic, as of events.
    `peaks`: how fast it could be; none if the driver does not tell.
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


@dataclass(frozen=True)
class OpProfile:
    """What an op needed, in all runs of its region.

    `region`: the region.
    `label`, `op`, `variable`: the driver's label, and its parts; none for what belongs to no op.
    `origin`: the name that the author of the model gave it; none if it is not known.
    `composite`: the label of the composite that it is in, and whose time this is; none if not
    known.
    `span`: the sum over its events, from begin to end.
    `busy`, `traffic`: as for a region.
    `share`: the part of the sum of all spans.
    `operations`: arithmetic, as of events.
    `active`: how long at least one engine had work of it.
    `attributed`: its part of the time of its region: each instant is that of one op, so that the
    parts add up to the whole. See `sums.attributed_to`.
    `attributed_share`: the part of the time of all regions that this is.
    `waits`: how long engines stood still since it began, by the engine that they waited for.
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

    @property
    def title(self) -> str:
        """The name by which a user knows it."""
        return self.origin or self.variable or self.label or "(no op)"


@dataclass(frozen=True)
class HostCall:
    """A call of the host.

    `name`: the function.
    `begin_us`, `end_us`: when, from the beginning of the first call of the model.
    `origin`: the name that the author of the model gave the op that it computes; none if not known.
    """

    name: str
    begin_us: float
    end_us: float
    origin: str | None = None

    @property
    def title(self) -> str:
        """The name by which a user knows it."""
        return self.origin or self.name
