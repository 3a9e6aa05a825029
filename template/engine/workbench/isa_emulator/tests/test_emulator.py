# SPDX-License-Identifier: Apache-2.0
"""The emulator of this backend's machine does what the oracles of its table say."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from backend.engine.backend.isa import cases, encoding
from backend.engine.backend.isa.kinds import Address, Float, Number, Register
from backend.engine.backend.isa.machine import CONSTANTS, SEGMENT_BITS, WORKSPACE, Line, Source
from backend.engine.backend.isa.operations import FUNCTIONS, REALS
from backend.engine.backend.isa.oracle import extent_of, value_of
from backend.engine.backend.isa.program import Allocation, Program, write
from backend.engine.backend.isa.text import disassembled, line_of, text_of
from backend.engine.workbench.isa_emulator.emulator import EmulatorError, Limits, own
from backend.engine.workbench.isa_emulator.judging import (
    Trial,
    difference,
    disagreement,
    ending,
    memories_of,
    random_trial,
)
from backend.engine.workbench.isa_emulator.times import times_of

EMULATOR = own()
MACHINE = EMULATOR.machine
END = ending(MACHINE)
each_instruction = pytest.mark.parametrize("name", MACHINE.instructions)
HANDED_OVER = [
    it.name for it in MACHINE.instructions.values() if it.engine != MACHINE.engines[0].name
]
"""The instructions that the first engine hands over to others."""
ORDERED = Limits(sync="scoreboard")
"""Random programs do not wait for engines."""


def random_of(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def is_exact(line):
    """Whether the oracle and the emulator compute the same bits."""
    instruction = MACHINE.instructions[line.instruction]
    means_reals = instruction.means and "type" not in instruction.fields
    return not means_reals and not any(
        value in (*REALS, *FUNCTIONS) for value in line.fields.values()
    )


def trials(seed, count, length=8):
    """Return random programs of exact instructions, with registers and memories."""
    random = np.random.default_rng(seed)
    found = []
    while len(found) < count:
        trial = random_trial(MACHINE, random, HANDED_OVER, length)
        lines = [line for line in trial.lines if is_exact(line)]
        found.append(replace(trial, lines=(*lines, END)))
    return found


def in_loops(trial, random):
    """Return a program whose lines are in two loops, which move its addresses."""
    steps = {
        name: int(random.integers(MACHINE.registers))
        if isinstance(kind, Register)
        else int(random.choice([0, 4, -4, 64, -128, 1 << 16]))
        for name, kind in MACHINE.instructions["next"].fields.items()
    }
    outer, inner, end = (
        Line("loop", {"count": int(random.integers(1, 4))}),
        Line("loop", {"count": 2}),
        Line("next", steps),
    )
    half = len(trial.lines) // 2
    lines = (outer, *trial.lines[:half], inner, *trial.lines[half:-1], end, end, END)
    return replace(trial, lines=lines)


def waiting():
    """Return a line that waits for all engines; None: there is none."""
    others = (1 << len(MACHINE.engines)) - 2
    for name, instruction in MACHINE.instructions.items():
        kinds = instruction.fields.values()
        if instruction.waits and kinds and all(isinstance(kind, Number) for kind in kinds):
            fields = {field: kind.range[1] for field, kind in instruction.fields.items()}
            if value_of(instruction.waits, instruction, fields) & others == others:
                return Line(name, fields)
    return None


def is_text_of(line, written):
    return encoding.encode(MACHINE, line_of(MACHINE, written)) == encoding.encode(MACHINE, line)


def same(trial, one, other):
    return (
        memories_of(MACHINE, one, trial.inputs) == memories_of(MACHINE, other, trial.inputs)
        and one.registers == other.registers
    )


# ---- Instructions -------------------------------------------------------------------------------


def check(name, count):
    random = random_of(name)
    found = [cases.random_case(MACHINE, name, random) for _ in range(count)]
    wrong = [(text_of(MACHINE, it.line), disagreement(EMULATOR, it)) for it in found]
    assert [it for it in wrong if it[1]] == []


@each_instruction
def test_an_instruction_does_what_its_oracle_does(name):
    check(name, 10)


@pytest.mark.thorough
@each_instruction
def test_an_instruction_does_what_its_oracle_does_in_many_cases(name):
    check(name, 300)


@pytest.mark.parametrize("name", [it.name for it in MACHINE.instructions.values() if it.writes])
def test_an_oracle_that_computes_something_else_is_caught(name):
    instruction, random = MACHINE.instructions[name], random_of(name)

    def caught(case):
        def inverted(state, fields):
            instruction.oracle(state, fields)
            for area in case.areas(instruction.writes):
                np.frombuffer(state.memories[area.memory], np.uint8)[area.places] ^= 255

        others = {**MACHINE.instructions, name: replace(instruction, oracle=inverted)}
        found = disagreement(EMULATOR, replace(case, machine=replace(MACHINE, instructions=others)))
        assert not found or " differ, the first is " in found, found
        return bool(found)

    # Integers that are read as reals, and reals at odd addresses, may be too large to compare.
    assert sum(caught(cases.random_case(MACHINE, name, random)) for _ in range(30)) >= 6


def swappable(instruction):
    """Return two fields of the same kind on which boxes depend; None: there are none."""
    fields = [
        (name, kind)
        for box in instruction.boxes
        for pair in box.dims
        for name in pair
        if isinstance(kind := instruction.fields.get(name), Number)
    ]
    for name, kind in fields:
        for other, same_kind in fields:
            if name != other and kind == same_kind:
                return name, other
    return None


def test_an_encoder_that_swaps_two_fields_is_caught(monkeypatch):
    found = [(name, pair) for name, it in MACHINE.instructions.items() if (pair := swappable(it))]
    if not found:
        pytest.skip("the machine has no instruction with two fields of the same kind")
    name, (one, other) = found[0]
    slots = encoding.slots

    def swapped(machine, instruction):
        by_name = {slot.name: slot for slot in slots(machine, instruction)}
        if instruction.name == name:
            lows = by_name[one].low, by_name[other].low
            by_name[one] = replace(by_name[one], low=lows[1])
            by_name[other] = replace(by_name[other], low=lows[0])
        return list(by_name.values())

    random = random_of(name)
    found = [cases.random_case(MACHINE, name, random) for _ in range(10)]
    monkeypatch.setattr(encoding, "slots", swapped)
    assert any(disagreement(EMULATOR, case) for case in found)


# ---- Programs -----------------------------------------------------------------------------------


def test_a_program_has_a_register_for_each_address():
    most = max(
        sum(isinstance(kind, Address) for kind in it.fields.values())
        for it in MACHINE.instructions.values()
    )
    for spare in range(2 * most):
        few = replace(MACHINE, registers=1 + most + spare)
        trial = random_trial(few, np.random.default_rng(spare), HANDED_OVER, 8)
        assert len(trial.registers) == few.registers


def check_programs(seed, count):
    random = np.random.default_rng(seed)
    refused = 0
    for trial in trials(seed, count):
        has_loops = {"loop", "next"} <= set(MACHINE.instructions) and random.random() < 0.7
        if has_loops:
            trial = in_loops(trial, random)
        expected = trial.expected()
        try:
            result = trial.run(EMULATOR, ORDERED)
        except EmulatorError as error:
            assert expected.refused, error
            refused += 1
            continue
        assert not expected.refused
        where = difference(trial, result, expected)
        assert not where, f"{where}, after the program\n{disassembled(MACHINE, trial.lines)}"
        assert result.registers == expected.registers
        for delay in range(3):
            delayed = trial.run(EMULATOR, Limits(delay=300, seed=delay, sync="scoreboard"))
            assert same(trial, delayed, result)
            assert delayed.cycles >= result.cycles
    assert refused < count


def test_programs_do_what_oracles_do_whatever_engines_take():
    check_programs(1, 20)


@pytest.mark.thorough
def test_many_programs_do_what_oracles_do_whatever_engines_take():
    check_programs(2, 300)


def test_without_an_order_delays_change_what_programs_do():
    differ = 0
    for trial in trials(3, 20):
        result = trial.run(EMULATOR, ORDERED)
        differ += any(
            not same(trial, trial.run(EMULATOR, Limits(delay=300, seed=seed, sync="none")), result)
            for seed in range(3)
        )
    if len({MACHINE.instructions[name].engine for name in HANDED_OVER}) > 1:
        assert differ


def test_what_lacks_a_wait_is_refused_and_what_does_not_needs_none():
    wait = waiting()
    if wait is None:
        pytest.skip("the machine has no instruction that waits for all engines")
    refused = 0
    for trial in trials(4, 25, 5):
        ordered = trial.run(EMULATOR, ORDERED)
        try:
            trial.run(EMULATOR, Limits(sync="explicit"))
        except EmulatorError as error:
            assert "and nothing in between waits for that engine" in str(error)
            assert "line" in str(error)
            refused += 1
        else:
            for seed in range(3):
                free = trial.run(EMULATOR, Limits(delay=300, seed=seed, sync="none"))
                assert same(trial, free, ordered)
        lines = [line for pair in zip(trial.lines, [wait] * 99, strict=False) for line in pair]
        waits = replace(trial, lines=tuple(lines))
        for seed in range(3):
            result = waits.run(EMULATOR, Limits(delay=300, seed=seed, sync="explicit"))
            assert same(trial, result, ordered)
    assert refused


def test_cycles_and_counts_add_up():
    for trial in trials(5, 5):
        result = trial.run(EMULATOR, ORDERED)
        assert result.counts == (1,) * len(trial.lines)
        assert result.instructions == len(trial.lines)
        for name, engine in result.engines.items():
            lines = [
                it for it in trial.lines if MACHINE.instructions[it.instruction].engine == name
            ]
            busy = [
                value_of(
                    MACHINE.instructions[it.instruction].cycles,
                    MACHINE.instructions[it.instruction],
                    it.fields,
                )
                for it in lines
            ]
            assert engine.busy == sum(busy)
            assert engine.busy <= result.cycles
        assert trial.run(EMULATOR, ORDERED).cycles == result.cycles
        timed = trial.run(EMULATOR, replace(ORDERED, is_only_timed=True))
        assert (timed.cycles, timed.engines) == (result.cycles, result.engines)


def test_scalar_code_is_counted_by_its_nests():
    line = cases.random_case(MACHINE, "set", np.random.default_rng(3)).line
    known = MACHINE.instructions["set"]
    cycles = value_of(known.cycles, known, line.fields)
    one, other = Source("a[0] = 1", None, "it is slow"), Source("b[0] = 1", None, "so is this")
    sources = [one, None, other, Source("fast"), one]
    lines = [replace(line, label="op", source=source) for source in sources]
    program = Program(MACHINE.name, (*lines, END))
    times = times_of(program, write(MACHINE, program))
    assert times.nests == {("op", one): 2 * cycles, ("op", other): cycles}
    assert times.scalar == 3 * cycles == EMULATOR.run(program).scalar
    assert times.cycles == EMULATOR.run(program).cycles > 5 * cycles


def accesses(trial, line):
    """Return the bytes that a line touches: the first, the one behind the last, if it writes."""
    instruction = MACHINE.instructions[line.instruction]
    for is_write, boxes in ((False, instruction.reads), (True, instruction.writes)):
        for box in boxes:
            place = line.fields[box.address]
            address = trial.registers[place.register] + place.offset
            if extent := extent_of(box, instruction, line.fields, address):
                yield *extent, is_write


def expected_cycles(trial, queue=MACHINE.queue):
    """Return the cycles of a program without loops: those of the rules of machine.py."""
    first = MACHINE.engines[0].name
    now, pending = 0, []
    for line in trial.lines:
        instruction = MACHINE.instructions[line.instruction]
        engine, touched = instruction.engine, list(accesses(trial, line))
        cycles = value_of(instruction.cycles, instruction, line.fields)
        if engine != first:
            unfinished = sorted(end for other, end, _ in pending if other == engine and end > now)
            if len(unfinished) >= queue:
                now = unfinished[-queue]
            now += MACHINE.issue
        begin = now
        for other, end, earlier in pending:
            conflicts = other != engine and any(
                low < other_high and other_low < high and (is_write or other_is_write)
                for low, high, is_write in touched
                for other_low, other_high, other_is_write in earlier
            )
            if other == engine or conflicts or line == END:
                begin = max(begin, end)
        if engine == first:
            now = begin + cycles
        else:
            pending.append((engine, begin + cycles, touched))
    return max(now, *(end for _, end, _ in pending))


def test_cycles_are_those_of_engines_queues_and_hazards():
    for trial in trials(13, 8):
        trial = replace(trial, lines=(*(trial.lines[:-1] * 10), END))
        assert trial.run(EMULATOR, ORDERED).cycles == expected_cycles(trial)


def test_the_first_engine_waits_while_a_queue_is_full():
    count = MACHINE.queue + 20
    if count > 200:
        pytest.skip("its queues are long")
    differ = 0
    for trial in trials(14, 10):
        one, *more = trial.lines[:-1]
        engine = MACHINE.instructions[one.instruction].engine
        others = (it for it in more if MACHINE.instructions[it.instruction].engine != engine)
        other = next(others, one)
        trial = replace(trial, lines=(*[one] * count, *[other] * count, END))
        cycles = trial.run(EMULATOR, ORDERED).cycles
        assert cycles == expected_cycles(trial)
        differ += cycles != expected_cycles(trial, 2 * count)
    if len({MACHINE.instructions[name].engine for name in HANDED_OVER}) > 1:
        assert differ


def test_the_listing_has_all_lines():
    (trial,) = trials(6, 1)
    lines = [
        replace(line, label="conv2d", note=f"kernel{i // 2}") for i, line in enumerate(trial.lines)
    ]
    text = EMULATOR.text(replace(trial, lines=tuple(lines)).program)
    listed = text.splitlines()[1:]
    headings = [line for line in listed if line.startswith("#")]
    assert headings == [f"# conv2d | kernel{i}" for i in range(len(lines) + 1 >> 1)]
    assert listed[0] == headings[0] and listed[3] == headings[1]
    listed = [line for line in listed if not line.startswith("#")]
    for line, written in zip(lines, listed, strict=True):
        assert is_text_of(line, written.strip().partition("  ")[2])


def test_the_listing_has_loops_where_they_begin_and_what_lies_in_memories():
    (trial,) = trials(6, 1)
    outer = Source("for i in 4:")
    one, other = Source("a[i] = b[i]", outer), Source("c[i] = a[i]", outer, "it is slow")
    sources = [None, outer, one, one, other, outer, Source("for i in 4:"), None]
    lines = tuple(replace(trial.lines[0], note="kernel", source=source) for source in sources)
    scratchpad = next(memory for memory in MACHINE.memories if not memory.is_segmented)
    kept = Allocation("a", MACHINE.base(scratchpad.name) + 4, 8, 0, 7)
    segment = Allocation("result", WORKSPACE << SEGMENT_BITS, 16, 3, 7)
    program = replace(
        replace(trial, lines=lines).program, workspace=64, allocations=(segment, kept)
    )
    found = EMULATOR.text(program).splitlines()[1:]
    tensors = next(memory.name for memory in MACHINE.memories if memory.is_segmented)
    expected = [
        *("# kernel", f"#   {scratchpad.name} 4 to 12: a, lines 0 to 7", "0"),
        *("#   for i in 4:", "1", "#     a[i] = b[i]", "2"),
        *(f"#   {tensors} 0 to 16: result, lines 3 to 7", "3"),
        *("#     c[i] = a[i]  (scalar code, since it is slow)", "4", "5", "#   for i in 4:", "6"),
        "7",
    ]
    assert [line if line[0] == "#" else line[0] for line in found] == expected


def test_the_listing_has_zeros_with_their_sign():
    for name, instruction in MACHINE.instructions.items():
        reals = [field for field, kind in instruction.fields.items() if isinstance(kind, Float)]
        line = cases.random_case(MACHINE, name, random_of(name)).line
        line = replace(line, fields={**line.fields, **dict.fromkeys(reals, -0.0)})
        text = EMULATOR.text(Program(MACHINE.name, (line, END)))
        assert all(f" {field}=-0" in text for field in reals), text


# ---- Refusals -----------------------------------------------------------------------------------


def cases_with_boxes(writes=False):
    """Return a case of each instruction that touches memory, and one of its boxes."""
    random = np.random.default_rng(7)
    for name, instruction in MACHINE.instructions.items():
        boxes = instruction.writes if writes else instruction.boxes
        if boxes:
            case = cases.random_case(MACHINE, name, random)
            yield from ((case, box) for box in boxes[-1:] if case.area(box) is not None)


def moved(case, box, address):
    """Return a case whose box begins elsewhere."""
    place = case.line.fields[box.address]
    registers = list(case.registers)
    registers[place.register] = address - place.offset
    return replace(case, registers=tuple(registers))


def refusal(case):
    lines = (case.line, END)
    trial = Trial(MACHINE, lines, case.registers, case.memories, case.inputs)
    with pytest.raises(EmulatorError) as error:
        trial.run(EMULATOR)
    return str(error.value)


def test_boxes_outside_of_memories_are_refused():
    for case, box in cases_with_boxes():
        area = case.area(box)
        size = len(case.memories[area.memory])
        text = refusal(moved(case, box, (area.memory << 40) + size))
        assert text.startswith("line 0 (")
        assert is_text_of(case.line, text.removeprefix("line 0 (").partition("):")[0])
        assert f", which has {size}" in text
        assert refusal(moved(case, box, (area.memory << 40) - 1))
        assert "which does not exist" in refusal(moved(case, box, 31 << 40))
        assert "which does not exist" in refusal(moved(case, box, -1))


def test_memories_that_a_field_does_not_name_are_refused():
    for case, box in cases_with_boxes():
        kind = case.instruction.fields[box.address]
        for number, memory in enumerate(MACHINE.memories):
            if memory.name not in kind.memories and not memory.is_segmented:
                text = refusal(moved(case, box, (number + 1) << 40))
                assert f"{box.address} is in {memory.name}; it may be in " in text


def test_constants_and_inputs_are_not_written():
    for case, box in cases_with_boxes(writes=True):
        names = case.instruction.fields[box.address].memories
        if any(MACHINE.memory(name).is_segmented for name in names):
            low = case.area(box).places.min() - case.area(box).places[0]
            memories = {**case.memories, CONSTANTS: bytes(1 << 20)}
            address = (CONSTANTS << 40) - int(low)
            text = refusal(moved(replace(case, memories=memories), box, address))
            assert "it writes to the constants, but constants and inputs are only read" in text


def test_programs_that_are_none_are_refused():
    (trial,) = trials(8, 1)
    data = write(MACHINE, trial.program)

    def error(changed):
        with pytest.raises(EmulatorError) as found:
            EMULATOR.text(changed)
        return str(found.value)

    assert "does not begin with NPUISA1" in error(b"")
    assert "does not begin with NPUISA1" in error(b"X" + data[1:])
    assert "version 258 of its format" in error(data[:8] + b"\x02\x01" + data[10:])
    assert "should have" in error(data[:-64])
    assert "checksum" in error(data[:-1] + bytes([data[-1] ^ 1]))
    assert "compiled for another table" in error(data[:16] + bytes(8) + data[24:])


def test_what_does_not_end_is_refused():
    for branch in MACHINE.instructions.values():
        fields = {name: encoding.default_of(kind) for name, kind in branch.fields.items()}
        if fields.get("lines") == 0:
            trial = replace(trials(9, 1)[0], lines=(Line(branch.name, fields), END))
            with pytest.raises(EmulatorError, match="does not end within 1000 instructions"):
                trial.run(EMULATOR, replace(ORDERED, instructions=1000))
    trial = trials(10, 1)[0]
    cycles = trial.run(EMULATOR, ORDERED).cycles
    assert trial.run(EMULATOR, replace(ORDERED, cycles=cycles)).cycles == cycles
    with pytest.raises(EmulatorError, match="takes more than 1 cycles"):
        trial.run(EMULATOR, replace(ORDERED, cycles=1))
    with pytest.raises(EmulatorError, match="is next, but the program has"):
        replace(trial, lines=trial.lines[:-1]).run(EMULATOR, ORDERED)
    with pytest.raises(EmulatorError, match="the program has no lines"):
        replace(trial, lines=()).run(EMULATOR)


def test_mutated_words_are_refused_or_run():
    random = np.random.default_rng(11)
    ran = refused = 0
    for trial in trials(12, 5):
        data = write(MACHINE, trial.program)
        words = len(data) - len(trial.lines) * MACHINE.word
        words -= -(len(trial.lines) * MACHINE.word) % 64
        for _ in range(40):
            changed = bytearray(data)
            for _ in range(int(random.integers(1, 4))):
                at = words + int(random.integers(len(data) - words))
                changed[at] ^= 1 << int(random.integers(8))
            changed[24:28] = zlib.crc32(changed[32:]).to_bytes(4, "little")
            ports = trial.ports
            sizes = [len(trial.memories[port]) for port in ports]
            try:
                EMULATOR.run(
                    bytes(changed),
                    [trial.memories[port] for port in ports[: trial.inputs]],
                    sizes[trial.inputs :],
                    registers=trial.registers,
                    limits=Limits(instructions=10_000, cycles=100_000),
                )
                ran += 1
            except EmulatorError as error:
                assert str(error)
                refused += 1
    assert ran and refused
