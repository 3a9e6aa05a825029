# SPDX-License-Identifier: Apache-2.0
"""Where a table says of an instruction what its oracle does not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .cases import Area, Case, Outcome, Random, memory_name, outcome
from .encoding import numbers_of
from .expressions import read
from .kinds import Address, Float
from .meaning import computed, meaning_of, named_in
from .operations import NUMPY_TYPES, REALS, Array
from .oracle import fields_of


def faults_of(case: Case, random: Random) -> list[str]:
    """Return what the table says of an instruction that its oracle does not do.

    Parameters
    ----------
    case
        The case.
    random
        Where chance comes from.

    Returns
    -------
    faults
        A sentence for each. Only bytes of the boxes that it writes may change, and all of them do
        not depend on what they were, unless they are read; nothing depends on bytes outside of the
        boxes that are read; the engine does not do more in a cycle than its peak; and what an
        instruction means, it computes.
    """
    name = case.line.instruction
    try:
        first = outcome(case)
        hidden = _with_other_bytes(case, random)
        second = outcome(hidden)
    except Exception as error:
        return [f"{name}: its oracle fails with {type(error).__name__}: {error}"]
    found = list(_faulty_cycles(case))
    if first.refused and case.instruction.boxes:
        boxed = {box.address for box in case.instruction.boxes}
        fields = case.instruction.fields.items()
        bare = [it for it, kind in fields if isinstance(kind, Address) and it not in boxed]
        why = f"no box is at {' and '.join(bare)}" if bare else "a box is too small"
        return [*found, f"{name}: its oracle is refused, so {why}: {first.refused}"]
    written = _mask(case, case.areas(case.instruction.writes))
    for number, before in case.memories.items():
        changed = _array(before) != _array(first.memories[number])
        if places := np.flatnonzero(changed & ~written[number]).tolist():
            where = memory_name(case.machine, number)
            found.append(f"{name} changes byte {places[0]} of {where}, in no box that it writes")
        differs = _array(first.memories[number]) != _array(second.memories[number])
        if places := np.flatnonzero(differs & written[number]).tolist():
            where = memory_name(case.machine, number)
            found.append(
                f"{name}: byte {places[0]} of {where} depends on bytes in no box that it reads, or "
                "is not written"
            )
    if first.registers != second.registers:
        found.append(f"{name}: a register depends on bytes in no box that it reads")
    return [*found, *_faulty_meaning(case, first)]


def _faulty_cycles(case: Case) -> Iterator[str]:
    instruction = case.instruction
    numbers, sizes = numbers_of(instruction, case.line.fields)
    cycles = read(instruction.cycles).value(numbers, sizes)
    work = read(instruction.work).value(numbers, sizes)
    (engine,) = (it for it in case.machine.engines if it.name == instruction.engine)
    kind = str(case.line.fields[instruction.type]) if instruction.type else ""
    peak = engine.peak.get(kind, engine.peak.get("", 0))
    if cycles < 1:
        yield f"{instruction.name} takes {cycles} cycles; it must be 1 or more"
    if work < 0 or work > cycles * peak:
        yield (
            f"{instruction.name} does {work} {engine.unit or 'work'} in {cycles} cycles, but the "
            f"peak of '{engine.name}' is {peak} a cycle"
        )


def _faulty_meaning(case: Case, found: Outcome) -> Iterator[str]:
    """Compare what an instruction computes with what the table says that it means."""
    instruction, line = case.instruction, case.line
    if not instruction.means:
        return
    meaning = meaning_of(instruction.means)
    kind = str(line.fields.get("type", "f32"))
    state = case.state()
    values = fields_of(state, instruction, line.fields)
    counts = [getattr(values, f"count{i}") for i in range(3)]

    def strides(name: str) -> list[int]:
        return [getattr(values, f"{name}{i}") for i in range(3)]

    given = {
        name: np.array(getattr(values, name), NUMPY_TYPES[kind])
        if isinstance(instruction.fields[name], Float)
        else state.read(getattr(values, name), kind, counts, strides(name))
        for name in named_in(meaning)
    }
    with np.errstate(all="ignore"):
        wanted = computed(meaning, given, np.dtype(NUMPY_TYPES[kind]))
    state.write(values.target, kind, np.broadcast_to(wanted, counts), strides("target"))
    wanted = state.read(values.target, kind, counts, strides("target"))
    state.memories = {number: bytearray(data) for number, data in found.memories.items()}
    result = state.read(values.target, kind, counts, strides("target"))
    if kind in REALS:
        # One rounding or two: what cancels out may differ, but not much of it.
        with np.errstate(all="ignore"):
            are_near = np.isclose(result, wanted, rtol=1e-2, atol=0, equal_nan=True)
        is_right = bool(np.mean(are_near) >= 0.9)
    else:
        is_right = bool(np.all(result == wanted))
    if not is_right:
        yield f"{instruction.name} does not compute what it means, '{instruction.means}'"


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _mask(case: Case, areas: list[Area]) -> dict[int, Array]:
    """Return for each memory which of its bytes are in areas."""
    masks = {number: np.zeros(len(data), bool) for number, data in case.memories.items()}
    for area in areas:
        masks[area.memory][area.places] = True
    return masks


def _with_other_bytes(case: Case, random: Random) -> Case:
    """Return a case in which all bytes are others that the instruction does not read."""
    read_bytes = _mask(case, case.areas(case.instruction.reads))
    memories = {}
    for number, data in case.memories.items():
        others = random.integers(1, 256, size=len(data), dtype=np.uint8)
        memories[number] = np.where(
            read_bytes[number], _array(data), _array(data) ^ others
        ).tobytes()
    return replace(case, memories=memories)
