# SPDX-License-Identifier: Apache-2.0
"""The machine of this backend: its table tells the truth, and programs survive their file."""

import struct
import zlib

import numpy as np
import pytest

from backend.engine.backend.isa import cases
from backend.engine.backend.isa.encoding import EncodingError, decode, encode, same
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.machine import Line
from backend.engine.backend.isa.page import page
from backend.engine.backend.isa.program import Program, ProgramError, read, write
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
    assert [fault for case in found for fault in cases.faults(case, random)] == []


@pytest.mark.thorough
@each_instruction
def test_an_instruction_does_what_the_table_says_in_many_cases(name):
    found, random = random_cases(name, 300)
    assert [fault for case in found for fault in cases.faults(case, random)] == []


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
    for number, name in enumerate(MACHINE.instructions):
        line = random_cases(name, 1)[0][0].line
        label = "conv \N{GREEK SMALL LETTER ALPHA}" if number % 2 else ""
        lines.append(
            Line(name, decode(MACHINE, encode(MACHINE, line)).fields, f"for {name}", label)
        )
    return Program(MACHINE.name, tuple(lines), b"weights", 100, (4, 8), (16,))


def test_a_program_survives_its_file_and_its_text():
    program = a_program()
    data = write(MACHINE, program)
    found = read(MACHINE, data)
    assert write(MACHINE, found) == data
    assert found.constants == b"weights" and found.workspace == 100
    assert (found.machine, found.inputs, found.outputs) == (MACHINE.name, (4, 8), (16,))
    assert [line.note for line in found.lines] == [line.note for line in program.lines]
    assert [line.label for line in found.lines] == [line.label for line in program.lines]
    again = assembled(MACHINE, disassembled(MACHINE, found.lines))
    assert (
        write(MACHINE, Program(MACHINE.name, tuple(again), b"weights", 100, (4, 8), (16,))) == data
    )


def test_the_layout_of_a_file_stays():
    name = next(iter(MACHINE.instructions))
    line = random_cases(name, 1)[0][0].line
    data = write(
        MACHINE, Program("abc", (Line(name, line.fields, "n", "l"),), b"c" * 65, 7, (1,), ())
    )
    assert data[:8] == b"NPUISA1\0"
    assert struct.unpack_from("<2I", data, 8) == (1, MACHINE.word)
    assert struct.unpack_from("<2I", data, 24) == (zlib.crc32(data[32:]), 0)
    assert struct.unpack_from("<Q4I", data, 32) == (len(data), 1, 3, 1, 0)
    assert struct.unpack_from("<3Q2I", data, 56) == (7, 65, 14, 3, 0)
    assert struct.unpack_from("<Q", data, 128) == (1,)
    assert data[192:195] == b"abc"
    assert struct.unpack_from("<2I", data, 256) == (1, 2)
    assert data[320:334] == b"\0\0\0\0" + b"\1\0\0\0l" + b"\1\0\0\0n"
    assert data[384:449] == b"c" * 65
    assert data[512 : 512 + MACHINE.word] == encode(MACHINE, line)


def sealed(data):
    """Return a file whose checksum is that of its bytes."""
    return data[:24] + struct.pack("<I", zlib.crc32(data[32:])) + data[28:]


def with_number(data, at, number, form="<I"):
    return data[:at] + struct.pack(form, number) + data[at + struct.calcsize(form) :]


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
        (lambda data: sealed(with_number(data, 44, 99)), "its notes are not those of its lines"),
        (lambda data: sealed(with_number(data, 256, 77)), "its notes are not those of its lines"),
        (
            lambda data: sealed(data[:192] + b"\xff" + data[193:]),
            "name of its machine is not UTF-8",
        ),
        (
            lambda data: sealed(data[:-1] + b"\1"),
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
