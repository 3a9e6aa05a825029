# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of tables: what a table must meet, and what is made of it."""

import textwrap

import numpy as np
import pytest

from backend.engine.backend.isa import cases
from backend.engine.backend.isa.encoding import EncodingError, decode, encode, fingerprint
from backend.engine.backend.isa.expressions import read, resolved
from backend.engine.backend.isa.faults import faults_of
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.page import page
from backend.engine.backend.isa.rules import TableError
from backend.engine.backend.isa.text import assembled, line_of, text_of
from backend.engine.isa import (
    Address,
    Box,
    Choice,
    Engine,
    Float,
    Machine,
    Memory,
    Number,
    Place,
    Register,
)


def toy(**options):
    """Return a machine with memories and engines, but no instruction."""
    given = {
        "name": "toy",
        "word": 16,
        "memories": (Memory("main", 0), Memory("near", 1024)),
        "engines": (Engine("control"), Engine("mover", {"": 8}, "byte")),
        "registers": 8,
    }
    return Machine(**(given | options))


COPY = {
    "target": Address("near"),
    "source": Address("main", "near"),
    "count": Number(8, least=1),
    "distance": Number(8, signed=True),
    "mode": Choice("set", "flip"),
}
READ = Box("source", "4", (("count", "distance"),))
WRITTEN = Box("target", "4 * count", when="count > 0")
CYCLES = "1 + ceil_div(4 * count, 8)"


def copy(s, f):
    """Copy groups of four bytes."""
    data = s.read(f.source, "u8", (f.count, 4), (f.distance,))
    s.write(f.target, "u8", 255 - data if f.mode == "flip" else data)


def with_copy(oracle=copy, machine=None, **options):
    """Return a machine with one instruction."""
    given = {"reads": [READ], "writes": [WRITTEN], "cycles": CYCLES, "work": "4 * count"}
    machine = machine or toy()
    machine.instruction(5, "mover", COPY, **(given | options))(oracle)
    machine.check()
    return machine


def all_faults(machine, name="copy", count=60):
    random = np.random.default_rng(0)
    return {
        fault
        for _ in range(count)
        for fault in faults_of(cases.random_case(machine, name, random), random)
    }


def test_a_word_has_the_opcode_and_the_fields_from_its_lowest_bit_on():
    machine = with_copy()
    values = {"target": Place(3, 8), "source": Place(2, -1), "count": 7, "distance": -2}
    line = line_of(machine, "copy target=r3+8 source=r2-1 count=7 distance=-2 mode=flip")
    assert line.fields == {**values, "mode": "flip"}
    expected = 5 | 3 << 8 | 8 << 11 | 2 << 43 | 0xFFFFFFFF << 46 | 7 << 78 | 0xFE << 86 | 1 << 94
    word = encode(machine, line)
    assert word == expected.to_bytes(16, "little")
    assert decode(machine, word) == line
    assert text_of(machine, line) == "copy target=r3+8 source=r2-1 count=7 distance=-2 mode=flip"
    assert line_of(machine, "copy").fields["count"] == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("paste", "line 1: 'paste' is no instruction of 'toy', which has copy"),
        ("copy count=0", "line 1: copy: count is 0, not from 1 to 255"),
        ("copy count=x", "line 1: copy: count is 'x', not an integer"),
        ("copy count=2 count=3", "line 1: copy: count is there twice"),
        ("copy size=2", "line 1: copy: 'size=2' is no field and its value; fields are: target, "),
        ("# Nothing.\n\ncopy mode=half", "line 3: copy: mode is 'half', not one of set, flip"),
        ("copy target=r8", "line 1: copy: target is Place(register=8, offset=0), not a register: "),
        ("copy target=near", "line 1: copy: target is 'near', not of the form rN, rN+OFFSET or "),
        ("copy target=r1+3000000000", "its offset is not from -2147483648 to 2147483647"),
    ],
)
def test_an_assembler_says_what_is_wrong_and_where(text, sentence):
    with pytest.raises(EncodingError) as caught:
        assembled(with_copy(), text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (4, "there is no instruction with opcode 4"),
        (5, "copy: count is 0, not from 1 to 255"),
        (5 | 1 << 78 | 1 << 95, "copy: bits from 95 on are not 0"),
        (5 | 1 << 78 | 1 << 127, "copy: bits from 95 on are not 0"),
    ],
)
def test_a_word_of_no_instruction_is_refused(word, sentence):
    with pytest.raises(EncodingError, match=f"^{sentence}$"):
        decode(with_copy(), word.to_bytes(16, "little"))


