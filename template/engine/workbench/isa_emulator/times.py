# SPDX-License-Identifier: Apache-2.0
"""How long a program takes on the emulator, and how much of it is scalar code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...backend.isa.machine import Source
from ...backend.isa.oracle import value_of
from ...backend.isa.program import Program
from .emulator import EmulatorError, Limits, own

_MOST_INSTRUCTIONS = 1 << 28
"""Some seconds: branches that depend on values may never end."""


@dataclass(frozen=True)
class Times:
    """How long a program takes.

    `cycles`: all of it. `scalar`: the first engine, in scalar code. `nests`: that by the label and
    the source of scalar code.
    """

    cycles: int
    scalar: int
    nests: Mapping[tuple[str, Source], int]


def times_of(program: Program, data: bytes) -> Times | None:
    """Return how long a program of this backend's machine takes.

    Parameters
    ----------
    program
        The program; inputs are zeros, and only the first engine computes.
    data
        The same as a file.

    Returns
    -------
    times
        The times; None if the emulator was not built, or the program ends only with values.
    """
    limits = Limits(instructions=_MOST_INSTRUCTIONS, is_only_timed=True)
    try:
        emulator = own()
        inputs = [bytes(size) for size in program.inputs]
        result = emulator.run(data, inputs, program.outputs, limits=limits)
    except EmulatorError:
        return None
    nests: Counter[tuple[str, Source]] = Counter()
    for line, count in zip(program.lines, result.counts, strict=True):
        if line.source is not None and line.source.reason:
            instruction = emulator.machine.instructions[line.instruction]
            cycles = value_of(instruction.cycles, instruction, line.fields)
            nests[line.label, line.source] += count * cycles
    return Times(result.cycles, result.scalar, nests)
