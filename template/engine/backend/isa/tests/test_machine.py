# SPDX-License-Identifier: Apache-2.0
"""The machine of this backend: its table tells the truth, and programs survive their file."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from backend.engine.backend.isa import cases
from backend.engine.backend.isa.encoding import EncodingError, decode, encode, same
from backend.engine.backend.isa.faults import faults_of
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.machine import Line, Source
from backend.engine.backend.isa.page import page
from backend.engine.backend.isa.program import Allocation, Program, ProgramError, read, write
from backend.engine.backend.isa.text import assembled, disassembled, line_of, text_of

MACHINE = load()
each_instruction = pytest.mark.parametrize("name", MACHINE.instructions)


def random_cases(name, count):
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return [cases.random_case(MACHINE, name, random) for _ in range(count)], random


def equal(one, other):
    return one.instruction == other.instruction and all(
        same(value, other.fields[name]) for name, value in one.fields.items()
    )


@each_instruction
def test_an_instruction_does_what_the_table_says(name):
    found, random = random_cases(name, 5)
    assert [fault for case in found for fault in faults_of(case, random)] == []


@pytest.mark.thorough
@each_instruction
def test_an_instruction_does_what_the_table_says_in_many_cases(name):
    found, random = random_cases(name, 300)
    assert [fault for case in found for fault in faults_of(case, random)] == []


@each_instruction
def test_a_line_survives_its_word_and_its_text(name):
    for case in random_cases(name, 10)[0]:
        word = encode(MACHINE, case.line)
        assert len(word) == MACHINE.word
        line = decode(MACHINE, word)
        assert equal(line, case.line), (line, case.line)
        assert equal(line_of(MACHINE, text_of(MACHINE, line)), line)


def test_words_are_refused_or_are_those_of_their_line():
    random = np.random.default_rng(0)
    opcodes = [it.opcode for it in MACHINE.instructions.values()]
    taken = 0
    for _ in range(500):
        # Words without their upper bits are often instructions.
        word = bytearray(int(random.integers(2, MACHINE.word)))
        word[0] = random.choice(opcodes)
        word[1:] = random.bytes(len(word) - 1)
        whole = bytes(word) + bytes(MACHINE.word - len(word))
        try:
            line = decode(MACHINE, whole)
        except EncodingError as error:
            assert len(str(error)) > 10
            continue
        taken += 1
        assert encode(MACHINE, line) == whole
    assert taken > 5


def a_program():
    lines = []
    outer = Source("for i in 4:")
    inner = Source("a[i] = b[i]", outer, "it is slow")
    for number, name in enumerate(MACHINE.instructions):
        line = random_cases(name, 1)[0][0].line
        label = "conv \N{GREEK SMALL LETTER ALPHA}" if number % 2 else ""
        lines.append(
            Line(
                name,
                decode(MACHINE, encode(MACHINE, line)).fields,
                f"kernel of {name}",
                label,
                (None, outer, inner)[number % 3],
            )
        )
    kept = Allocation("a", MACHINE.base(MACHINE.memories[-1].name) + 64, 16, 1, 2)
    return Program(MACHINE.name, tuple(lines), b"weights", 100, (4, 8), (16,), (kept,))


def test_a_program_survives_its_file_and_its_text():
    program = a_program()
    data = write(MACHINE, program)
    found = read(MACHINE, data)
    assert write(MACHINE, found) == data
    assert found.constants == b"weights" and found.workspace == 100
    assert (found.machine, found.inputs, found.outputs) == (MACHINE.name, (4, 8), (16,))
    assert [line.note for line in found.lines] == [line.note for line in program.lines]
    assert [line.label for line in found.lines] == [line.label for line in program.lines]
    assert [line.source for line in found.lines] == [line.source for line in program.lines]
    assert found.allocations == program.allocations
    again = assembled(MACHINE, disassembled(MACHINE, found.lines))
    bare = replace(program, lines=tuple(again), allocations=())
    smaller = write(MACHINE, bare)
    assert read(MACHINE, smaller).allocations == () and len(smaller) < len(data)
    lines = tuple(replace(line, source=None) for line in found.lines)
    assert write(MACHINE, replace(bare, lines=lines)) == smaller


def test_equal_loops_behind_each_other_stay_two():
    line = random_cases(next(iter(MACHINE.instructions)), 1)[0][0].line
    one, other = Source("for i in 4:"), Source("for i in 4:")
    lines = tuple(replace(line, source=source) for source in (one, one, other))
    found = read(MACHINE, write(MACHINE, Program(MACHINE.name, lines))).lines
    assert found[0].source is found[1].source is not found[2].source == one


def test_the_layout_of_a_file_stays():
    name = next(iter(MACHINE.instructions))
    line = random_cases(name, 1)[0][0].line
    source = Source("s", Source("o"), "r")
    lines = (Line(name, line.fields, "n", "l", source),)
    kept = (Allocation("n", 5 << 40, 9, 0, 0),)
    data = write(MACHINE, Program("abc", lines, b"c" * 65, 7, (1,), (), kept))
    assert data[:8] == b"NPUISA1\0"
    assert struct.unpack_from("<2I", data, 8) == (1, MACHINE.word)
    assert struct.unpack_from("<2I", data, 24) == (zlib.crc32(data[32:]), 0)
    assert struct.unpack_from("<Q4I", data, 32) == (len(data), 1, 6, 1, 0)
    assert struct.unpack_from("<3Q4I", data, 56) == (7, 65, 29, 3, 0, 2, 1)
    assert struct.unpack_from("<Q", data, 128) == (1,)
    assert data[192:195] == b"abc"
    assert struct.unpack_from("<3I", data, 256) == (1, 2, 2)
    assert struct.unpack_from("<6I", data, 320) == (0, 3, 0, 1, 4, 5)
    assert struct.unpack_from("<2Q4I", data, 384) == (5 << 40, 9, 2, 0, 0, 0)
    assert data[448:477] == bytes(4) + b"".join(b"\1\0\0\0" + b"lnosr"[i : i + 1] for i in range(5))
    assert data[512:577] == b"c" * 65
    assert data[640 : 640 + MACHINE.word] == encode(MACHINE, line)


def sealed(data):
    """Return a file whose checksum is that of its bytes."""
    return data[:24] + struct.pack("<I", zlib.crc32(data[32:])) + data[28:]


def with_number(data, at, number, form="<I"):
    return data[:at] + struct.pack(form, number) + data[at + struct.calcsize(form) :]


def with_bit_behind_last_line(data):
    """Set the highest bit of the last word, which no field has."""
    end = len(data) - -len(MACHINE.instructions) * MACHINE.word % 64
    return data[: end - 1] + b"\x80" + data[end:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: b"", "it does not begin with NPUISA1"),
        (lambda data: b"NPUISA2" + data[7:], "it does not begin with NPUISA1"),
        (lambda data: with_number(data, 8, 2), "its format has version 2; supported is 1"),
        (lambda data: data[:-1], "bytes, but should have "),
        (lambda data: data + b"\0", "bytes, but should have "),
        (lambda data: data[:-70] + b"\7" + data[-69:], "it is damaged: its checksum is another"),
        (lambda data: with_number(data, 28, 1), "it is damaged: its checksum is another"),
        (lambda data: with_number(data, 16, 1, "<Q"), "compile it again"),
        (lambda data: with_number(data, 12, 4), "compile it again"),
        (lambda data: sealed(with_number(data, 40, 1 << 31)), "its parts do not fit into it"),
        (lambda data: sealed(with_number(data, 40, 1)), "its parts do not fit into it"),
        (
            lambda data: sealed(with_number(data + bytes(64), 32, len(data) + 64, "<Q")),
            "its parts do not fill it",
        ),
        (lambda data: sealed(with_number(data, 44, 2)), "its texts do not fill their part"),
        (lambda data: sealed(with_number(data, 44, 99)), "its texts do not fill their part"),
        (lambda data: sealed(with_number(data, 256, 77)), "its notes are not those of its lines"),
        (lambda data: sealed(with_number(data, 264, 3)), "its notes are not those of its lines"),
        (
            lambda data: sealed(data[:192] + b"\xff" + data[193:]),
            "name of its machine is not UTF-8",
        ),
        (
            lambda data: sealed(with_bit_behind_last_line(data)),
            f"line {len(MACHINE.instructions) - 1}: ",
        ),
    ],
)
def test_a_file_that_is_no_program_is_refused(change, sentence):
    with pytest.raises(ProgramError) as caught:
        read(MACHINE, change(write(MACHINE, a_program())))
    assert sentence in str(caught.value)


def test_damaged_files_are_refused_and_nothing_else():
    random = np.random.default_rng(0)
    data = write(MACHINE, a_program())
    taken = 0
    for _ in range(300):
        changed = bytearray(data)
        for place in random.integers(32, len(data), size=int(random.integers(1, 4))):
            changed[place] = random.integers(256)
        try:
            program = read(MACHINE, sealed(bytes(changed)))
        except ProgramError as error:
            assert len(str(error)) > 10
        else:
            taken += 1
            assert write(MACHINE, program)
    assert taken > 5


def test_a_line_without_a_word_is_named():
    line = Line("no_such", {})
    sentence = f"^line 0: 'no_such' is no instruction of '{MACHINE.name}'$"
    with pytest.raises(EncodingError, match=sentence):
        write(MACHINE, Program(MACHINE.name, (line,)))


def test_the_page_has_each_instruction():
    text = page(MACHINE)
    for it in MACHINE.instructions.values():
        assert f"\n### {it.name}\n\n{it.about}" in text
