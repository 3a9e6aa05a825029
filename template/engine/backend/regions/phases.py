# SPDX-License-Identifier: Apache-2.0
"""Parts a dataflow block into phases, of which each is on the NPU or on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import relax

from .composites import Bindings, Composite


@dataclass(eq=False)
class Unit:
    """The unit of placement: a composite on the NPU, or one binding on the host."""

    members: list[int]
    composite: Composite | None = None
    phase: int = 0
    sources: list[Unit] = field(default_factory=list)
    users: list[Unit] = field(default_factory=list)
    region: Unit | None = None

    @property
    def on_npu(self) -> bool:
        """Whether it is a composite."""
        return self.composite is not None

    def root(self) -> Unit:
        """Return the representative of the unit's region (union-find)."""
        unit = self
        while unit.region is not None:
            if unit.region.region is not None:
                unit.region = unit.region.region
            unit = unit.region
        return unit


def assign_phases(units: list[Unit], bindings: Bindings, merge: bool) -> None:
    """Assign a phase to each unit; connected NPU units of one phase become one region.

    Without `merge`, each is a region of its own.

    A host unit runs in a later phase than the NPU units that it reads, and vice versa, so that two
    regions never wait for each other. Linear in the size of the graph.
    """
    first = latest = 0
    for unit in units:
        unit.phase = first
        for source in unit.sources:
            unit.phase = max(unit.phase, source.phase + (source.on_npu != unit.on_npu))
        latest = max(latest, unit.phase)
        if isinstance(bindings[unit.members[0]], relax.MatchCast):
            # It defines symbols for the shapes that follow.
            unit.phase = latest + 1
            first = latest = unit.phase + 1
    for unit in reversed(units):
        # Delay a unit to the phase of its earliest users.
        if unit.on_npu and unit.users:
            last = min(user.phase - (not user.on_npu) for user in unit.users)
            if any(user.on_npu and user.phase == last for user in unit.users):
                unit.phase = max(unit.phase, last)
    for unit in units if merge else []:
        for source in unit.sources:
            if unit.on_npu and source.on_npu and unit.phase == source.phase:
                root, before = unit.root(), source.root()
                if root is not before:
                    root.region = before
