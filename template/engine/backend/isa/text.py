# SPDX-License-Identifier: Apache-2.0
"""Lines as text, and back: the assembler and the disassembler.

A line of text is the instruction and its fields, in any order, such as

    ld target=r3+64 source=r4 bytes=256 count0=4  ; conv2d | for y in 0..4

Fields that are left out have their default: 0 or the least number, or the first of their names.
Behind a semicolon is the label of the model's op, and behind a bar the loop that it was made of.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from .encoding import EncodingError, default_of, encode, same
from .kinds import Address, Choice, Field, FieldValue, Float, Number, Place, Register
from .machine import Line, Machine

_PLACE = re.compile(r"r(\d+)([+-](?:0x[0-9a-fA-F]+|\d+))?")
_INTEGER = re.compile(r"[+-]?(0x[0-9a-fA-F]+|\d+)")


def text_of(machine: Machine, line: Line) -> str:
    """Return a line as text.

    Parameters
    ----------
    machine
        The machine.
    line
        A line of one of its programs.

    Returns
    -------
    text
        The instruction, and all fields but numbers, floats and registers of the default.
    """
    fields = machine.instructions[line.instruction].fields
    words = [line.instruction]
    for name, kind in fields.items():
        value = line.fields[name]
        if isinstance(kind, Choice | Address) or not same(value, default_of(kind)):
            words.append(f"{name}={_written(kind, value)}")
    about = " | ".join(part for part in (line.label, line.note) if part)
    if line.note and not line.label:
        about = f"| {line.note}"
    return " ".join(words) + (f"  ; {about}" if about else "")


def disassembled(machine: Machine, lines: Sequence[Line]) -> str:
    """Return a program as text, as `assembled` reads it.

    Parameters
    ----------
    machine
        The machine.
    lines
        The program.
    """
    return "".join(f"{text_of(machine, line)}\n" for line in lines)


def assembled(machine: Machine, text: str) -> list[Line]:
    """Read a program.

    Parameters
    ----------
    machine
        The machine.
    text
        A line for each instruction; lines that are empty or begin with `#` are skipped.

    Returns
    -------
    lines
        The program.

    Raises
    ------
    EncodingError
        A line is no instruction of the machine; the message begins with its number, from 1.
    """
    lines = []
    for number, written in enumerate(text.splitlines(), 1):
        if not written.strip() or written.lstrip().startswith("#"):
            continue
        try:
            line = line_of(machine, written)
        except EncodingError as error:
            raise EncodingError(f"line {number}: {error}") from None
        lines.append(line)
    return lines


def line_of(machine: Machine, text: str) -> Line:
    """Read a line.

    Parameters
    ----------
    machine
        The machine.
    text
        The line, as `text_of` writes it.

    Raises
    ------
    EncodingError
        It is no instruction of the machine.
    """
    code, _, about = text.partition(";")
    label, bar, note = about.partition("|")
    name, *words = code.split() or [""]
    instruction = machine.instructions.get(name)
    if instruction is None:
        have = ", ".join(machine.instructions)
        raise EncodingError(f"'{name}' is no instruction of '{machine.name}', which has {have}")
    values: dict[str, FieldValue] = {}
    for word in words:
        field, equals, value = word.partition("=")
        kind = instruction.fields.get(field)
        if not equals or kind is None:
            have = ", ".join(instruction.fields) or "none"
            raise EncodingError(f"{name}: '{word}' is no field and its value; fields are: {have}")
        if field in values:
            raise EncodingError(f"{name}: {field} is there twice")
        values[field] = _read(kind, value, f"{name}: {field} is '{value}', ")
    complete = {
        field: values.get(field, default_of(kind)) for field, kind in instruction.fields.items()
    }
    line = Line(name, complete, note.strip(), label.strip())
    encode(machine, line)
    return line


def _written(kind: Field, value: FieldValue) -> str:
    if isinstance(value, Place):
        sign = "+" if value.offset > 0 else ""
        return f"r{value.register}" + (f"{sign}{value.offset}" if value.offset else "")
    if isinstance(kind, Register):
        return f"r{value}"
    return repr(value) if isinstance(value, float) else str(value)


def _read(kind: Field, value: str, at: str) -> FieldValue:
    match kind:
        case Choice():
            return value  # Encoding says which names there are.
        case Number():
            if not _INTEGER.fullmatch(value):
                raise EncodingError(f"{at}not an integer")
            return int(value, 0) if "x" in value else int(value)
        case Float():
            try:
                (real,) = struct.unpack("<f", struct.pack("<f", float(value)))
            except (ValueError, OverflowError):
                raise EncodingError(f"{at}not a number of float32") from None
            return float(real)
        case Register() | Address():
            match = _PLACE.fullmatch(value)
            if match is None or (isinstance(kind, Register) and match[2]):
                wanted = "rN" if isinstance(kind, Register) else "rN, rN+OFFSET or rN-OFFSET"
                raise EncodingError(f"{at}not of the form {wanted}")
            if isinstance(kind, Register):
                return int(match[1])
            return Place(int(match[1]), int(match[2] or "0", 16 if "x" in (match[2] or "") else 10))
