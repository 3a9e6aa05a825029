# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of `vendor/isa.py`: memories, engines and instructions of a machine.

The table is the only description of the machine. Encoder, assembler, disassembler, the checks of a
loader, the emulator, hazards, random tests and the page about the instruction set come from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as _fields
from typing import Any

from .expressions import resolved
from .kinds import ELEMENT_BYTES as ELEMENT_BYTES
from .kinds import Address as Address
from .kinds import Choice as Choice
from .kinds import Field as Field
from .kinds import FieldValue as FieldValue
from .kinds import Float as Float
from .kinds import Number as Number
from .kinds import Place as Place
from .kinds import Register as Register
from .rules import TableError as TableError
from .rules import check_instruction, check_machine

SEGMENT_BITS = 40
"""Addresses are numbers: the segment, and behind it so many bits of the place in bytes in it."""

CONSTANTS, WORKSPACE, FIRST_PORT = 32, 33, 34
"""The segments of the memory that holds tensors; from the last one on inputs, then outputs."""


@dataclass(frozen=True)
class Memory:
    """A memory of the machine.

    Parameters
    ----------
    name
        Its name; loops of TVM name it as the scope `global.<name>`.
    bytes
        Its size. 0: the memory that holds the tensors of the host, constants and workspace, in
        segments of the sizes that a program needs.
    about
        One line for the page.
    """

    name: str
    bytes: int
    about: str = ""

    @property
    def is_segmented(self) -> bool:
        """Whether it holds tensors, constants and workspace."""
        return not self.bytes


@dataclass(frozen=True)
class Engine:
    """What executes instructions, in their order; engines run at the same time.

    Parameters
    ----------
    name
        Its name.
    peak
        How much of an instruction's `work` it does in a cycle at most, by the element type of the
        instruction; under "", for all types.
    unit
        What is counted: "MAC", "element", "byte".
    about
        One line for the page.
    """

    name: str
    peak: Mapping[str, int] = field(default_factory=dict)
    unit: str = ""
    about: str = ""


@dataclass(frozen=True)
class Box:
    """Bytes that an instruction reads or writes.

    Parameters
    ----------
    address
        The field with the first byte.
    bytes
        An expression: how many bytes follow each other.
    dims
        How often that is repeated and how many bytes later, as pairs of expressions, the outermost
        first. Distances may be negative or 0.
    when
        An expression; the box is there where it is not 0.
    """

    address: str
    bytes: str
    dims: tuple[tuple[str, str], ...] = ()
    when: str = "1"

    @property
    def expressions(self) -> tuple[str, ...]:
        """All of its expressions."""
        return (self.bytes, self.when, *(text for pair in self.dims for text in pair))


@dataclass(frozen=True)
class Instruction:
    """An instruction; the parameters are those of `Machine.instruction`.

    Parameters
    ----------
    oracle
        What it means, on an `oracle.State` and its fields; the first line of its documentation is
        that of the instruction. The emulator has the same as a function of
        `vendor/isa_semantics.h`, whose name is that of the instruction.
    """

    name: str
    opcode: int
    engine: str
    fields: Mapping[str, Field]
    oracle: Callable[..., None]
    reads: tuple[Box, ...] = ()
    writes: tuple[Box, ...] = ()
    cycles: str = "1"
    work: str = "0"
    type: str = ""
    where: tuple[str, ...] = ()
    waits: str = ""
    means: str = ""
    written: Mapping[str, str] = field(default_factory=dict)

    def as_written(self, text: str) -> str:
        """Return an expression as the table has it: with the names of choices."""
        return self.written.get(text, text)

    @property
    def about(self) -> str:
        """One line of documentation."""
        return (inspect.getdoc(self.oracle) or "").partition("\n")[0]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """All bytes that it touches."""
        return (*self.reads, *self.writes)

    @property
    def expressions(self) -> tuple[str, ...]:
        """All of its expressions."""
        texts = [text for box in self.boxes for text in box.expressions]
        waits = (self.waits,) if self.waits else ()
        return (self.cycles, self.work, *self.where, *waits, *texts)


@dataclass(frozen=True)
class Source:
    """A loop or a statement that lines were made of.

    `within` is the loop around it. `reason` is why it runs as scalar code, if it does.
    """

    text: str
    within: Source | None = None
    reason: str = ""


@dataclass(frozen=True)
class Line:
    """An instruction with the values of its fields, as a line of an assembler.

    `note` is the kernel that it belongs to, `label` the model's op that is computed there, and
    `source` the loop of the kernel that it was made of.
    """

    instruction: str
    fields: Mapping[str, FieldValue]
    note: str = ""
    label: str = ""
    source: Source | None = None