def kinds(s, f):
    """Have fields of all other kinds."""


@pytest.mark.parametrize(
    ("bits", "sentence"),
    [
        (7, "kinds: to is 7, not a register: they are from 0 to 4"),
        (3 << 3, "kinds: kind is 3, but only 3 choices have a number, from 0"),
    ],
)
def test_what_a_register_or_a_choice_does_not_have_is_refused(bits, sentence):
    machine = toy(registers=5)
    fields = {"to": Register(), "kind": Choice("a", "b", "c"), "value": Float()}
    machine.instruction(1, "control", fields)(kinds)
    line = line_of(machine, "kinds to=r4 kind=c value=-1.5e-3")
    assert decode(machine, encode(machine, line)) == line
    assert line_of(machine, text_of(machine, line)) == line
    with pytest.raises(EncodingError, match=sentence):
        decode(machine, (1 | bits << 8).to_bytes(16, "little"))


def test_a_condition_of_fields_is_told_as_the_vendor_wrote_it():
    machine = with_copy(where=["mode == 'set' or distance % 4 == 0", "mode in ('set', 'flip')"])
    assert machine.instructions["copy"].where[0] == "mode == 0 or distance % 4 == 0"
    sentence = (
        "line 1: copy needs mode == 'set' or distance % 4 == 0, but distance is 3, mode is flip"
    )
    with pytest.raises(EncodingError, match=f"^{sentence}$"):
        assembled(machine, "copy mode=flip distance=3")
    word = bytearray(encode(machine, line_of(machine, "copy distance=3")))
    word[94 // 8] |= 1 << 94 % 8
    with pytest.raises(EncodingError, match="^copy needs mode == 'set' or"):
        decode(machine, bytes(word))


def test_expressions_are_integers():
    expression = read("-ceil_div(a, 4) if not a % 3 == 1 else max(size(t), a // 2)")
    assert expression.names == {"a"} and expression.sizes == {"t"}
    assert [expression.value({"a": a}, {"t": 2}) for a in (7, 6, -9, 4)] == [3, -2, 2, 2]
    assert resolved("a not in ('x', 'z') and b == 2", {"a": ["x", "y", "z"]}) == (
        "not (a == 0 or a == 2) and b == 2"
    )


def without_about(s, f):
    pass


def one_parameter(s):
    """Forget the fields."""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cycles": "count +"}, "instruction 'copy': 'count +' is not an expression"),
        ({"cycles": "count ** 2"}, "instruction 'copy': 'count ** 2' is not arithmetic of fields"),
        ({"cycles": "counts"}, "'counts' names 'counts', which is no field of numbers"),
        ({"cycles": "target"}, "'target' names 'target', which is no field of numbers"),
        ({"cycles": "size(mode)"}, "asks for the size of 'mode', which is no field of types"),
        ({"cycles": 4}, "4 must be an expression, a text"),
        ({"where": ["mode == 'half'"]}, "'mode' is never 'half', only set, flip"),
        (
            {"where": ["count == 'set'"]},
            "'count' is compared with 'set', but is no choice of names",
        ),
        ({"where": ["'set' == mode"]}, "'set' can only be compared with a field"),
        ({"reads": [Box("count", "4")]}, "a box begins at 'count', which is no address"),
        ({"type": "count"}, "its type 'count' is no field with a choice"),
        ({"takes": "4"}, "instruction 'copy': there is no option 'takes'"),
        ({"oracle": without_about}, "instruction 'without_about' has no line of documentation"),
        ({"oracle": one_parameter}, "its oracle has two parameters, the state and the fields"),
        (
            {"machine": toy(word=11)},
            "has 95 bits with its opcode's 8; a word has 88: widen words or",
        ),
        (
            {"machine": toy(engines=(Engine("control"), Engine("mover")))},
            "has work, but its engine 'mover' no peak for all types",
        ),
        (
            {
                "machine": toy(engines=(Engine("control"), Engine("mover", {"set": 1}))),
                "type": "mode",
            },
            "its engine 'mover' has no peak for flip",
        ),
        (
            {"machine": toy(engines=(Engine("control"),))},
            "there is no engine 'mover', only control",
        ),
        ({"machine": with_copy()}, "instruction 'copy' has opcode 5, as 'copy' has"),
        (
            {"machine": toy(memories=(Memory("main", 0),))},
            "instruction 'copy', field 'target': no memory 'near', only main",
        ),
        ({"machine": toy(memories=(Memory("main", 9), Memory("near", 9)))}, "it has none"),
        ({"machine": toy(memories=(Memory("main", 0), Memory("near", 0)))}, "it has main, near"),
        ({"machine": toy(name="Toy")}, "machine 'Toy': names begin with a small letter"),
        ({"machine": toy(registers=1)}, "has 1 registers; supported are 2 to 256"),
        ({"machine": toy(sync="never")}, "sync is 'never'; supported are scoreboard, explicit"),
        ({"machine": toy(sync="explicit")}, "but no instruction that waits for engines"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(options, sentence):
    with pytest.raises(TableError) as caught:
        with_copy(**options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("Value", Number(8), "field 'Value': names begin with a small letter"),
        ("while", Number(8), "'while' has a meaning in Python, C++ or expressions"),
        ("template", Number(8), "'template' has a meaning in Python, C++ or expressions"),
        ("value", Number(65), "has 65 bits; a number has 1 to 64, 63 if it is not signed"),
        ("value", Number(64), "has 64 bits; a number has 1 to 64, 63 if it is not signed"),
        ("value", Number(4, least=3, most=16), "is from 3 to 16, but its bits hold 0 to 15"),
        ("value", Choice(), "has no names to choose from"),
        ("value", Choice("a", "a"), "has the name 'a' twice"),
        ("value", Choice("a", "-"), "'-' is no name of small letters, digits and _"),
        ("value", Address(), "names no memory; there are main, near"),
        ("value", 8, "is 8, no Number, Choice, Float, Register or Address"),
        ("value", Address("far"), "no memory 'far', only main, near"),
    ],
)
def test_a_field_that_cannot_be_is_refused(name, kind, sentence):
    with pytest.raises(TableError) as caught:
        toy().instruction(1, "control", {name: kind})(kinds)
    assert str(caught.value).startswith(f"instruction 'kinds', field '{name}'")
    assert sentence in str(caught.value)


def test_another_encoding_has_another_fingerprint():
    first = fingerprint(with_copy())
    assert first == fingerprint(with_copy(cycles="1 + count"))
    narrow = toy(memories=(Memory("main", 0), Memory("near", 512)))
    others = [
        with_copy(machine=narrow),
        with_copy(machine=toy(registers=4)),
        with_copy(where=["count < 9"]),
    ]
    assert len({first, *map(fingerprint, others)}) == 4


# ---- Random instructions ------------------------------------------------------------------------


def forgetful(s, f):
    """Leave the last group as it was."""
    data = s.read(f.source, "u8", (f.count, 4), (f.distance,))
    s.write(f.target, "u8", data[:-1])


def spilling(s, f):
    """Write a byte too much."""
    copy(s, f)
    if f.target % 1024 + 4 * f.count < 1024:
        s.write(f.target + 4 * f.count, "u8", np.array(1))


def failing(s, f):
    """Divide by 0."""
    _ = f.count // 0


def test_a_table_that_tells_the_truth_has_no_faults():
    machine = with_copy()
    assert all_faults(machine) == set()
    random = np.random.default_rng(1)
    found = [cases.random_case(machine, "copy", random) for _ in range(200)]
    lines = [case.line.fields for case in found]
    assert {line["mode"] for line in lines} == {"set", "flip"}
    assert min(line["distance"] for line in lines) < 0 < max(line["distance"] for line in lines)
    assert len({line["count"] for line in lines}) > 10
    read = [case.area(READ) for case in found]
    assert {area.memory for area in read} >= {2, 32, 33, 34}
    written = [case.area(WRITTEN) for case in found]
    assert {area.memory for area in written} == {2}
    assert all(
        len(area.places) == 4 * line["count"] for area, line in zip(written, lines, strict=True)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reads": [Box("source", "3", READ.dims)]}, "depends on bytes in no box that it reads"),
        ({"reads": []}, "depends on bytes in no box that it reads"),
        ({"reads": []}, "its oracle is refused, so no box is at source: line 0: "),
        ({"writes": [Box("target", "4 * count - 1")]}, "of near, in no box that it writes"),
        ({"writes": []}, "in no box that it writes"),
        (
            {"writes": [Box("target", "4")]},
            "its oracle is refused, so a box is too small: line 0: ",
        ),
        ({"writes": [Box("target", "4 * count + 1")]}, "or is not written"),
        ({"oracle": forgetful}, "or is not written"),
        ({"oracle": spilling}, "in no box that it writes"),
        ({"oracle": failing}, "failing: its oracle fails with ZeroDivisionError: "),
        ({"cycles": "count // 3"}, "but the peak of 'mover' is 8 a cycle"),
        ({"cycles": "0"}, "copy takes 0 cycles; it must be 1 or more"),
        ({"work": "5 * count + 8"}, "but the peak of 'mover' is 8 a cycle"),
    ],
)
def test_what_a_table_says_wrongly_is_found(options, words):
    name = options["oracle"].__name__ if "oracle" in options else "copy"
    found = all_faults(with_copy(**options), name)
    assert found and any(words in fault for fault in found), found


