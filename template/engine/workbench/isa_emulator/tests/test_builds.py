# SPDX-License-Identifier: Apache-2.0
"""Emulators that are built for a test: with sanitizers, and of tables with mistakes."""

import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from backend.engine.backend.isa import cases
from backend.engine.backend.isa.faults import faults_of
from backend.engine.backend.isa.kinds import Place
from backend.engine.backend.isa.loading import load
from backend.engine.backend.isa.machine import FIRST_PORT, SEGMENT_BITS, Line, Source
from backend.engine.backend.isa.program import Allocation, Program, write
from backend.engine.workbench.isa_emulator.building import build, compiler
from backend.engine.workbench.isa_emulator.emulator import Emulator, EmulatorError, Limits
from backend.engine.workbench.isa_emulator.judging import (
    disagreement,
    ending,
    memories_of,
    random_trial,
)
from under_test import ROOT

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(
        not (ROOT / "engine/workbench/isa_emulator/table.cc").is_file(),
        reason="the sources of the backend are not here",
    ),
]
VENDOR, ENGINE = ROOT / "vendor", ROOT / "engine"
TESTS = ENGINE / "workbench/isa_emulator/tests/cpp"
MACHINE = load()
END = ending(MACHINE)
HANDED_OVER = [
    it.name for it in MACHINE.instructions.values() if it.engine != MACHINE.engines[0].name
]
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def programs(folder, count):
    """Write random programs as files, each with instructions of all kinds."""
    random = np.random.default_rng(1)
    paths = []
    while len(paths) < count:
        trial = random_trial(MACHINE, random, HANDED_OVER, 8)
        # Registers are 0 at the beginning: instructions of the first engine set them.
        lines = [*setting(trial.registers), *trial.lines]
        scalars = [name for name in MACHINE.instructions if name not in HANDED_OVER]
        for name in scalars:
            case = cases.random_case(MACHINE, name, random)
            if not case.instruction.boxes and name not in ("branch", "next", END.instruction):
                lines.append(case.line)
        path = folder / f"{len(paths)}.bin"
        loop = Source("for i in 4:")
        lines = [replace(line, source=Source("x", loop, "it is slow")) for line in lines]
        scratchpad = next(it.name for it in MACHINE.memories if not it.is_segmented)
        tile = Allocation("tile", MACHINE.base(scratchpad), 1, 0, len(lines))
        program = replace(trial, lines=(*lines, END)).program
        path.write_bytes(write(MACHINE, replace(program, allocations=(tile,))))
        paths.append(str(path))
    return paths


def setting(registers):
    """Return lines that set registers, if the machine has an instruction for it."""
    if "set" in MACHINE.instructions:
        for number, value in enumerate(registers):
            yield Line("set", {"to": number, "value": value})