@dataclass
class Machine:
    """A machine with an instruction set of its own.

    Parameters
    ----------
    name
        Its name.
    word
        The bytes of an instruction.
    memories, engines
        What it has. The first engine is the one that fetches instructions and executes those about
        registers and loops; it hands the others to their engines, in order.
    registers
        How many registers it has.
    loop_depth
        How many hardware loops may be around an instruction.
    sync
        "scoreboard": the machine lets an instruction wait for others whose bytes it needs.
        "explicit": programs have an instruction for that; what needs it and lacks it is refused.
    issue
        How many cycles the first engine needs to hand over an instruction.
    queue
        How many instructions each other engine holds that are not done; when it is full, the first
        engine waits.
    """

    name: str
    word: int
    memories: Sequence[Memory]
    engines: Sequence[Engine]
    registers: int = 32
    loop_depth: int = 8
    sync: str = "scoreboard"
    issue: int = 1
    queue: int = 64
    instructions: dict[str, Instruction] = field(default_factory=dict)
    _by_opcode: dict[int, Instruction] = field(default_factory=dict, repr=False)

    def instruction(
        self, opcode: int, engine: str, fields: Mapping[str, Field], **options: Any
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add an instruction: a decorator of its oracle, which names it.

        Parameters
        ----------
        opcode
            Its number.
        engine
            What executes it.
        fields
            Its fields by name, in the order of their bits, behind the opcode's 8.
        **options
            `reads` and `writes`: sequences of `Box`, the bytes that it touches.
            `cycles`: how long the engine is busy, an expression. `work`: what it does in the unit
            of the engine, an expression. `type`: the field with the element type that the peak
            depends on. `where`: conditions that the fields meet, expressions. `waits`: the engines
            whose instructions before it are done when it ends, an expression with a bit for each.
            `means`: what it computes for each element, for the compiler to find: operations and
            functions of its addresses, floats and numbers, such as `max(add(a, b), 0)`.
            Expressions may compare choices with names: `mode == 'add'`, `op in ('eq', 'ne')`.

        Raises
        ------
        TableError
            The instruction contradicts itself or the machine.
        """

        def add(oracle: Callable[..., None]) -> Callable[..., None]:
            name = oracle.__name__.rstrip("_")
            known = {it.name for it in _fields(Instruction)} - {"written"}
            for option in options:
                if option not in known:
                    raise TableError(f"instruction '{name}': there is no option '{option}'")
            given: dict[str, Any] = {
                key: tuple(value) if key in ("reads", "writes", "where") else value
                for key, value in options.items()
            }
            new = Instruction(name, opcode, engine, dict(fields), oracle, **given)
            new = _resolved(new)
            check_instruction(self, new)
            self.instructions[new.name] = new
            return oracle

        return add

    def check(self) -> None:
        """Check what is to be known of the whole machine.

        Raises
        ------
        TableError
            The machine contradicts itself.
        """
        check_machine(self)

    @property
    def by_opcode(self) -> Mapping[int, Instruction]:
        """Return the instructions by their numbers."""
        if len(self._by_opcode) != len(self.instructions):
            self._by_opcode = {it.opcode: it for it in self.instructions.values()}
        return self._by_opcode

    def memory(self, name: str) -> Memory:
        """Return a memory by its name."""
        return next(memory for memory in self.memories if memory.name == name)

    def base(self, name: str) -> int:
        """Return the address of a memory's first byte; that which holds tensors has segments."""
        index = [memory.name for memory in self.memories].index(name)
        return index + 1 << SEGMENT_BITS

    def bits_of(self, kind: Field) -> int:
        """Return how many bits a field has."""
        register_bits = (self.registers - 1).bit_length()
        if isinstance(kind, Register):
            return register_bits
        if isinstance(kind, Address):
            return register_bits + 32
        return kind.bits


def _resolved(new: Instruction) -> Instruction:
    """Return an instruction whose expressions have numbers instead of the names of choices."""
    choices = {name: kind.names for name, kind in new.fields.items() if isinstance(kind, Choice)}
    written: dict[str, str] = {}

    def numbers(text: str) -> str:
        if not isinstance(text, str):
            raise TableError(f"instruction '{new.name}': {text!r} must be an expression, a text")
        try:
            found = resolved(text, choices)
        except ValueError as error:
            raise TableError(f"instruction '{new.name}': {error}") from None
        written[found] = text
        return found

    def box(given: Box) -> Box:
        dims = tuple((numbers(count), numbers(stride)) for count, stride in given.dims)
        return Box(given.address, numbers(given.bytes), dims, numbers(given.when))

    return replace(
        new,
        reads=tuple(map(box, new.reads)),
        writes=tuple(map(box, new.writes)),
        cycles=numbers(new.cycles),
        work=numbers(new.work),
        where=tuple(map(numbers, new.where)),
        waits=numbers(new.waits) if new.waits else "",
        written={found: text for found, text in written.items() if found != text},
    )
