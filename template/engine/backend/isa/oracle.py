# SPDX-License-Identifier: Apache-2.0
"""Executes the oracles of a machine's table: slow, and what the emulator is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .encoding import numbers_of
from .expressions import read
from .kinds import ELEMENT_BYTES, Address, FieldValue, Place
from .machine import CONSTANTS, FIRST_PORT, SEGMENT_BITS, Box, Instruction, Line, Machine
from .operations import COMPARISONS, NUMPY_TYPES, REALS, Array

_MOST_ELEMENTS = 1 << 28


class Refused(Exception):
    """The machine does not execute the program; the message says why, and in which line."""


class State:
    """The state of a machine: its registers, memories, and where it is in the program.

    Parameters
    ----------
    machine
        The machine.
    segments
        The bytes of constants, workspace, inputs and outputs by their segments.
    inputs
        How many inputs there are; like constants, they are only read.
    """

    def __init__(
        self, machine: Machine, segments: Mapping[int, bytearray] | None = None, inputs: int = 0
    ) -> None:
        self.machine = machine
        self.read_only = {CONSTANTS, *range(FIRST_PORT, FIRST_PORT + inputs)}
        self.memories = {
            index + 1: bytearray(memory.bytes)
            for index, memory in enumerate(machine.memories)
            if not memory.is_segmented
        } | dict(segments or {})
        self.registers = [0] * machine.registers
        self.line = 0
        self.loops: list[tuple[int, int]] = []
        self.is_done = False

    # ---- Registers ----

    def get(self, register: int, kind: str = "i64") -> Any:
        """Return a register as an integer or a real number, as NumPy has them."""
        bits = np.int64(self.registers[register])
        return bits.astype(np.int32).view(np.float32) if kind == "f32" else bits

    def set(self, register: int, value: Any, kind: str = "i64", op: str = "") -> None:
        """Set a register to an integer, or, of a real type and no comparison, to a float32."""
        if register == 0:
            return
        if kind in REALS and op not in COMPARISONS:
            self.registers[register] = int(np.float32(value).view(np.int32))
        else:
            self.registers[register] = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)

    # ---- Loops ----

    def enter(self, count: int) -> None:
        """Begin a hardware loop at the next line."""
        if len(self.loops) == self.machine.loop_depth:
            raise Refused(f"line {self.line}: more than {self.machine.loop_depth} loops")
        self.loops.append((self.line, count))

    def again(self) -> None:
        """End an iteration of the innermost loop."""
        if not self.loops:
            raise Refused(f"line {self.line}: next without a loop")
        begin, left = self.loops.pop()
        if left > 1:
            self.loops.append((begin, left - 1))
            self.line = begin

    def wait(self, engines: int) -> None:
        """Wait for engines, one for each bit: nothing, since the oracle executes one by one."""

    # ---- Memories ----

    def _places(
        self, address: int, kind: str, counts: Sequence[int], strides: Sequence[int]
    ) -> tuple[bytearray, Any]:
        size = ELEMENT_BYTES[kind]
        if math.prod(counts) > _MOST_ELEMENTS:
            raise Refused(f"line {self.line}: {math.prod(counts)} elements are too many")
        dense = [size * math.prod(counts[axis + 1 :]) for axis in range(len(counts))]
        steps = [*strides, *dense[len(strides) :]]
        memory = self.memories.get(address >> SEGMENT_BITS)
        first = address & ((1 << SEGMENT_BITS) - 1)
        ends = [step * (count - 1) for step, count in zip(steps, counts, strict=True)]
        low = first + sum(min(0, end) for end in ends)
        high = first + sum(max(0, end) for end in ends) + size
        if memory is None or low < 0 or high > len(memory):
            have = "no memory" if memory is None else f"a memory of {len(memory)} bytes"
            raise Refused(f"line {self.line}: bytes {low} to {high} of {have}")
        places = np.full(counts, first, np.int64)
        for axis, step in enumerate(steps):
            shape = [1] * len(counts)
            shape[axis] = -1
            places = places + (np.arange(counts[axis]) * step).reshape(shape)
        return memory, places

    def read(
        self, address: int, kind: str, counts: Sequence[int] = (), strides: Sequence[int] = ()
    ) -> Array:
        """Return elements of a memory.

        Parameters
        ----------
        address
            That of the first.
        kind
            Their type.
        counts
            The shape of the result.
        strides
            How many bytes lie between neighbours in each dimension; in those that are left out at
            the end, elements follow each other.
        """
        memory, places = self._places(address, kind, counts, strides)
        size = ELEMENT_BYTES[kind]
        data = np.frombuffer(memory, np.uint8)
        found = data[places[..., None] + np.arange(size)]
        return np.ascontiguousarray(found).view(NUMPY_TYPES[kind])[..., 0]

    def write(self, address: int, kind: str, array: Array, strides: Sequence[int] = ()) -> None:
        """Write elements of a memory; the parameters are those of `read`."""
        if address >> SEGMENT_BITS in self.read_only:
            raise Refused(f"line {self.line}: constants and inputs are only read")
        memory, places = self._places(address, kind, array.shape, strides)
        data = np.frombuffer(memory, np.uint8)
        flat = np.ascontiguousarray(array.astype(NUMPY_TYPES[kind])).reshape(-1, 1)
        size = ELEMENT_BYTES[kind]
        data[places.reshape(-1, 1) + np.arange(size)] = flat.view(np.uint8).reshape(-1, size)


class Fields(SimpleNamespace):
    """The values of an instruction's fields; addresses are numbers."""


