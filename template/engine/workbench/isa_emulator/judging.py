# SPDX-License-Identifier: Apache-2.0
"""Compares the emulator with the oracles of the table: instructions alone, and whole programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...backend.isa.cases import Case, Outcome, Random, memory_name, outcome, random_case
from ...backend.isa.kinds import ELEMENT_BYTES, Address, Place
from ...backend.isa.machine import CONSTANTS, FIRST_PORT, SEGMENT_BITS, WORKSPACE, Line, Machine
from ...backend.isa.operations import NUMPY_TYPES, REALS, Array
from ...backend.isa.oracle import Refused, State, extent_of, run
from ...backend.isa.program import Program
from .emulator import NO_LIMITS, Emulator, EmulatorError, Limits, Result

TOLERANCE = 2e-5
"""How far real numbers may be apart: libraries of functions do not all round alike."""

_TOO_LARGE = 1e30
"""Beyond it, the order of a sum decides whether it is still finite."""


@dataclass(frozen=True)
class Trial:
    """A program, and the state in which it begins.

    Parameters
    ----------
    machine
        The machine.
    lines
        The program.
    registers, memories, inputs
        As `cases.Case` has them.
    """

    machine: Machine
    lines: tuple[Line, ...]
    registers: tuple[int, ...]
    memories: Mapping[int, bytes]
    inputs: int

    @property
    def program(self) -> Program:
        """Return it for the emulator."""
        ports = self.ports
        sizes = [len(self.memories[port]) for port in ports]
        return Program(
            *(self.machine.name, self.lines, self.memories.get(CONSTANTS, b"")),
            *(len(self.memories.get(WORKSPACE, b"")), tuple(sizes[: self.inputs])),
            tuple(sizes[self.inputs :]),
        )

    def run(self, emulator: Emulator, limits: Limits = NO_LIMITS) -> Result:
        """Run it on the emulator."""
        ports = [self.memories[port] for port in self.ports]
        names = {
            WORKSPACE if memory.is_segmented else index + 1: memory.name
            for index, memory in enumerate(self.machine.memories)
        }
        return emulator.run(
            self.program,
            ports[: self.inputs],
            memories={name: self.memories.get(number, b"") for number, name in names.items()},
            registers=self.registers,
            outputs=ports[self.inputs :],
            limits=limits,
        )

    def expected(self, most: int = 1 << 20) -> Outcome:
        """Run it by the oracles."""
        state = State(self.machine, inputs=self.inputs)
        state.memories = {number: bytearray(data) for number, data in self.memories.items()}
        state.registers = list(self.registers)
        refused = ""
        try:
            run(state, self.lines, most)
        except Refused as error:
            refused = str(error)
        memories = {number: bytes(data) for number, data in state.memories.items()}
        return Outcome(tuple(state.registers), memories, refused)

    @property
    def ports(self) -> list[int]:
        """Return the segments of inputs and outputs."""
        return sorted(number for number in self.memories if number >= FIRST_PORT)


def memories_of(machine: Machine, result: Result, inputs: int) -> dict[int, bytes]:
    """Return the memories that a run may have changed, by their numbers."""
    found = {
        WORKSPACE if memory.is_segmented else index + 1: result.memories[memory.name]
        for index, memory in enumerate(machine.memories)
    }
    return found | {FIRST_PORT + inputs + index: data for index, data in enumerate(result.outputs)}


# ---- One instruction ----------------------------------------------------------------------------


def ending(machine: Machine) -> Line | None:
    """Return a line that ends a program, if an instruction without fields does so."""
    for name, instruction in machine.instructions.items():
        if not instruction.fields:
            state = State(machine)
            instruction.oracle(state, None)
            if state.is_done:
                return Line(name, {})
    return None


def disagreement(emulator: Emulator, case: Case) -> str:
    """Return how the emulator and the oracle differ in a case; empty: they agree.

    Parameters
    ----------
    emulator
        The emulator of the machine.
    case
        The case.
    """
    end = ending(case.machine)
    assert end is not None, "the machine has no instruction that ends a program"
    expected = outcome(case)
    lines = (case.line, end)
    trial = Trial(case.machine, lines, case.registers, case.memories, case.inputs)
    try:
        result = trial.run(emulator, Limits(instructions=2))
    except EmulatorError as error:
        # A branch or a loop may lead anywhere.
        is_elsewhere = "is next, but" in str(error) or "does not end" in str(error)
        return "" if expected.refused or is_elsewhere else f"only the emulator refuses it: {error}"
    if expected.refused:
        return f"only the oracle refuses it: {expected.refused}"
    return "; ".join(_differences(case, expected, result))


def _differences(case: Case, expected: Outcome, result: Result) -> Iterator[str]:
    kind = case.line.fields.get(case.instruction.type or "type", "f32")
    kind = str(kind) if kind in ELEMENT_BYTES else "f32"
    pairs = zip(result.registers, expected.registers, strict=True)
    for index, (register, other_register) in enumerate(pairs):
        bits = [np.array([it]).astype(np.int32).tobytes() for it in (register, other_register)]
        if register == other_register or (
            kind in REALS and _are_near(bits[0], bits[1], "f32", 0.0)
        ):
            continue
        yield f"register {index} is {register} instead of {other_register}"
    for number, found in memories_of(case.machine, result, case.inputs).items():
        one, other = (np.frombuffer(it, np.uint8) for it in (found, expected.memories[number]))
        places = np.flatnonzero(one != other)
        if not places.size:
            continue
        if kind in REALS:
            scale = _scale(case, kind)
            for area in case.areas(case.instruction.writes):
                if area.memory != number:
                    continue
                parts = [it[area.places].tobytes() for it in (one, other)]
                if _are_near(parts[0], parts[1], kind, scale):
                    places = np.setdiff1d(places, area.places)
        if places.size:
            yield _differing(case.machine, number, places)


def _differing(machine: Machine, number: int, places: Array) -> str:
    name = memory_name(machine, number)
    return f"{places.size} bytes of {name} differ, the first is {places[0]}"


def _scale(case: Case, kind: str) -> float:
    """Return how large products of what is read may be: so much is lost where they cancel."""
    most = 0.0
    for area in case.areas(case.instruction.reads):
        data = np.frombuffer(case.memories[area.memory], np.uint8)[area.places].tobytes()
        with np.errstate(invalid="ignore"):
            values = np.frombuffer(data[: len(data) // 8 * 8], NUMPY_TYPES[kind]).astype("f8")
        most = max(most, float(np.max(np.abs(values[np.isfinite(values)]), initial=0)))
    return most * max(1.0, most)


def _are_near(one: bytes, other: bytes, kind: str, scale: float) -> bool:
    size = ELEMENT_BYTES[kind]
    if len(one) % size:
        return False
    with np.errstate(invalid="ignore"):
        found, wanted = (np.frombuffer(it, NUMPY_TYPES[kind]).astype("f8") for it in (one, other))
    wide = 1e-3 if kind == "f16" else TOLERANCE
    if scale > _TOO_LARGE:
        return True
    # Numbers below the least normal one have few digits.
    near = wide * scale + float(np.finfo(NUMPY_TYPES[kind]).tiny)
    return bool(np.allclose(found, wanted, rtol=wide, atol=near, equal_nan=True))


# ---- Programs -----------------------------------------------------------------------------------


def difference(trial: Trial, result: Result, expected: Outcome) -> str:
    """Return where memories differ from those that the oracles leave; empty: nowhere.

    Parameters
    ----------
    trial
        The program.
    result, expected
        What the emulator and the oracles made of it.
    """
    for number, found in memories_of(trial.machine, result, trial.inputs).items():
        one, other = (np.frombuffer(it, np.uint8) for it in (found, expected.memories[number]))
        if (places := np.flatnonzero(one != other)).size:
            return _differing(trial.machine, number, places)
    return ""


def random_trial(machine: Machine, random: Random, names: Sequence[str], count: int) -> Trial:
    """Return a program of random instructions that often touch the same bytes.

    Parameters
    ----------
    machine
        The machine.
    random
        Where chance comes from.
    names
        The instructions that it is made of.
    count
        How many it has, or fewer, so that there is a register for each address.

    Returns
    -------
    trial
        The program without an end.
    """
    registers = [0]
    lines: list[Line] = []
    taken: list[int] = []
    memories: Mapping[int, bytes] = {}
    inputs = 0
    for _ in range(count):
        case = random_case(machine, names[int(random.integers(len(names)))], random)
        memories, inputs = memories or case.memories, case.inputs
        fields = dict(case.line.fields)
        kinds = case.instruction.fields.items()
        addresses = [name for name, kind in kinds if isinstance(kind, Address)]
        if len(registers) + len(addresses) > machine.registers:
            continue
        for name in addresses:
            place = case.line.fields[name]
            assert isinstance(place, Place)
            address = case.registers[place.register] + place.offset
            near = [it for it in taken if it >> SEGMENT_BITS == address >> SEGMENT_BITS]
            if near and random.random() < 0.7:
                address = near[int(random.integers(len(near)))] + 4 * int(random.integers(-2, 3))
            if not _fits(case, name, address, memories):
                continue
            taken.append(address)
            fields[name] = Place(len(registers))
            registers.append(address)
        if all(fields[name] != case.line.fields[name] for name in addresses):
            lines.append(replace(case.line, fields=fields))
    registers += [0] * (machine.registers - len(registers))
    return Trial(machine, tuple(lines), tuple(registers), memories, inputs)


def _fits(case: Case, name: str, address: int, memories: Mapping[int, bytes]) -> bool:
    number, place = address >> SEGMENT_BITS, address & (1 << SEGMENT_BITS) - 1
    for box in case.instruction.boxes:
        if box.address == name:
            extent = extent_of(box, case.instruction, case.line.fields, place)
            if extent and not 0 <= extent[0] <= extent[1] <= len(memories[number]):
                return False
    return True