HALF = {
    **{name: Address("near") for name in ("target", "a")},
    "half": Float(),
    **{f"count{i}": Number(2, least=1) for i in range(3)},
    **{f"{name}{i}": Number(8, signed=True) for name in ("target", "a") for i in range(3)},
}


def limited(s, f):
    """Limit elements from both sides."""
    counts = (f.count0, f.count1, f.count2)
    a = s.read(f.a, "f32", counts, (f.a0, f.a1, f.a2))
    result = np.minimum(np.maximum(a, -np.float32(f.half)), np.float32(f.half))
    s.write(f.target, "f32", result, (f.target0, f.target1, f.target2))


def with_meaning(means, fields=HALF):
    machine = toy(word=32)

    def box(name):
        dims = tuple((f"count{i}", f"{name}{i}") for i in range(3))
        return Box(name, "4", dims if fields is HALF else ())

    options = {"reads": [box("a")], "writes": [box("target")], "means": means}
    machine.instruction(6, "mover", fields, **options)(limited)
    return machine


def test_what_an_instruction_means_is_what_it_computes():
    machine = with_meaning("min(max(a, sub(0, half)), half)")
    assert all_faults(machine, "limited") == set()
    assert "For each element: `min(max(a, sub(0, half)), half)`." in page(machine)
    means = "max(min(a, half), half)"
    assert all_faults(with_meaning(means), "limited") == {
        f"limited does not compute what it means, '{means}'"
    }