def fields_of(state: State, instruction: Instruction, values: Mapping[str, FieldValue]) -> Fields:
    """Return what an oracle reads: fields with registers added to addresses."""
    resolved: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Place):
            value = state.registers[value.register] + value.offset
        elif isinstance(value, float):
            value = float(np.float32(value))
        resolved[name] = value
    return Fields(**resolved)


def value_of(text: str, instruction: Instruction, values: Mapping[str, FieldValue]) -> int:
    """Evaluate an expression of the table for a line."""
    return read(text).value(*numbers_of(instruction, values))


def extent_of(
    box: Box, instruction: Instruction, values: Mapping[str, FieldValue], address: int
) -> tuple[int, int] | None:
    """Return the first byte of a box and the one behind its last; None if the box is not there."""
    if not value_of(box.when, instruction, values):
        return None
    low, high = address, address + value_of(box.bytes, instruction, values)
    for count, stride in box.dims:
        last = value_of(stride, instruction, values) * (value_of(count, instruction, values) - 1)
        low, high = low + min(0, last), high + max(0, last)
    return low, high


def execute(state: State, line: Line) -> None:
    """Execute a line by the oracle of its instruction.

    Raises
    ------
    Refused
        It touches bytes outside of memories, or of memories that its instruction does not reach.
    """
    instruction = state.machine.instructions[line.instruction]
    fields = fields_of(state, instruction, line.fields)
    for name, kind in instruction.fields.items():
        if not isinstance(kind, Address):
            continue
        segment = getattr(fields, name) >> SEGMENT_BITS
        allowed = [
            memory.name
            for index, memory in enumerate(state.machine.memories)
            if segment == index + 1 or (memory.is_segmented and segment >= FIRST_PORT - 2)
        ]
        if not allowed or allowed[0] not in kind.memories:
            where = allowed[0] if allowed else f"segment {segment}"
            raise Refused(f"line {state.line}: {name} of {instruction.name} is in {where}")
    with np.errstate(all="ignore"):
        instruction.oracle(state, fields)


def run(state: State, lines: Sequence[Line], most: int = 1 << 24) -> int:
    """Execute a program.

    Parameters
    ----------
    state
        The state at its beginning; it is changed.
    lines
        The program.
    most
        How many instructions it may have executed before it is refused.

    Returns
    -------
    count
        How many instructions were executed.

    Raises
    ------
    Refused
        The machine does not execute the program.
    """
    count = 0
    while not state.is_done:
        if not 0 <= state.line < len(lines):
            raise Refused(f"line {state.line} is outside of the program")
        if count == most:
            raise Refused(f"the program does not end within {most} instructions")
        execute(state, lines[state.line])
        state.line += 1
        count += 1
    return count