@pytest.mark.parametrize("options", [SANITIZERS, ("-O2",)], ids=["sanitized", "plain"])
def test_mutated_programs_stay_within_their_memories(tmp_path, options):
    program = str(TESTS / "fuzz.cc")
    built = build(MACHINE, VENDOR, tmp_path, options, engine=ENGINE, program=program)
    count = os.environ.get("NPU_FUZZ", "20000")
    result = subprocess.run(
        [built, count, *programs(tmp_path, 20)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]


def copying(count):
    """Return a program of the example machine that copies its input; it has scalar code."""
    spad = 2 << SEGMENT_BITS
    slow = Source("i = 0", None, "it is here for the test")
    registers = {1: spad, 2: FIRST_PORT << SEGMENT_BITS, 3: FIRST_PORT + 1 << SEGMENT_BITS}
    rows = {"bytes": count, "count0": 1, "count1": 1}
    steps = dict.fromkeys(("target0", "target1", "source0", "source1"), 0)
    lines = (
        *(Line("set", {"to": number, "value": value}) for number, value in registers.items()),
        Line("set", {"to": 4, "value": 0}, "copy", "relu", slow),
        Line("ld", {"target": Place(1), "source": Place(2), **rows, **steps}, "copy", "relu"),
        Line("st", {"target": Place(3), "source": Place(1), **rows, **steps}, "copy", "relu"),
        END,
    )
    last = len(lines) - 1
    kept = (Allocation("tile", spad, count, 4, 5), Allocation("end", spad, 1, last, last))
    ports = {"inputs": (count,), "outputs": (count,)}
    return Program(MACHINE.name, lines, **ports, allocations=kept)


def test_the_run_half(tmp_path):
    if MACHINE.name != "example":
        pytest.skip("it is about the example machine")
    path = tmp_path / "copy.bin"
    path.write_bytes(write(MACHINE, copying(100)))
    endless = tmp_path / "endless.bin"
    branch = Line("branch", {"when": "always", "a": 0, "lines": 0})
    endless.write_bytes(write(MACHINE, replace(copying(1), lines=(branch,), allocations=())))
    program = str(TESTS / "device_test.cc")
    more = [str(ENGINE / "workbench/isa_emulator/device.cc")]
    built = build(MACHINE, VENDOR, tmp_path, SANITIZERS, engine=ENGINE, program=program, more=more)
    result = subprocess.run(
        [built, path, "100", endless], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]


def with_instruction(name, **changes):
    """Return the machine with another instruction of a name."""
    instructions = {**MACHINE.instructions, name: replace(MACHINE.instructions[name], **changes)}
    return replace(MACHINE, instructions=instructions)


def faults_in(machine, name, count=20):
    random = np.random.default_rng(2)
    found = [cases.random_case(machine, name, random) for _ in range(count)]
    return [fault for case in found for fault in faults_of(case, random)]


def test_a_box_that_is_missing_is_caught_by_delays_and_by_the_oracle(tmp_path):
    """The hazard that it stands for is not seen: some delay shows it."""
    name = next(
        name
        for name in HANDED_OVER
        if MACHINE.instructions[name].reads and MACHINE.instructions[name].writes
    )
    machine = with_instruction(name, reads=())
    assert faults_in(machine, name)
    emulator = Emulator(build(machine, VENDOR, tmp_path, ("-O0",), engine=ENGINE), machine)
    random = np.random.default_rng(3)
    for _ in range(200):
        trial = random_trial(MACHINE, random, HANDED_OVER, 8)
        trial = replace(trial, machine=machine, lines=(*trial.lines, END))
        try:
            result = trial.run(emulator, Limits(sync="scoreboard"))
        except EmulatorError:
            continue
        for seed in range(3):
            delayed = trial.run(emulator, Limits(delay=300, seed=seed, sync="scoreboard"))
            if memories_of(machine, delayed, trial.inputs) != memories_of(
                machine, result, trial.inputs
            ):
                return
    pytest.fail("no delay shows the hazard")


def test_wrong_cycles_and_boxes_are_caught_by_the_oracle():
    name = next(name for name in HANDED_OVER if MACHINE.instructions[name].work != "0")
    assert "takes 0 cycles" in " ".join(faults_in(with_instruction(name, cycles="0"), name))
    written = MACHINE.instructions[name].writes
    small = tuple(replace(box, bytes="1", dims=()) for box in written)
    assert "in no box that it writes" in " ".join(
        faults_in(with_instruction(name, writes=small), name)
    )


def test_a_function_that_does_something_else_is_caught(tmp_path):
    """Two fields are swapped in what isa_semantics.h gets."""
    name = next(
        name
        for name, it in MACHINE.instructions.items()
        if {"target0", "target1"} <= set(it.fields) and name in HANDED_OVER
    )
    folder = tmp_path / "vendor"
    folder.mkdir()
    text = (VENDOR / "isa_semantics.h").read_text()
    changed = text.replace("f.target0, f.target1", "f.target1, f.target0")
    assert changed != text
    (folder / "isa_semantics.h").write_text(changed)
    emulator = Emulator(build(MACHINE, folder, tmp_path, ("-O0",), engine=ENGINE), MACHINE)
    random = np.random.default_rng(4)
    assert any(disagreement(emulator, cases.random_case(MACHINE, name, random)) for _ in range(50))
