# SPDX-License-Identifier: Apache-2.0
"""Random instructions of a machine, in memories that they fit into."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .encoding import EncodingError, check_conditions, numbers_of
from .expressions import read
from .kinds import ELEMENT_BYTES, Address, Choice, Field, FieldValue, Float, Number, Place, Register
from .machine import CONSTANTS, FIRST_PORT, SEGMENT_BITS, WORKSPACE, Box, Instruction, Line, Machine
from .operations import NUMPY_TYPES, REALS, Array
from .oracle import Refused, State, execute, extent_of
from .rules import TableError

_TRIES = 1000
_MOST_BYTES = 1 << 14
"""How many bytes an operand has at most: oracles are slow."""
_SEGMENTS = {CONSTANTS: 6000, WORKSPACE: 20000, FIRST_PORT: 5000, FIRST_PORT + 1: 7000}
_INPUTS = 1

Random = np.random.Generator


@dataclass(frozen=True)
class Area:
    """The bytes of a box: a memory by its number, and places in it in the order of the box."""

    memory: int
    places: Array


@dataclass(frozen=True)
class Case:
    """A line, and the state that it meets.

    Parameters
    ----------
    machine
        The machine.
    line
        The line.
    registers
        All registers.
    memories
        The bytes of each memory and segment by its number, as `oracle.State` has them.
    inputs
        How many of the segments from `FIRST_PORT` on are inputs.
    """

    machine: Machine
    line: Line
    registers: tuple[int, ...]
    memories: Mapping[int, bytes]
    inputs: int = _INPUTS

    def state(self) -> State:
        """Return the state in which the line begins, for the oracle."""
        state = State(self.machine, inputs=self.inputs)
        state.memories = {number: bytearray(data) for number, data in self.memories.items()}
        state.registers = list(self.registers)
        return state

    @property
    def instruction(self) -> Instruction:
        """Return the instruction of the line."""
        return self.machine.instructions[self.line.instruction]

    def area(self, box: Box) -> Area | None:
        """Return the bytes of a box of the instruction; None if it is not there.

        Parameters
        ----------
        box
            One of its boxes.
        """
        place = self.line.fields[box.address]
        assert isinstance(place, Place)
        address = self.registers[place.register] + place.offset
        if extent_of(box, self.instruction, self.line.fields, address) is None:
            return None
        first = address & (1 << SEGMENT_BITS) - 1
        return Area(address >> SEGMENT_BITS, first + _places(box, self.instruction, self.line))

    def areas(self, boxes: tuple[Box, ...]) -> list[Area]:
        """Return the bytes of those boxes that are there.

        Parameters
        ----------
        boxes
            Boxes of the instruction.
        """
        return [area for box in boxes if (area := self.area(box)) is not None]


@dataclass(frozen=True)
class Outcome:
    """What a line leaves behind; or why it was refused."""

    registers: tuple[int, ...]
    memories: Mapping[int, bytes]
    refused: str = ""


def memory_name(machine: Machine, number: int) -> str:
    """Return the name of a memory or segment in sentences, as in `Case.memories`."""
    if number < CONSTANTS:
        return machine.memories[number - 1].name
    names = {CONSTANTS: "the constants", WORKSPACE: "the workspace"}
    return names.get(number, f"port {number - FIRST_PORT}")


def outcome(case: Case) -> Outcome:
    """Execute a case by the oracle.

    Parameters
    ----------
    case
        The case, which stays as it is.
    """
    state = case.state()
    refused = ""
    try:
        execute(state, case.line)
    except Refused as error:
        refused = str(error)
    memories = {number: bytes(data) for number, data in state.memories.items()}
    return Outcome(tuple(state.registers), memories, refused)


def random_case(machine: Machine, name: str, random: Random) -> Case:
    """Return a line with random fields, and random memories that its boxes fit into.

    Parameters
    ----------
    machine
        The machine.
    name
        The instruction.
    random
        Where chance comes from.

    Returns
    -------
    case
        The case. What the line writes are other bytes than those that it reads, or the same for
        the same elements.

    Raises
    ------
    TableError
        No values were found that meet the conditions of the instruction and fit into memories.
    """
    instruction = machine.instructions[name]
    why = "a box does not fit into its memories"
    for _ in range(_TRIES):
        values = _fields(machine, instruction, random)
        try:
            check_conditions(instruction, values)
        except EncodingError as error:
            why = str(error)
            continue
        sizes = {number: int(size * random.uniform(0.5, 1)) for number, size in _SEGMENTS.items()}
        sizes |= {
            number + 1: memory.bytes
            for number, memory in enumerate(machine.memories)
            if not memory.is_segmented
        }
        addresses = _addresses(machine, Line(name, values), sizes, random)
        if addresses is None:
            continue
        line, registers = _with_registers(machine, Line(name, values), addresses, random)
        kinds = _types(values)
        memories = {number: _contents(size, kinds, random) for number, size in sizes.items()}
        return Case(machine, line, registers, memories)
    raise TableError(f"instruction '{name}': no random values fit: {why}")


# ---- Fields -------------------------------------------------------------------------------------


def _fields(machine: Machine, instruction: Instruction, random: Random) -> dict[str, FieldValue]:
    """Return random values; addresses are still 0, and distances keep elements apart."""
    in_boxes = {
        name for box in instruction.boxes for text in box.expressions for name in read(text).names
    }
    values = {
        name: _value(machine, kind, name in in_boxes, random)
        for name, kind in instruction.fields.items()
    }
    distances: dict[str, Number] = {}
    for box in instruction.boxes:
        for _, stride in box.dims:
            kind = instruction.fields.get(stride.strip())
            if isinstance(kind, Number):
                distances[stride.strip()] = kind
    # What was not chosen yet does not count.
    values |= dict.fromkeys(distances, 0)
    unit = max(ELEMENT_BYTES[kind] for kind in _types(values))
    for box in (*instruction.writes, *instruction.reads):
        extent = _number(box.bytes, instruction, values)
        for count, stride in reversed(box.dims):
            name = stride.strip()
            if name in distances:
                is_written = box in instruction.writes
                values[name] = _distance(distances.pop(name), extent, unit, is_written, random)
            reach = _number(stride, instruction, values)
            extent += abs(reach) * (_number(count, instruction, values) - 1)
    return values


def _types(values: Mapping[str, FieldValue]) -> list[str]:
    """Return the types of elements that fields name.

    Without any it is f32: other bytes are seldom real numbers that can be compared.
    """
    return [str(value) for value in values.values() if value in ELEMENT_BYTES] or ["f32"]


def _value(machine: Machine, kind: Field, is_small: bool, random: Random) -> FieldValue:
    match kind:
        case Choice():
            return kind.names[int(random.integers(len(kind.names)))]
        case Float():
            special = (0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("nan"), 3e38)
            if random.random() < 0.3:
                return float(np.float32(special[int(random.integers(len(special)))]))
            return float(np.float32(random.normal() * 10 ** random.uniform(-2, 4)))
        case Register():
            return int(random.integers(machine.registers))
        case Address():
            return Place(0)
        case Number():
            least, most = kind.range
            if is_small:
                begin = least if least > 0 or most < 0 else 0
                return min(most, begin + int(random.integers(int(2 ** random.uniform(0, 6)))))
            ends = (least, most, max(least, 0), max(least, min(most, 1)))
            if random.random() < 0.3:
                return ends[int(random.integers(len(ends)))]
            near = int(random.integers(-300, 300))
            if random.random() < 0.5 and least <= near <= most:
                return near
            return int(random.integers(least, most, endpoint=True))


def _distance(kind: Number, extent: int, unit: int, is_written: bool, random: Random) -> int:
    """Return a distance between things of some bytes, so that what is written does not overlap."""
    least, most = kind.range
    gap = int(random.choice([0, 0, 0, unit, 3 * unit, 1]))
    found = extent + gap
    if not is_written and random.random() < 0.25:
        found = int(random.choice([0, 0, unit]))
    if random.random() < 0.2:
        found = -found
    return found if least <= found <= most else max(least, min(most, abs(found)))


def _number(text: str, instruction: Instruction, values: Mapping[str, FieldValue]) -> int:
    return read(text).value(*numbers_of(instruction, values))


def _places(box: Box, instruction: Instruction, line: Line) -> Array:
    """Return the places of a box that begins at 0."""
    places = np.zeros(1, np.int64)
    for count, stride in box.dims:
        steps = np.arange(_number(count, instruction, line.fields), dtype=np.int64)
        distance = _number(stride, instruction, line.fields)
        places = (places[:, None] + steps * distance).reshape(-1)
    run = np.arange(_number(box.bytes, instruction, line.fields), dtype=np.int64)
    return (places[:, None] + run).reshape(-1)


# ---- Addresses ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """What is known of an address: its boxes, and the bytes around it that they have."""

    boxes: tuple[Box, ...]
    low: int
    high: int
    is_written: bool
    shape: tuple[int, ...]
    """The bytes, counts and distances of the first box: alike operands have the same."""


def _addresses(
    machine: Machine, line: Line, sizes: Mapping[int, int], random: Random
) -> dict[str, int] | None:
    """Return an address for each field that has one; None if boxes do not fit, or overlap."""
    instruction = machine.instructions[line.instruction]
    found: dict[str, int] = {}
    operands: dict[str, _Operand] = {}
    for name, kind in instruction.fields.items():
        if not isinstance(kind, Address):
            continue
        operand = _operand(name, instruction, line)
        if operand is None:
            return None
        able = [number for number in sizes if _reaches(machine, kind, number, operand.is_written)]
        able = [number for number in able if sizes[number] >= operand.high - operand.low]
        if not able:
            return None
        number = able[int(random.integers(len(able)))]
        first = int(random.integers(-operand.low, sizes[number] - operand.high, endpoint=True))
        if random.random() < 0.8 and first // 8 * 8 >= -operand.low:
            first = first // 8 * 8
        address = (number << SEGMENT_BITS) + first
        alike = [other for other, it in operands.items() if it.shape == operand.shape and it.boxes]
        if alike and random.random() < 0.3 and found[alike[0]] >> SEGMENT_BITS in able:
            address = found[alike[0]]
        for other, placed in operands.items():
            is_apart = (
                address + operand.high <= found[other] + placed.low
                or found[other] + placed.high <= address + operand.low
            )
            is_in_place = other in alike and found[other] == address
            if (operand.is_written or placed.is_written) and not (is_apart or is_in_place):
                return None
        found[name], operands[name] = address, operand
    return found


def _operand(name: str, instruction: Instruction, line: Line) -> _Operand | None:
    """Return what is at an address; None if that is nothing to be executed by an oracle."""
    low, high, shapes = 0, 0, []
    boxes = [
        box
        for box in instruction.boxes
        if box.address == name and _number(box.when, instruction, line.fields)
    ]
    is_written = any(box in instruction.writes for box in boxes)
    for box in boxes:
        counts = [_number(count, instruction, line.fields) for count, _ in box.dims]
        strides = [_number(stride, instruction, line.fields) for _, stride in box.dims]
        size = _number(box.bytes, instruction, line.fields)
        if min(counts, default=1) < 1 or size < 1 or size * math.prod(counts) > _MOST_BYTES:
            return None
        places = _places(box, instruction, line)
        if box in instruction.writes and len(np.unique(places)) < len(places):
            return None
        low, high = min(low, int(places.min())), max(high, int(places.max()) + 1)
        shapes.append((size, *counts, *strides))
    return _Operand(tuple(boxes), low, high, is_written, min(shapes, default=()))


def _reaches(machine: Machine, kind: Address, number: int, is_written: bool) -> bool:
    """Whether a field names a memory, which may be a segment, and may write it."""
    if number >= CONSTANTS:
        can_write = number not in (CONSTANTS, *range(FIRST_PORT, FIRST_PORT + _INPUTS))
        segmented = [memory.name for memory in machine.memories if memory.is_segmented]
        return segmented[0] in kind.memories and (can_write or not is_written)
    return machine.memories[number - 1].name in kind.memories


def _with_registers(
    machine: Machine, line: Line, addresses: Mapping[str, int], random: Random
) -> tuple[Line, tuple[int, ...]]:
    """Return a line whose addresses are in registers, and all registers."""
    registers = [_register(random) for _ in range(machine.registers)]
    registers[0] = 0
    numbers = random.permutation(machine.registers - 1) + 1
    if len(addresses) > len(numbers):
        raise TableError(f"'{line.instruction}' has more addresses than there are registers")
    fields = dict(line.fields)
    for (name, address), number in zip(addresses.items(), numbers, strict=False):
        offset = int(random.choice([0, 0, 8, -64, 1000, int(random.integers(-(1 << 31), 1 << 31))]))
        fields[name] = Place(int(number), offset)
        registers[int(number)] = address - offset
    return Line(line.instruction, fields), tuple(registers)


def _register(random: Random) -> int:
    """Return a register's content: an integer, or the bits of a float32."""
    match int(random.integers(4)):
        case 0:
            return int(random.integers(-8, 8))
        case 1:
            return int(random.integers(-(1 << 63), (1 << 63) - 1, endpoint=True))
        case _:
            return int(np.float32(random.normal() * 4).view(np.int32))


# ---- Memories -----------------------------------------------------------------------------------


def _contents(size: int, kinds: Sequence[str], random: Random) -> bytes:
    """Return bytes that are elements of one of some types."""
    kind = kinds[int(random.integers(len(kinds)))]
    if kind in REALS:
        count = -(-size // ELEMENT_BYTES[kind])
        values = random.normal(size=count).astype(NUMPY_TYPES[kind])
        if random.random() < 0.4:
            special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1], values.dtype)
            places = random.integers(count, size=max(1, count // 8))
            values[places] = random.choice(special, len(places))
        return values.tobytes()[:size]
    if kind == "bool" or random.random() < 0.2:
        return random.integers(2, size=size, dtype=np.uint8).tobytes()
    return random.bytes(size)
