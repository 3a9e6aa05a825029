# SPDX-License-Identifier: Apache-2.0
"""The emulator of this backend's machine does what the oracles of its table say."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from backend.engine.backend.isa import cases, encoding
from backend.engine.backend.isa.kinds import Number
from backend.engine.backend.isa.machine import CONSTANTS, Line
from backend.engine.backend.isa.oracle import FUNCTIONS, REALS, extent_of, value_of
from backend.engine.backend.isa.program import write
from backend.engine.backend.isa.text import line_of, text_of
from backend.engine.workbench.isa_emulator.emulator import EmulatorError, Limits, own
from backend.engine.workbench.isa_emulator.judging import (
    Trial,
    disagreement,
    ending,
    memories_of,
    random_trial,
)

EMULATOR = own()
MACHINE = EMULATOR.machine
END = ending(MACHINE)
each_instruction = pytest.mark.parametrize("name", MACHINE.instructions)
HANDED_OVER = [
    it.name for it in MACHINE.instructions.values() if it.engine != MACHINE.engines[0].name
]
"""The instructions that the first engine hands over to others."""


def random_of(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def is_exact(line):
    """Whether the oracle and the emulator compute the same bits."""
    return not any(value in (*REALS, *FUNCTIONS) for value in line.fields.values())


def trials(seed, count, length=8):
    """Return random programs of exact instructions, with registers and memories."""
    random = np.random.default_rng(seed)
    found = []
    while len(found) < count:
        trial = random_trial(MACHINE, random, HANDED_OVER, length)
        if trial is not None:
            lines = [line for line in trial.lines if is_exact(line)]
            found.append(replace(trial, lines=(*lines, END)))
    return found


def in_loops(trial, random):
    """Return a program whose lines are in two loops, which move its addresses."""
    steps = {f"r{i}": int(random.integers(MACHINE.registers)) for i in range(4)}
    steps |= {f"v{i}": int(random.choice([0, 4, -4, 64, -128, 1 << 16])) for i in range(4)}
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
    everything = (1 << len(MACHINE.engines)) - 1
    for name, instruction in MACHINE.instructions.items():
        kinds = instruction.fields.values()
        if instruction.waits and kinds and all(isinstance(kind, Number) for kind in kinds):
            fields = {field: kind.range[1] for field, kind in instruction.fields.items()}
            if value_of(instruction.waits, instruction, fields) & everything == everything:
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
    check(name, 5)


@pytest.mark.thorough
@each_instruction
def test_an_instruction_does_what_its_oracle_does_in_many_cases(name):
    check(name, 300)


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


def check_programs(seed, count):
    random = np.random.default_rng(seed)
    refused = 0
    for trial in trials(seed, count):
        has_loops = {"loop", "next"} <= set(MACHINE.instructions) and random.random() < 0.7
        if has_loops:
            trial = in_loops(trial, random)
        expected = trial.expected()
        try:
            result = trial.run(EMULATOR)
        except EmulatorError as error:
            assert expected.refused, error
            refused += 1
            continue
        assert not expected.refused
        found = memories_of(MACHINE, result, trial.inputs)
        assert found == {number: expected.memories[number] for number in found}
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
        result = trial.run(EMULATOR, Limits(sync="scoreboard"))
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
        ordered = trial.run(EMULATOR, Limits(sync="scoreboard"))
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
        result = trial.run(EMULATOR)
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
        assert trial.run(EMULATOR).cycles == result.cycles


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
        assert trial.run(EMULATOR, Limits(sync="scoreboard")).cycles == expected_cycles(trial)


def test_the_first_engine_waits_while_a_queue_is_full():
    count = MACHINE.queue + 20
    if count > 200:
        pytest.skip("its queues are long")
    differ = 0
    for trial in trials(14, 10):
        one, *_, other = trial.lines[:-1]
        trial = replace(trial, lines=(*[one] * count, *[other] * count, END))
        cycles = trial.run(EMULATOR, Limits(sync="scoreboard")).cycles
        assert cycles == expected_cycles(trial)
        differ += cycles != expected_cycles(trial, 2 * count)
    if len({MACHINE.instructions[name].engine for name in HANDED_OVER}) > 1:
        assert differ


def test_the_listing_has_all_lines():
    (trial,) = trials(6, 1)
    lines = [
        replace(line, label="conv2d", note=f"for y in 0..{i // 2}")
        for i, line in enumerate(trial.lines)
    ]
    text = EMULATOR.text(replace(trial, lines=tuple(lines)).program)
    listed = text.splitlines()[1:]
    assert len(listed) == len(lines)
    for i, (line, written) in enumerate(zip(lines, listed, strict=True)):
        about = text_of(MACHINE, line).partition("  ; ")[2]
        assert is_text_of(line, written.strip().partition("  ")[2].partition("  ; ")[0])
        assert (about in written) == (i % 2 == 0)


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
                trial.run(EMULATOR, Limits(instructions=1000))
    trial = trials(10, 1)[0]
    cycles = trial.run(EMULATOR).cycles
    assert trial.run(EMULATOR, Limits(cycles=cycles)).cycles == cycles
    with pytest.raises(EmulatorError, match="takes more than 1 cycles"):
        trial.run(EMULATOR, Limits(cycles=1))
    with pytest.raises(EmulatorError, match="is next, but the program has"):
        replace(trial, lines=trial.lines[:-1]).run(EMULATOR)
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