def test_a_cell_of_a_page_may_have_bars():
    def absolute(s, f):
        """Compute |a|."""

    text = page(with_copy(oracle=absolute))
    assert "| `mover` | Compute \\|a\\|. |" in text and "\n\nCompute |a|.\n" in text


@pytest.mark.parametrize(
    ("means", "fields", "sentence"),
    [
        ("a", HALF, "'a' computes nothing; a meaning is an operation or a function"),
        ("min(a", HALF, "'min(a' is no expression"),
        ("least(a, half)", HALF, "'least(a, half)' has 'least', which is none of add, sub, "),
        ("min(a)", HALF, "'min(a)' gives min 1 operands; it has 2"),
        ("min(a, b and c)", HALF, "has 'b and c', which is no call, field or number"),
        ("min(a, count0)", HALF, "names 'count0', which is no address and no float"),
        ("min(a, half)", {**HALF, "mode": Choice("x")}, "does not say what 'mode' is"),
        (
            "min(a, half)",
            {name: kind for name, kind in HALF.items() if name != "a2"},
            "what means 'min(a, half)' has a field 'a2', too",
        ),
    ],
)
def test_a_meaning_that_the_compiler_cannot_use_is_refused(means, fields, sentence):
    with pytest.raises(TableError) as caught:
        with_meaning(means, fields)
    assert str(caught.value).startswith("instruction 'limited': ") and sentence in str(caught.value)


