# SPDX-License-Identifier: Apache-2.0
"""Programs as files.

All numbers are little-endian. A file has, each part padded with zeros to a multiple of 64 bytes,

| part | contents |
|---|---|
| header | below |
| ports | the bytes of each input, then of each output, 8 bytes each |
| name | the name of the machine, in UTF-8 |
| notes | for each line the numbers of its label, its note and its source, 4 bytes each |
| sources | for each the number of the source around it and those of two texts, 4 bytes each |
| allocations | for each address and size, 8 bytes each; text, two lines and 0, 4 bytes each |
| texts | for each text its bytes in UTF-8, as a number of 4 bytes, and these; text 0 is empty |
| constants | as they are in memory |
| words | the instructions |

The texts of a source are the loop, and why it runs as scalar code. Sources are numbered from 1;
0 is none. A machine needs neither notes, sources nor allocations. The header is

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
| 88 | 4, 4 | numbers of sources and allocations |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .encoding import EncodingError, decode, encode, fingerprint
from .machine import Line, Machine, Source

MAGIC = b"NPUISA1\0"
VERSION = 1
ALIGNMENT = 64

_HEADER = struct.Struct("<8sIIQIIQIIIIQQQIIII")
_SOURCE = struct.Struct("<3I")
_ALLOCATION = struct.Struct("<2Q4I")
_CHECKED_FROM = 32


class ProgramError(ValueError):
    """A file is no program of the machine; the message says why."""


@dataclass(frozen=True)
class Allocation:
    """Bytes that have a purpose from one line to another.

    Parameters
    ----------
    name
        What they are.
    address, bytes
        Where, and how many; they are in a scratchpad or in the workspace.
    first, last
        The first and the last line that may touch them.
    """

    name: str
    address: int
    bytes: int
    first: int
    last: int


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
    allocations
        What lies in scratchpads and the workspace, for people.
    """

    machine: str
    lines: tuple[Line, ...]
    constants: bytes = b""
    workspace: int = 0
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    allocations: tuple[Allocation, ...] = ()


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
    texts = {"": 0}
    sources = _Sources(texts)
    notes = []
    for index, line in enumerate(program.lines):
        try:
            words.append(encode(machine, line))
        except EncodingError as error:
            raise EncodingError(f"line {index}: {error}") from None
        notes += [texts.setdefault(text, len(texts)) for text in (line.label, line.note)]
        notes.append(sources.number(line.source))
    allocations = b"".join(
        _ALLOCATION.pack(it.address, it.bytes, number, it.first, it.last, 0)
        for it in program.allocations
        for number in (texts.setdefault(it.name, len(texts)),)
    )
    text_bytes = b"".join(
        struct.pack("<I", len(text)) + text for text in (text.encode() for text in texts)
    )
    name = program.machine.encode()
    ports = (*program.inputs, *program.outputs)
    body = b"".join(
        _padded(part)
        for part in (
            struct.pack(f"<{len(ports)}Q", *ports),
            name,
            struct.pack(f"<{len(notes)}I", *notes),
            b"".join(sources.packed),
            allocations,
            text_bytes,
            program.constants,
            b"".join(words),
        )
    )
    size = len(_padded(bytes(_HEADER.size))) + len(body)

    def header(checksum: int) -> bytes:
        return _padded(
            _HEADER.pack(
                *(MAGIC, VERSION, machine.word, fingerprint(machine), checksum, 0, size),
                *(len(program.lines), len(texts), len(program.inputs), len(program.outputs)),
                *(program.workspace, len(program.constants), len(text_bytes), len(name), 0),
                *(len(sources.packed), len(program.allocations)),
            )
        )

    whole = header(0) + body
    return header(zlib.crc32(memoryview(whole)[_CHECKED_FROM:])) + body


class _Sources:
    """Numbers sources, and those around them before."""

    def __init__(self, texts: dict[str, int]) -> None:
        self._texts = texts
        self._numbers: dict[int, int] = {}
        self.packed: list[bytes] = []

    def number(self, source: Source | None) -> int:
        if source is None:
            return 0
        # Equal loops behind each other are two.
        if id(source) not in self._numbers:
            within = self.number(source.within)
            texts = (
                self._texts.setdefault(text, len(self._texts))
                for text in (source.text, source.reason)
            )
            self.packed.append(_SOURCE.pack(within, *texts))
            self._numbers[id(source)] = len(self.packed)
        return self._numbers[id(source)]


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
    workspace, constants, text_bytes, name_bytes, other_zero, sources, allocations = header[11:]
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
    sizes = (
        *(8 * (inputs + outputs), name_bytes, 12 * lines, _SOURCE.size * sources),
        *(_ALLOCATION.size * allocations, text_bytes, constants, word * lines),
    )
    ports_, name_, notes, sources_, allocations_, texts_, constants_, words = _parts(data, sizes)
    ports = struct.unpack(f"<{inputs + outputs}Q", ports_)
    names = list(_texts(texts_, texts))
    if len(names) != texts or names[:1] != [""]:
        raise ProgramError("its texts do not fill their part")
    try:
        name = name_.decode()
    except UnicodeDecodeError:
        raise ProgramError("the name of its machine is not UTF-8") from None
    numbers = [*struct.iter_unpack("<3I", notes)]
    try:
        loops: list[Source | None] = [None]
        for within, text, why in _SOURCE.iter_unpack(sources_):
            loops.append(Source(names[text], loops[within], names[why]))
        about = [(names[note], names[label], loops[source]) for label, note, source in numbers]
        kept = [
            Allocation(names[text], address, size, first, last)
            for address, size, text, first, last, _ in _ALLOCATION.iter_unpack(allocations_)
        ]
    except IndexError:
        raise ProgramError("its notes are not those of its lines") from None
    if any(it.first > it.last or it.last >= lines for it in kept):
        raise ProgramError("it has no lines for what it allocates")
    found = []
    for index in range(lines):
        try:
            line = decode(machine, words[word * index : word * (index + 1)])
        except EncodingError as error:
            raise ProgramError(f"line {index}: {error}") from None
        found.append(Line(line.instruction, line.fields, *about[index]))
    return Program(
        *(name, tuple(found), constants_, workspace, ports[:inputs], ports[inputs:], tuple(kept))
    )


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
