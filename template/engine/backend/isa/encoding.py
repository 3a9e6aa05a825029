# SPDX-License-Identifier: Apache-2.0
"""Lines as words of bits, and back.

A word is a little-endian number: the opcode in its lowest 8 bits, above it the fields in the order
of the table, and zeros.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from .expressions import read
from .kinds import (
    ELEMENT_BYTES,
    Address,
    Choice,
    Field,
    FieldValue,
    Float,
    Number,
    Place,
    Register,
)
from .machine import Instruction, Line, Machine

OPCODE_BITS = 8
OFFSET_BITS = 32
"""The bits of the offset of an address."""


class EncodingError(ValueError):
    """A line or a word is none of the machine; the message says which field and why."""


@dataclass(frozen=True)
class Slot:
    """Where a field is in a word."""

    name: str
    kind: Field
    low: int
    bits: int


def slots(machine: Machine, instruction: Instruction) -> list[Slot]:
    """Return where the fields of an instruction are, in their order.

    Parameters
    ----------
    machine
        The machine.
    instruction
        One of its instructions.
    """
    found = []
    low = OPCODE_BITS
    for name, kind in instruction.fields.items():
        bits = machine.bits_of(kind)
        found.append(Slot(name, kind, low, bits))
        low += bits
    return found


def encode(machine: Machine, line: Line) -> bytes:
    """Return the word of a line.

    Parameters
    ----------
    machine
        The machine.
    line
        An instruction of it, with a value for each of its fields.

    Raises
    ------
    EncodingError
        The machine has no such instruction or field, or a value is out of its range.
    """
    instruction = machine.instructions.get(line.instruction)
    if instruction is None:
        raise EncodingError(f"'{line.instruction}' is no instruction of '{machine.name}'")
    word = instruction.opcode
    for slot in slots(machine, instruction):
        if slot.name not in line.fields:
            raise EncodingError(f"{instruction.name}: the field '{slot.name}' is missing")
        bits = _bits(machine, slot, line.fields[slot.name], instruction.name)
        word |= bits << slot.low
    for name in line.fields:
        if name not in instruction.fields:
            have = ", ".join(instruction.fields) or "none"
            raise EncodingError(f"{instruction.name}: there is no field '{name}', only {have}")
    check_conditions(instruction, line.fields)
    return word.to_bytes(machine.word, "little")


def decode(machine: Machine, word: bytes) -> Line:
    """Return the line of a word.

    Parameters
    ----------
    machine
        The machine.
    word
        As many bytes as its words have.

    Raises
    ------
    EncodingError
        No instruction has this word.
    """
    if len(word) != machine.word:
        raise EncodingError(f"a word has {machine.word} bytes, not {len(word)}")
    bits = int.from_bytes(word, "little")
    opcode = bits & (1 << OPCODE_BITS) - 1
    instruction = machine.by_opcode.get(opcode)
    if instruction is None:
        raise EncodingError(f"there is no instruction with opcode {opcode}")
    values: dict[str, FieldValue] = {}
    end = OPCODE_BITS
    for slot in slots(machine, instruction):
        raw = bits >> slot.low & (1 << slot.bits) - 1
        values[slot.name] = _value(machine, slot, raw, instruction.name)
        end = slot.low + slot.bits
    if bits >> end:
        raise EncodingError(f"{instruction.name}: bits from {end} on are not 0")
    check_conditions(instruction, values)
    return Line(instruction.name, values)


def default_of(kind: Field) -> FieldValue:
    """Return the value of a field that an assembler's text leaves out: 0, or the least number."""
    match kind:
        case Number():
            least, most = kind.range
            return 0 if least <= 0 <= most else least
        case Choice():
            return kind.names[0]
        case Float():
            return 0.0
        case Address():
            return Place(0)
        case Register():
            return 0