def test_conditions_that_nothing_meets_are_an_error():
    machine = with_copy(where=["count < 1"])
    with pytest.raises(TableError, match="^instruction 'copy': no random values fit: copy needs "):
        cases.random_case(machine, "copy", np.random.default_rng(0))


# ---- Files --------------------------------------------------------------------------------------

TABLE = """
from {package}engine.isa import Engine, Machine, Memory
from .beside import WORD

MACHINE = Machine("small", WORD, (Memory("main", 0),), (Engine("control"),))


@MACHINE.instruction(0, "control", {{}})
def nop(s, f):
    {about}
"""


def written(tmp_path, text):
    (tmp_path / "beside.py").write_text("WORD = 8\n")
    (tmp_path / "isa.py").write_text(textwrap.dedent(text))
    return tmp_path / "isa.py"


@pytest.mark.parametrize("package", ["tvm_absent_npu.", ".."])
def test_a_table_is_loaded_from_its_file(tmp_path, package):
    machine = load(written(tmp_path, TABLE.format(package=package, about='"""Do nothing."""')))
    assert isinstance(machine, Machine)
    assert (machine.name, machine.word, [*machine.instructions]) == ("small", 8, ["nop"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            TABLE.format(package="..", about="pass"),
            ", line 8: instruction 'nop' has no line of doc",
        ),
        (
            "import math\nMACHINE = math.nothing",
            ", line 2 fails: AttributeError: module 'math' has",
        ),
        ("MACHINE = (", ", line 1 fails: SyntaxError: "),
        ("MACHINES = 1", " has no MACHINE, which is a Machine of engine.isa"),
        (
            'from ..engine.isa import Machine\nMACHINE = Machine("small", 8, (), ())',
            ": machine 'small' has no engine; the first one fetches instructions",
        ),
    ],
)
def test_a_file_without_a_table_is_refused_with_its_line(tmp_path, text, sentence):
    path = written(tmp_path, text)
    with pytest.raises(TableError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}{sentence}")
    with pytest.raises(TableError, match="^there is no .*none.py, the table of the machine$"):
        load(tmp_path / "none.py")


def test_the_page_shows_all_of_a_table():
    text = page(with_copy(where=["mode == 'set' or count < 9"], waits="-1"))
    for part in (
        "# The instruction set of toy\n",
        "| 2 | `near` | 1024 |",
        "| 1 | `mover` | 8 bytes per cycle |",
        "| 5 | [`copy`](#copy) | `mover` | Copy groups of four bytes. |",
        "Reads `4` bytes at `source`, `count` times `distance` apart.",
        "Writes `4 * count` bytes at `target`, if `count > 0`.",
        "Only where `mode == 'set' or count < 9`.",
        "Waits for the engines of the bits `-1`.",
        "Cycles: `1 + ceil_div(4 * count, 8)`. Work: `4 * count` (byte).",
        "| 8 to 42 | `target` | an address in `near`: a register, and an offset of 32 bits |",
        "| 78 to 85 | `count` | 1 to 255 |",
        "| 94 to 94 | `mode` | 0 `set`, 1 `flip` |",
    ):
        assert part in text, part
