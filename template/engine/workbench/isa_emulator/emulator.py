# SPDX-License-Identifier: Apache-2.0
"""Runs programs of an instruction set on the emulator, with the cycles that they take."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...backend.isa.loading import load
from ...backend.isa.machine import Machine
from ...backend.isa.program import Program, write
from ...backend.libraries._library import find


class EmulatorError(RuntimeError):
    """The emulator refuses a program; the message says what is wrong, and in which line."""


_SYNCS = ("", "scoreboard", "explicit", "none")


class _Run(ctypes.Structure):
    """`npu_isa_run` of library.cc."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("most_instructions", "most_cycles", "most_delay")),
        ("seed", ctypes.c_uint64),
        ("sync", ctypes.c_int64),
        ("is_only_timed", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("ports", "memories", "registers")),
        *((name, ctypes.c_int64) for name in ("instructions", "cycles", "scalar")),
        *((name, ctypes.c_void_p) for name in ("busy", "stalled", "work", "counts", "stalls")),
    )


@dataclass(frozen=True)
class Limits:
    """How a program is run.

    Parameters
    ----------
    instructions, cycles
        More are refused; 0: very many.
    delay, seed
        For tests: instructions take up to so many cycles more, at random, and what they do is done
        at a random moment in between, in the order of these.
    sync
        How instructions are ordered, as `Machine.sync`; empty: as the table says. "none": not at
        all, to show that order matters.
    is_only_timed
        Only the first engine computes: much faster, and the time is the same unless branches
        depend on what other engines compute.
    """

    instructions: int = 0
    cycles: int = 0
    delay: int = 0
    seed: int = 0
    sync: str = ""
    is_only_timed: bool = False


NO_LIMITS = Limits()


@dataclass(frozen=True)
class EngineCycles:
    """What an engine did.

    Parameters
    ----------
    busy, stalled
        For how many cycles it worked, and waited for other engines.
    work
        How much, in its unit.
    """

    busy: int
    stalled: int
    work: int


@dataclass(frozen=True)
class Result:
    """What a run did.

    Parameters
    ----------
    cycles, instructions
        How many.
    scalar
        For how many cycles the first engine was busy with scalar code.
    outputs
        The bytes of each output.
    engines
        By their names.
    counts, stalls
        By line: how often it was executed, and for how many cycles it waited for others.
    memories
        The contents of memories at the end, by their names; the one that holds tensors is the
        workspace here.
    registers
        Registers at the end.
    """

    cycles: int
    instructions: int
    scalar: int
    outputs: tuple[bytes, ...]
    engines: Mapping[str, EngineCycles]
    counts: tuple[int, ...]
    stalls: tuple[int, ...]
    memories: Mapping[str, bytes] = field(repr=False)
    registers: tuple[int, ...] = field(repr=False)