def numbers_of(
    instruction: Instruction, values: Mapping[str, FieldValue]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return what expressions read: the fields as numbers, and the sizes of types."""
    numbers: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name, kind in instruction.fields.items():
        value = values[name]
        if isinstance(kind, Choice):
            assert isinstance(value, str)
            numbers[name] = kind.names.index(value)
            sizes[name] = ELEMENT_BYTES.get(value, 0)
        elif isinstance(value, int):
            numbers[name] = value
    return numbers, sizes


def check_conditions(instruction: Instruction, values: Mapping[str, FieldValue]) -> None:
    """Check that fields with values in their ranges meet the conditions of their instruction.

    Raises
    ------
    EncodingError
        They do not.
    """
    if not instruction.where:
        return
    numbers, sizes = numbers_of(instruction, values)
    for text in instruction.where:
        if not read(text).value(numbers, sizes):
            written = instruction.as_written(text)
            used = sorted(read(text).names | read(text).sizes)
            have = ", ".join(f"{name} is {values[name]}" for name in used)
            raise EncodingError(f"{instruction.name} needs {written}, but {have}")


def fingerprint(machine: Machine) -> int:
    """Return a number of 64 bits that another encoding of programs would not have.

    Parameters
    ----------
    machine
        The machine.

    Returns
    -------
    number
        A hash of memories, registers, loops, synchronisation and instructions: what a program must
        have been made for. Cycles and documentation may change.
    """
    parts = [machine.name, machine.word, machine.registers, machine.loop_depth, machine.sync]
    parts += [(memory.name, memory.bytes) for memory in machine.memories]
    parts += [engine.name for engine in machine.engines]
    for instruction in sorted(machine.instructions.values(), key=lambda it: it.opcode):
        parts.append((instruction.name, instruction.opcode, instruction.engine, instruction.where))
        parts += [(name, repr(kind)) for name, kind in instruction.fields.items()]
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


def _bits(machine: Machine, slot: Slot, value: FieldValue, instruction: str) -> int:
    """Return a value as the bits of its field."""
    at = f"{instruction}: {slot.name} is {value!r}, "
    match slot.kind:
        case Number():
            if not isinstance(value, int) or isinstance(value, bool):
                raise EncodingError(f"{at}not an integer")
            least, most = slot.kind.range
            if not least <= value <= most:
                raise EncodingError(f"{at}not from {least} to {most}")
            return value & (1 << slot.bits) - 1
        case Choice():
            if value not in slot.kind.names:
                raise EncodingError(f"{at}not one of {', '.join(slot.kind.names)}")
            return slot.kind.names.index(str(value))
        case Float():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise EncodingError(f"{at}not a number")
            try:
                (bits,) = struct.unpack("<I", struct.pack("<f", value))
            except OverflowError:
                raise EncodingError(f"{at}which float32 does not have") from None
            return int(bits)
        case Register():
            return _register(machine, value, at)
        case Address():
            if not isinstance(value, Place):
                raise EncodingError(f"{at}not a place: a register and an offset")
            half = 1 << OFFSET_BITS - 1
            if not -half <= value.offset < half:
                raise EncodingError(f"{at}its offset is not from {-half} to {half - 1}")
            register = _register(machine, value.register, at)
            low = slot.bits - OFFSET_BITS
            return register | (value.offset & (1 << OFFSET_BITS) - 1) << low


def _register(machine: Machine, value: FieldValue, at: str) -> int:
    if not isinstance(value, int) or not 0 <= value < machine.registers:
        raise EncodingError(f"{at}not a register: they are from 0 to {machine.registers - 1}")
    return value


def _value(machine: Machine, slot: Slot, raw: int, instruction: str) -> FieldValue:
    """Return the bits of a field as its value."""
    at = f"{instruction}: {slot.name} is "
    match slot.kind:
        case Number():
            negative = slot.kind.signed and raw >> slot.bits - 1
            number = raw - (1 << slot.bits) if negative else raw
            least, most = slot.kind.range
            if not least <= number <= most:
                raise EncodingError(f"{at}{number}, not from {least} to {most}")
            return number
        case Choice():
            if raw >= len(slot.kind.names):
                have = len(slot.kind.names)
                raise EncodingError(f"{at}{raw}, but only {have} choices have a number, from 0")
            return slot.kind.names[raw]
        case Float():
            (real,) = struct.unpack("<f", struct.pack("<I", raw))
            return float(real)
        case Register():
            return _register(machine, raw, f"{at}{raw}, ")
        case Address():
            low = slot.bits - OFFSET_BITS
            register = _register(machine, raw & (1 << low) - 1, f"{at}{raw & (1 << low) - 1}, ")
            offset = raw >> low
            half = 1 << OFFSET_BITS - 1
            return Place(register, offset - 2 * half if offset >= half else offset)


def same(one: FieldValue, other: FieldValue) -> bool:
    """Whether two values of a field have the same bits; NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        signs = math.copysign(1, one) == math.copysign(1, other)
        return (one == other and signs) or (math.isnan(one) and math.isnan(other))
    return one == other
