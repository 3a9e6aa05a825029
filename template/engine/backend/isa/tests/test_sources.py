# SPDX-License-Identifier: Apache-2.0
"""What a program says of itself: the loops that lines were made of, and what lies where."""

import re

import isa_host
import numpy as np
import pytest

from backend.engine.backend.isa.compiler.compile import Settings, compile_region
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.machine import CONSTANTS, FIRST_PORT, SEGMENT_BITS, WORKSPACE
from backend.engine.backend.isa.oracle import State, execute, extent_of
from backend.engine.backend.isa.program import read, write

MACHINE = load()
ROWS, SUMS, COLUMNS = 1200, 40, 24


@pytest.fixture(scope="module")
def net():
    """A product, and rows of it, whose places are data: no vector instruction means that."""
    random = np.random.default_rng(0)
    net = isa_host.Net()
    one, other = (random.standard_normal(shape, "f4") for shape in ((ROWS, SUMS), (SUMS, COLUMNS)))
    product, places = one @ other, np.array([7, 1199, 0], "int32")
    options = {"transpose_a": False, "transpose_b": False, "a_zero_point": 0, "b_zero_point": 0}
    operands = [net.input(one), net.constant(other)]
    node = net.node("matmul", operands, product, label="product", **options)
    rows = product[places]
    options = {"axis": 0, "elementwise": False, "label": "rows"}
    net.output(net.node("gather", [node, net.input(places)], rows, **options), rows)
    # Its tiles alternate.
    net.output(net.step("relu", operands[:1], one, label="relu"), np.maximum(one, 0))
    return net


@pytest.fixture(scope="module")
def program(net):
    """Its program, as it comes from its file."""
    made = compile_region(net.region(), MACHINE, Settings()).program
    assert read(MACHINE, write(MACHINE, made)) == made
    return read(MACHINE, write(MACHINE, made))


def test_lines_have_the_loops_that_they_were_made_of(program):
    kernels = dict.fromkeys((line.label, line.note) for line in program.lines)
    assert [label for label, _ in kernels] == ["product", "rows", "relu", ""]
    if MACHINE.name == "example":
        products = [line.source.text for line in program.lines if line.instruction == "mm"]
        assert len(products) > 1
        for text in products:
            assert re.fullmatch(r"(for \w+ in \d+: )+.*\w+\.acc(_2)?\[.*\] = .*\]", text), text
    # Loops of tiles are around several nests.
    nests = [line.source for line in program.lines if line.label == "product" and line.source]
    around = {id(it.within): it.within for it in nests if it.within is not None}
    (loop,) = around.values()
    assert re.fullmatch(r"for \w+ in \d+:", loop.text) and loop.within is None
    assert len({id(it) for it in nests if it.within is loop}) > 2
    assert program.lines[-1].source is None


def test_scalar_code_has_its_reason(program):
    scalar = [line for line in program.lines if line.source is not None and line.source.reason]
    reasons = {line.label: line.source.reason for line in scalar}
    assert re.fullmatch("the index .* is not affine", reasons["rows"])
    assert MACHINE.name != "example" or list(reasons) == ["rows"]
    engines = {MACHINE.instructions[line.instruction].engine for line in scalar}
    assert engines == {MACHINE.engines[0].name}


def test_what_lines_touch_was_allocated_for_them(net, program):
    segments = {FIRST_PORT + i: bytearray(array.tobytes()) for i, array in enumerate(net.arrays)}
    first = FIRST_PORT + len(net.arrays)
    segments |= {first + i: bytearray(size) for i, size in enumerate(program.outputs)}
    segments |= {CONSTANTS: bytearray(program.constants), WORKSPACE: bytearray(program.workspace)}
    state = State(MACHINE, segments, len(net.arrays))
    covered = set()
    while not state.is_done:
        line = program.lines[state.line]
        known = MACHINE.instructions[line.instruction]
        for box in known.boxes:
            place = line.fields[box.address]
            address = state.registers[place.register] + place.offset
            extent = extent_of(box, known, line.fields, address)
            if extent is None or address >> SEGMENT_BITS in (CONSTANTS, *range(FIRST_PORT, 99)):
                continue
            around = [
                it
                for it in program.allocations
                if it.first <= state.line <= it.last
                and it.address <= extent[0]
                and extent[1] <= it.address + it.bytes
            ]
            assert len(around) == 1, (state.line, line, extent)
            covered.add(around[0])
        execute(state, line)
        state.line += 1
    assert {it for it in program.allocations if it.name != "tiles"} <= covered
    for i, expected in enumerate(net.expected):
        found = np.frombuffer(segments[first + i], "f4").reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_is_there_together_does_not_overlap(program):
    sizes = {memory.name: memory.bytes for memory in MACHINE.memories}
    names = {it.name for it in program.allocations}
    assert any(name.startswith("result of ") for name in names)
    for it in program.allocations:
        (memory,) = [
            memory
            for memory in MACHINE.memories
            if it.address >> SEGMENT_BITS
            in (MACHINE.base(memory.name) >> SEGMENT_BITS, WORKSPACE if memory.is_segmented else 0)
        ]
        end = (it.address & ((1 << SEGMENT_BITS) - 1)) + it.bytes
        assert end <= (sizes[memory.name] or program.workspace)
        for other in program.allocations:
            together = it.first <= other.last and other.first <= it.last
            overlap = (
                it.address < other.address + other.bytes and other.address < it.address + it.bytes
            )
            assert it is other or not (together and overlap), (it, other)
