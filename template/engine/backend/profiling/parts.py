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

    Parameters
    ----------
    region
        The symbol of the region.
    call
        Which of the region's runs.
    name
        What it did.
    label
        The op that it belongs to, as "op (variable)"; none if it belongs to none.
    engine
        The engine, with a part behind a "." where there are several.
    begin, end
        When it had the engine, since the beginning of the run.
    busy
        How much of this time it worked.
    waits_for
        The engine whose work it waited for; none if it did not.
    traffic
        The bytes that it moved.
    operations
        Arithmetic, a multiplication with its addition as two; 0 if the driver does not count it.
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

    Parameters
    ----------
    region
        The symbol of the region.
    memory
        The memory, such as "scratchpad".
    label
        The op that uses it first; none if it belongs to none.
    offset, bytes
        Where it lies, and its size.
    begin, end
        From when to when, since the beginning of the run.
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

    Parameters
    ----------
    bytes
        Its size; 0 if it is not known.
    bytes_per_unit
        The most bytes read and written per unit of time, taken together; 0 if it is not known.
    """

    bytes: int
    bytes_per_unit: float


@dataclass(frozen=True)
class Peaks:
    """The device's peak rates.

    Parameters
    ----------
    operations
        Per unit of time, for the element types of the region; 0 if it is not known.
    memories
        By name.
    """

    operations: float
    memories: Mapping[str, Memory]


@dataclass(frozen=True)
class Run:
    """One run of a region, or one call of the model.

    Parameters
    ----------
    begin_us, end_us
        The time on the host, from the beginning of the first call of the model.
    span
        The end of the last event of the run; 0 without events.
    """

    begin_us: float
    end_us: float
    span: int = 0


@dataclass(frozen=True)
class RegionProfile:
    """What a region did in all of its runs.

    Parameters
    ----------
    symbol
        Its name.
    calls
        How many runs.
    wall_us
        The time on the host, of all runs.
    span
        The time on the device, of all runs.
    runs
        The runs, in order.
    busy, utilisation
        How long each engine worked, and which part of `span` that is.
    traffic
        The bytes that were moved.
    counters
        What the driver's counters grew by; sizes and frequencies as they are.
    operations
        Arithmetic, as of events.
    peaks
        How fast it could be; none if the driver does not tell.
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

    Parameters
    ----------
    region
        The region.
    label, op, variable
        The driver's label, and its parts; none for what belongs to no op.
    origin
        The name that the author of the model gave it; none if it is not known.
    composite
        The label of the composite that it is in, and whose time this is; none if not known.
    span
        The sum over its events, from begin to end.
    busy, traffic
        As for a region.
    share
        The part of the sum of all spans.
    operations
        Arithmetic, as of events.
    active
        How long at least one engine had work of it.
    attributed
        Its part of the time of its region: each instant is that of one op, so that the parts add
        up to the whole. See `sums.attributed_to`.
    attributed_share
        The part of the time of all regions that this is.
    waits
        How long engines stood still since it began, by the engine that they waited for.
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

    Parameters
    ----------
    name
        The function.
    begin_us, end_us
        When, from the beginning of the first call of the model.
    origin
        The name that the author of the model gave the op that it computes; none if not known.
    """

    name: str
    begin_us: float
    end_us: float
    origin: str | None = None

    @property
    def title(self) -> str:
        """The name by which a user knows it."""
        return self.origin or self.name
