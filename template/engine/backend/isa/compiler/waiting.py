# SPDX-License-Identifier: Apache-2.0
"""Inserts the instruction that waits for engines, where a machine does not wait by itself.

Engines execute their own instructions in order. An instruction that touches bytes which another
engine may still read or write comes after one that waits for that engine. Which bytes those are is
known from the boxes of the table, over all iterations of the loops around an instruction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..kinds import Number
from ..machine import Instruction, Machine
from ..oracle import extent_of, value_of
from .code import (
    Computed,
    Guard,
    Item,
    Mark,
    Part,
    Repeat,
    Step,
    Target,
    Where,
    flat,
    step_of,
    steps_of,
)
from .loops import Unsupported, Var


@dataclass(frozen=True)
class Access:
    """Bytes of a segment, from the first to the one behind the last."""

    segment: int
    low: float
    high: float
    is_write: bool

    def conflicts(self, other: Access) -> bool:
        """Whether one of two must come after the other."""
        return (
            self.segment == other.segment
            and (self.is_write or other.is_write)
            and self.low < other.high
            and other.low < self.high
        )


_MOST_CHOICES = 4096
"""In how many ways the fields of an instruction that waits are tried."""

Pending = Mapping[int, frozenset[Access]]
"""By engine: what it may still be at."""


def with_waits(items: Sequence[Item], machine: Machine) -> list[Item]:
    """Return the instructions of a kernel, which wait for others where the machine does not.

    The first one waits for all that is before the kernel.

    Raises
    ------
    Unsupported
        The machine has no instruction that waits for engines of choice.
    """
    if machine.sync != "explicit":
        return list(items)
    waits = _Waits(machine)
    every = range(1, len(machine.engines))
    return [waits.wait(every), *waits.of(items, {})[0]]


class _Waits:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._numbers = {engine.name: i for i, engine in enumerate(machine.engines)}
        self._counts: dict[Var, int] = {}
        self._choices = list(_waiting(machine))

    def wait(self, engines: Iterable[int]) -> Step:
        """Return the instruction that waits for engines, and for as few others as there is one."""
        wanted = sum(1 << engine for engine in engines)
        able = [choice for choice in self._choices if choice[0] & wanted == wanted]
        if not able:
            names = [it.name for i, it in enumerate(self.machine.engines) if wanted >> i & 1]
            raise Unsupported(
                f"the machine has sync='explicit', but no instruction waits for {', '.join(names)}"
            )
        _, instruction, fields = min(able, key=lambda choice: choice[0].bit_count())
        return step_of(self.machine, instruction, fields)

    def of(self, items: Sequence[Item], pending: Pending) -> tuple[list[Item], Pending]:
        """Return items with waits in between, and what may not be done behind them."""
        made: list[Item] = []
        for is_control, group in itertools.groupby(items, self._is_control):
            run = list(group)
            # Branches lead anywhere in what the first engine executes, which is done at once.
            _require_own_branches(run)
            for part in [run] if is_control else [[item] for item in run]:
                if not is_control and isinstance(part[0], Part):
                    inner, pending = self.of(part[0].items, pending)
                    made.append(Part(part[0].source, inner))
                    continue
                touched = self._touched(part)
                pending = self._before(part, touched, pending, made)
                item = part[0]
                if not is_control and isinstance(item, Repeat) and len(touched) > 1:
                    part[0], pending = self._repeat(item, pending)
                else:
                    left = {engine: found for engine, found in touched.items() if engine}
                    pending = _union(pending, left)
                made += part
        return made, pending

    def _repeat(self, item: Repeat, pending: Pending) -> tuple[Repeat, Pending]:
        """Return a loop; what an iteration leaves may still be there in the next one."""
        self._counts[item.var] = item.count
        while True:
            made, after = self.of(item.items, pending)
            more = _union(pending, after)
            if item.count == 1 or more == pending:
                return Repeat(item.var, item.count, made), after
            pending = more

    def _before(
        self, items: Sequence[Item], touched: Pending, pending: Pending, made: list[Item]
    ) -> Pending:
        """Wait for what items conflict with before them; return what is left then.

        That is in front of a loop, not in it, if what it waits for is in front of it.
        """
        engines = [
            engine
            for engine, before in pending.items()
            if any(
                one.conflicts(access)
                for other, accesses in touched.items()
                if other != engine
                for access in accesses
                for one in before
            )
        ]
        if engines:
            made.append(self.wait(engines))
        first = items[0]
        done = {*engines, *(self._waits_of(first) if isinstance(first, Step) else ())}
        return {engine: before for engine, before in pending.items() if engine not in done}

    # ---- What items touch ----

    def _instruction(self, step: Step) -> Instruction:
        return self.machine.instructions[step.instruction]

    def _engine(self, step: Step) -> int:
        return self._numbers[self._instruction(step).engine]

    def _is_control(self, item: Item) -> bool:
        """Whether only the first engine executes an item."""
        return not any(self._engine(step) for step in steps_of([item]))

    def _waits_of(self, step: Step) -> list[int]:
        """Return the engines that an instruction waits for itself."""
        known = self._instruction(step)
        if not known.waits:
            return []
        values: Mapping[str, Any] = step.fields
        mask = value_of(known.waits, known, values)
        return [engine for engine in self._numbers.values() if mask >> engine & 1]

    def _touched(self, items: Sequence[Item]) -> Pending:
        """Return by engine what items touch, in all iterations of the loops around them."""
        found: Pending = {}
        for item in items:
            if isinstance(item, Step):
                accesses = self._accesses(item)
                if accesses:
                    found = _union(found, {self._engine(item): accesses})
            elif isinstance(item, Repeat | Guard | Part):
                if isinstance(item, Repeat):
                    self._counts[item.var] = item.count
                found = _union(found, self._touched(item.items))
        return found

    def _accesses(self, step: Step) -> frozenset[Access]:
        known = self._instruction(step)
        values: Mapping[str, Any] = step.fields
        found = set()
        for is_write, boxes in ((False, known.reads), (True, known.writes)):
            for box in boxes:
                extent = extent_of(box, known, values, 0)
                place = step.fields[box.address]
                if extent is None:
                    continue
                if isinstance(place, Where):
                    low, high = place.index.range(self._counts)
                    begin = place.offset - place.index.constant
                    low, high = begin + low + extent[0], begin + high + extent[1]
                    found.add(Access(place.key.segment, low, high, is_write))
                else:
                    assert isinstance(place, Computed)
                    found.add(Access(place.segment, -math.inf, math.inf, is_write))
        return frozenset(found)


def _waiting(machine: Machine) -> Iterator[tuple[int, str, dict[str, int]]]:
    """Iterate over instructions that only wait, by their fields; the engines are bits."""
    everything = (1 << len(machine.engines)) - 1
    for name, known in machine.instructions.items():
        kinds = [kind for kind in known.fields.values() if isinstance(kind, Number)]
        if name == "halt" or not known.waits or known.boxes or len(kinds) < len(known.fields):
            continue
        ranges = (
            range(max(0, kind.range[0]), min(kind.range[1], everything) + 1) for kind in kinds
        )
        for values in itertools.islice(itertools.product(*ranges), _MOST_CHOICES):
            fields = dict(zip(known.fields, values, strict=True))
            yield value_of(known.waits, known, fields) & everything, name, fields


def _union(one: Pending, other: Pending) -> Pending:
    none: frozenset[Access] = frozenset()
    return {
        engine: one.get(engine, none) | other.get(engine, none) for engine in sorted({*one, *other})
    }


def _require_own_branches(items: Sequence[Item]) -> None:
    """Check that no branch leads to or over instructions that are not in these items."""
    marks = {item for item in flat(items) if isinstance(item, Mark)}
    for step in steps_of(items):
        for operand in step.fields.values():
            assert not isinstance(operand, Target) or operand.mark in marks
