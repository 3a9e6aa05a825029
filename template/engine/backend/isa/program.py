# SPDX-License-Identifier: Apache-2.0
"""Programs as files.

All numbers are little-endian. A file has, each part padded with zeros to a multiple of 64 bytes,

| part | contents |
|---|---|
| header | below |
| ports | the bytes of each input, then of each output, 8 bytes each |
| name | the name of the machine, in UTF-8 |
| notes | for each line the numbers of its label and of its note, 4 bytes each |
| texts | for each text its bytes in UTF-8, as a number of 4 bytes, and these; text 0 is empty |
| constants | as they are in memory |
| words | the instructions |

and the header is

| offset | bytes | contents |
|---|---|---|
| 0 | 8 | `NPUISA1` and a zero |
| 8 | 4 | version: 1 |
| 12 | 4 | bytes of a word |
| 16 | 8 | fingerprint of the table (`encoding.fingerprint`) |
| 24 | 4 | CRC-32 of all bytes from 32 on, that of zlib |
| 28 | 4 | 0 |
| 32 | 8 | bytes of the file |
| 40 | 4, 4 | numbers of lines, and of texts |
| 48 | 4, 4 | numbers of inputs and outputs |
| 56 | 8 | bytes of the workspace |
| 64 | 8 | bytes of constants |
| 72 | 8 | bytes of texts |
| 80 | 4, 4 | bytes of the name, and 0 |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .encoding import EncodingError, decode, encode, fingerprint
from .machine import Line, Machine

MAGIC = b"NPUISA1\0"
VERSION = 1
ALIGNMENT = 64

_HEADER = struct.Struct("<8sIIQIIQIIIIQQQII")
_CHECKED_FROM = 32


class ProgramError(ValueError):
    """A file is no program of the machine; the message says why."""


@dataclass(frozen=True)
class Program:
    """A program of a machine.

    Parameters
    ----------
    machine
        The name of the machine.
    lines
        The instructions, with their notes.
    constants
        The bytes of the segment of constants.
    workspace
        How many bytes the segment of the workspace has.
    inputs, outputs
        How many bytes each has; they are the segments from `machine.FIRST_PORT` on.
    """

    machine: str
    lines: tuple[Line, ...]
    constants: bytes = b""
    workspace: int = 0
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


def write(machine: Machine, program: Program) -> bytes:
    """Return a program as the contents of a file.

    Parameters
    ----------
    machine
        The machine of the program.
    program
        The program.

    Raises
    ------
    EncodingError
        The machine has no such instruction; the message begins with the number of the line, from 0.
    """
    words = []
    numbers: dict[str, int] = {"": 0}
    notes = []
    for index, line in enumerate(program.lines):
        try:
            words.append(encode(machine, line))
        except EncodingError as error:
            raise EncodingError(f"line {index}: {error}") from None
        notes += [numbers.setdefault(text, len(numbers)) for text in (line.label, line.note)]
    encoded = [text.encode() for text in numbers]
    texts = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    name = program.machine.encode()
    ports = (*program.inputs, *program.outputs)
    body = b"".join(
        _padded(part)
        for part in (
            struct.pack(f"<{len(ports)}Q", *ports),
            name,
            struct.pack(f"<{len(notes)}I", *notes),
            texts,
            program.constants,
            b"".join(words),
        )
    )
    size = len(_padded(bytes(_HEADER.size))) + len(body)

    def header(checksum: int) -> bytes:
        return _padded(
            _HEADER.pack(
                *(MAGIC, VERSION, machine.word, fingerprint(machine), checksum, 0, size),
                *(len(program.lines), len(numbers), len(program.inputs), len(program.outputs)),
                *(program.workspace, len(program.constants), len(texts), len(name), 0),
            )
        )

    whole = header(0) + body
    return header(zlib.crc32(memoryview(whole)[_CHECKED_FROM:])) + body


def read(machine: Machine, data: bytes) -> Program:
    """Read a program.

    Parameters
    ----------
    machine
        The machine that the program should be for.
    data
        The contents of a file.

    Raises
    ------
    ProgramError
        It is no program, or one of another machine, or damaged.
    """
    if len(data) < _HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise ProgramError("it is no program of an instruction set: it does not begin with NPUISA1")
    header = _HEADER.unpack_from(data)
    version, word, table, checksum, zero, size, lines, texts, inputs, outputs = header[1:11]
    workspace, constants, text_bytes, name_bytes, other_zero = header[11:]
    if version != VERSION:
        raise ProgramError(f"its format has version {version}; supported is {VERSION}")
    if size != len(data):
        raise ProgramError(f"it has {len(data)} bytes, but should have {size}")
    if checksum != zlib.crc32(memoryview(data)[_CHECKED_FROM:]) or zero or other_zero:
        raise ProgramError("it is damaged: its checksum is another")
    if word != machine.word or table != fingerprint(machine):
        raise ProgramError(
            f"it was compiled for another table than that of '{machine.name}': compile it again"
        )
    sizes = (8 * (inputs + outputs), name_bytes, 8 * lines, text_bytes, constants, word * lines)
    parts = list(_parts(data, sizes))
    ports = struct.unpack(f"<{inputs + outputs}Q", parts[0])
    numbers = struct.unpack(f"<{2 * lines}I", parts[2])
    names = list(_texts(parts[3], texts))
    if len(names) != texts or max(numbers, default=0) >= texts or names[:1] != [""]:
        raise ProgramError("its notes are not those of its lines")
    try:
        name = parts[1].decode()
    except UnicodeDecodeError:
        raise ProgramError("the name of its machine is not UTF-8") from None
    found = []
    for index in range(lines):
        try:
            line = decode(machine, parts[5][word * index : word * (index + 1)])
        except EncodingError as error:
            raise ProgramError(f"line {index}: {error}") from None
        label, note = names[numbers[2 * index]], names[numbers[2 * index + 1]]
        found.append(Line(line.instruction, line.fields, note, label))
    return Program(name, tuple(found), parts[4], workspace, ports[:inputs], ports[inputs:])


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % ALIGNMENT)


def _parts(data: bytes, sizes: tuple[int, ...]) -> Iterator[bytes]:
    """Cut a file into its parts, which fill it."""
    at = len(_padded(bytes(_HEADER.size)))
    for size in sizes:
        end = at + size + -size % ALIGNMENT
        if end > len(data) or any(data[at + size : end]):
            raise ProgramError("its parts do not fit into it")
        yield data[at : at + size]
        at = end
    if at != len(data):
        raise ProgramError("its parts do not fill it")


def _texts(data: bytes, count: int) -> Iterator[str]:
    at = 0
    for _ in range(count):
        if at + 4 > len(data):
            return
        (size,) = struct.unpack_from("<I", data, at)
        if at + 4 + size > len(data):
            return
        try:
            yield data[at + 4 : at + 4 + size].decode()
        except UnicodeDecodeError:
            return
        at += 4 + size
    if at != len(data):
        raise ProgramError("its texts do not fill their part")