class Emulator:
    """The emulator of a machine.

    Parameters
    ----------
    library
        Its library, which was built from the table of the machine.
    machine
        The machine.
    """

    def __init__(self, library: Path, machine: Machine) -> None:
        self.machine = machine
        self._library = ctypes.CDLL(str(library))
        self._library.npu_isa_error.restype = ctypes.c_char_p
        self._library.npu_isa_text.restype = ctypes.c_size_t
        self._library.npu_isa_unload.restype = None

    def text(self, program: Program | bytes) -> str:
        """Return the listing of a program.

        Raises
        ------
        EmulatorError
            It is no program of the machine.
        """
        loaded = _Loaded(self._library, self._bytes(program))
        size = self._library.npu_isa_text(loaded.handle, None, ctypes.c_size_t(0))
        text = ctypes.create_string_buffer(size)
        self._library.npu_isa_text(loaded.handle, text, ctypes.c_size_t(size))
        return text.raw.decode()

    def run(
        self,
        program: Program | bytes,
        inputs: Sequence[bytes] = (),
        sizes: Sequence[int] = (),
        *,
        memories: Mapping[str, bytes] | None = None,
        registers: Sequence[int] = (),
        outputs: Sequence[bytes] = (),
        limits: Limits = NO_LIMITS,
    ) -> Result:
        """Run a program.

        Parameters
        ----------
        program
            The program, or its file's contents.
        inputs
            The bytes of each input.
        sizes
            The bytes of each output, if the program is given as bytes.
        memories, registers, outputs
            What is there at the beginning, by default zeros; the memory that holds tensors is the
            workspace here.
        limits
            How it is run.

        Raises
        ------
        EmulatorError
            The emulator refuses it.
        """
        data = self._bytes(program)
        loaded = _Loaded(self._library, data)
        header = memoryview(data)
        lines, workspace = (
            int.from_bytes(header[at : at + size], "little") for at, size in ((40, 4), (56, 8))
        )
        sizes = program.outputs if isinstance(program, Program) else sizes
        before = [*outputs, *(bytes(size) for size in sizes[len(outputs) :])]
        ports = [ctypes.create_string_buffer(it, max(1, len(it))) for it in (*inputs, *before)]
        kept = {
            memory.name: ctypes.create_string_buffer(
                (memories or {}).get(memory.name, b""), (memory.bytes or workspace) or 1
            )
            for memory in self.machine.memories
        }
        registers_ = (ctypes.c_int64 * self.machine.registers)(*registers)
        engines = [(ctypes.c_int64 * len(self.machine.engines))() for _ in range(3)]
        by_line = [(ctypes.c_int64 * max(1, lines))() for _ in range(2)]
        sync = _SYNCS.index(limits.sync) - 1
        run = _Run(
            *(limits.instructions, limits.cycles, limits.delay, limits.seed, sync),
            limits.is_only_timed,
        )
        port_array, memory_array = _pointers(ports), _pointers(list(kept.values()))
        run.ports, run.memories = ctypes.addressof(port_array), ctypes.addressof(memory_array)
        run.registers = ctypes.addressof(registers_)
        run.busy, run.stalled, run.work = map(ctypes.addressof, engines)
        run.counts, run.stalls = map(ctypes.addressof, by_line)
        self._check(self._library.npu_isa_execute(loaded.handle, ctypes.byref(run)))
        names = [engine.name for engine in self.machine.engines]
        return Result(
            run.cycles,
            run.instructions,
            run.scalar,
            tuple(port.raw[:size] for port, size in zip(ports[len(inputs) :], sizes, strict=True)),
            dict(zip(names, map(EngineCycles, *engines), strict=True)),
            tuple(by_line[0][:lines]),
            tuple(by_line[1][:lines]),
            {
                memory.name: kept[memory.name].raw[: memory.bytes or workspace]
                for memory in self.machine.memories
            },
            tuple(registers_),
        )

    def _bytes(self, program: Program | bytes) -> bytes:
        return write(self.machine, program) if isinstance(program, Program) else program

    def _check(self, status: int) -> None:
        _check(self._library, status)


def own() -> Emulator:
    """Return the emulator of this backend.

    Raises
    ------
    EmulatorError
        It was not built.
    """
    library = find("isa")
    if library is None:
        raise EmulatorError("the emulator of the instruction set is not here: build the backend")
    return Emulator(library, load())


class _Loaded:
    """A program that was loaded; it keeps its bytes."""

    def __init__(self, library: ctypes.CDLL, data: bytes) -> None:
        self._library = library
        self._data = data
        self.handle = ctypes.c_void_p()
        size = ctypes.c_size_t(len(data))
        _check(library, library.npu_isa_load(data, size, ctypes.byref(self.handle)))

    def __del__(self) -> None:
        self._library.npu_isa_unload(self.handle)


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        raise EmulatorError(library.npu_isa_error().decode())


def _pointers(buffers: Sequence[ctypes.Array[ctypes.c_char]]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(buffers)))(*map(ctypes.addressof, buffers))
