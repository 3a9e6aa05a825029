# SPDX-License-Identifier: Apache-2.0
"""Instructions with loops and symbolic addresses, and how they become lines with registers.

An address is a place in a segment plus a multiple of each loop's variable. A register has it; each
`next` of a loop increases it, so that no instruction computes addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..encoding import EncodingError, check_conditions
from ..kinds import Address, Choice, FieldValue, Number, Place
from ..machine import CONSTANTS, SEGMENT_BITS, Line, Machine, Source
from .loops import Affine, Unsupported, Var

_OFFSET_MASK = (1 << SEGMENT_BITS) - 1


@dataclass(frozen=True)
class Where:
    """An address in bytes: of a memory or segment, and affine in the variables of loops."""

    base: int
    index: Affine = field(default_factory=Affine)

    def plus(self, other: Affine) -> Where:
        """Add bytes."""
        return Where(self.base, self.index.plus(other))

    def replaced(self, values: Mapping[Var, Affine]) -> Where:
        """Return it with variables replaced."""
        index = self.index.without([*values])
        for var, value in values.items():
            index = index.plus(value, self.index.of(var))
        return Where(self.base, index)

    @property
    def key(self) -> Key:
        """What its register has: the address without its constant part."""
        return Key(
            self.base >> SEGMENT_BITS,
            frozenset((var, factor) for var, factor in self.index.terms.items()),
        )

    @property
    def offset(self) -> int:
        """Its constant part."""
        return (self.base & _OFFSET_MASK) + self.index.constant


@dataclass(frozen=True)
class Key:
    """What a register for addresses has: a segment's base and multiples of variables."""

    segment: int
    terms: frozenset[tuple[Var, int]]


@dataclass(frozen=True)
class Temporary:
    """A register that has an intermediate result."""

    number: int


@dataclass(frozen=True)
class Named:
    """The register of a variable that the program computes."""

    var: Var


@dataclass(frozen=True)
class Target:
    """The place of a mark, for a branch."""

    mark: Mark


@dataclass(frozen=True)
class Computed:
    """An address in a segment: what a register has, and an offset."""

    register: Temporary
    offset: int
    segment: int


Operand = FieldValue | Where | Key | Temporary | Named | Target | Computed


@dataclass(frozen=True)
class Step:
    """An instruction; operands are not yet registers."""

    instruction: str
    fields: Mapping[str, Operand]


@dataclass(eq=False)
class Mark:
    """A place that branches go to."""


@dataclass(eq=False)
class Repeat:
    """A hardware loop."""

    var: Var
    count: int
    items: list[Item]


@dataclass(eq=False)
class Guard:
    """Items that are executed or not, or again: registers of addresses begin anew in it."""

    items: list[Item]


@dataclass(eq=False)
class Part:
    """What was made of one loop or statement."""

    source: Source
    items: list[Item]


Item = Step | Mark | Repeat | Guard | Part


def variable_key(var: Var) -> Key:
    """Return what the register of a hardware loop's variable has."""
    return Key(0, frozenset([(var, 1)]))


def step_of(machine: Machine, instruction: str, given: Mapping[str, Operand]) -> Step:
    """Return an instruction as the machine has it.

    Parameters
    ----------
    machine
        The machine.
    instruction
        The name of the instruction.
    given
        Its fields; numbers that are left out are 0, or the least that they may be.

    Raises
    ------
    Unsupported
        The machine has no such instruction, or it does not do this; the message says why.
    """
    known = machine.instructions.get(instruction)
    if known is None:
        raise Unsupported(f"the machine has no instruction {instruction}")
    for name in given:
        if name not in known.fields:
            raise Unsupported(f"{instruction} has no field {name}")
    fields: dict[str, Operand] = {}
    for name, kind in known.fields.items():
        least = kind.range[0] if isinstance(kind, Number) else 0
        value = fields[name] = given.get(name, max(0, least))
        if isinstance(kind, Number) and isinstance(value, int):
            if not least <= value <= kind.range[1]:
                end = f"at most {kind.range[1]}" if value > least else f"at least {least}"
                raise Unsupported(f"{name} of {instruction} is {value}, {end}")
        elif isinstance(kind, Choice) and value not in kind.names:
            raise Unsupported(
                f"{name} of {instruction} is {value}; it may be {', '.join(kind.names)}"
            )
        elif isinstance(kind, Address) and isinstance(value, Where | Computed):
            memory = memory_of(machine, value)
            if memory not in kind.memories:
                raise Unsupported(
                    f"{name} of {instruction} is in {memory}; it may be in "
                    f"{', '.join(kind.memories)}"
                )
    try:
        check_conditions(known, fields)  # type: ignore[arg-type]  # only numbers and names are read
    except EncodingError as error:
        raise Unsupported(str(error)) from None
    return Step(instruction, fields)


def memory_of(machine: Machine, place: Where | Computed) -> str:
    """Return the name of the memory that an address is in."""
    segment = place.segment if isinstance(place, Computed) else place.base >> SEGMENT_BITS
    for memory in machine.memories:
        if memory.is_segmented:
            is_there = segment >= CONSTANTS
        else:
            is_there = segment == machine.base(memory.name) >> SEGMENT_BITS
        if is_there:
            return memory.name
    raise AssertionError(f"no memory has segment {segment}")


def temporaries_of(machine: Machine) -> int:
    """Return how many registers are for intermediate results; the last computes addresses."""
    return machine.registers * 3 // 8


class Assembler:
    """Turns items into lines.

    Parameters
    ----------
    machine
        The machine; its instructions `set`, `step`, `alu`, `branch`, `loop` and `next` are used.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # Those for intermediate results are the last ones.
        self.first_temporary = machine.registers - temporaries_of(machine)
        self.lines: list[Line] = []
        self._marks: dict[Mark, int] = {}
        self._branches: list[tuple[int, Mark]] = []
        self._registers: dict[Key, int] = {}
        self._named: dict[Var, int] = {}
        self._free = list(range(self.first_temporary - 1, 0, -1))
        self._before: dict[
            Repeat | Guard | None, list[tuple[Key, tuple[tuple[Var, int], ...]]]
        ] = {}
        self._increments: dict[Repeat, dict[Key, int]] = {}
        self._source: Source | None = None

    def assemble(self, items: Sequence[Item]) -> list[Line]:
        """Return the lines of a program.

        Raises
        ------
        Unsupported
            It needs more registers than the machine has.
        """
        self._collect(items, [])
        self._begin(None)
        self._emit(items)
        for at, mark in self._branches:
            line = self.lines[at]
            fields = {**line.fields, "lines": self._marks[mark] - at}
            self.lines[at] = replace(line, fields=fields)
        return self.lines

    # ---- Which registers there are, and where they begin ----

    def _collect(self, items: Sequence[Item], chain: list[Repeat | Guard]) -> None:
        for item in items:
            if isinstance(item, Step):
                for operand in item.fields.values():
                    if isinstance(operand, Where):
                        self._need(operand.key, chain)
                    elif isinstance(operand, Key):
                        self._need(operand, chain)
            elif isinstance(item, Repeat | Guard):
                self._collect(item.items, [*chain, item])
            elif isinstance(item, Part):
                self._collect(item.items, chain)

    def _need(self, key: Key, chain: list[Repeat | Guard]) -> None:
        factors = dict(key.terms)
        frames = [
            index
            for index, frame in enumerate(chain)
            if isinstance(frame, Repeat) and frame.var in factors
        ]
        if len(frames) != len(factors):
            names = ", ".join(var.name for var in factors)
            raise Unsupported(f"an address needs {names} outside of their loops")
        if not frames:
            self._add(None, key, ())
            return
        first, last = frames[0], frames[-1]
        guards = [i for i in range(first, last) if isinstance(chain[i], Guard)]
        outer: tuple[tuple[Var, int], ...] = ()
        home: Repeat | Guard = chain[first]
        if guards:
            home = chain[guards[-1]]
            known = [chain[i] for i in frames if i < guards[-1]]
            outer = tuple(
                (frame.var, factors[frame.var]) for frame in known if isinstance(frame, Repeat)
            )
            for var, _ in outer:
                self._need(variable_key(var), chain[: guards[-1]])
            first = guards[-1] + 1
        if not self._add(home, key, outer):
            return
        inner = 0
        for frame in reversed(chain[first : last + 1]):
            if isinstance(frame, Repeat):
                own = factors.get(frame.var, 0)
                if own - inner:
                    self._increments.setdefault(frame, {})[key] = own - inner
                inner = own * frame.count
        # A loop between those of the variables sets the inner ones back.

    def _add(
        self, home: Repeat | Guard | None, key: Key, outer: tuple[tuple[Var, int], ...]
    ) -> bool:
        keys = self._before.setdefault(home, [])
        if any(known == key for known, _ in keys):
            return False
        keys.append((key, outer))
        return True

    # ---- Lines ----

    def _line(self, instruction: str, **fields: FieldValue) -> None:
        self._step(step_of(self.machine, instruction, fields))

    def _take(self) -> int:
        if not self._free:
            raise Unsupported(
                f"more than {self.first_temporary - 1} registers are needed at a time"
            )
        return self._free.pop()

    def _begin(self, home: Repeat | Guard | None) -> list[Key]:
        began = []
        for key, outer in self._before.get(home, ()):
            if key in self._registers:
                continue
            register = self._take()
            self._line("set", to=register, value=key.segment << SEGMENT_BITS)
            scratch = self.machine.registers - 1
            for var, factor in outer:
                self._line("set", to=scratch, value=factor)
                of_var = self._registers[variable_key(var)]
                self._line("alu", to=scratch, a=scratch, b=of_var, op="mul", type="i64")
                self._line("alu", to=register, a=register, b=scratch, op="add", type="i64")
            self._registers[key] = register
            began.append(key)
        return began

    def _end(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._free.append(self._registers.pop(key))

    def _emit(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Step):
                self._step(item)
            elif isinstance(item, Mark):
                self._marks[item] = len(self.lines)
            elif isinstance(item, Guard):
                began = self._begin(item)
                self._emit(item.items)
                self._end(began)
            elif isinstance(item, Part):
                around, self._source = self._source, item.source
                self._emit(item.items)
                self._source = around
            else:
                self._repeat(item)

    def _repeat(self, item: Repeat) -> None:
        began = self._begin(item)
        pairs = [
            (self._registers[key], value)
            for key, value in self._increments.get(item, {}).items()
            if key in self._registers
        ]
        if _height(item) > self.machine.loop_depth or item.count > self._most_iterations:
            self._counted(item, pairs)
        else:
            self._line("loop", count=item.count)
            self._emit(item.items)
            most = self._increments_of_next
            for register, value in pairs[most:]:
                self._line("step", to=register, a=register, value=_fits(value))
            fields: dict[str, FieldValue] = {}
            for index, (register, value) in enumerate(pairs[:most]):
                fields |= {f"r{index}": register, f"v{index}": _fits(value)}
            self._line("next", **fields)
        self._end(began)

    @property
    def _most_iterations(self) -> int:
        """How often a hardware loop is executed at most."""
        known = self.machine.instructions.get("loop")
        count = None if known is None else known.fields.get("count")
        return count.range[1] if isinstance(count, Number) else 0

    @property
    def _increments_of_next(self) -> int:
        """How many registers the end of a hardware loop increases."""
        fields = self.machine.instructions["next"].fields
        return sum(f"r{index}" in fields for index in range(len(fields)))

    def _counted(self, item: Repeat, pairs: Sequence[tuple[int, int]]) -> None:
        """Add a loop by a branch, where there are more loops in it than the hardware has."""
        counter = self._take()
        self._line("set", to=counter, value=item.count)
        begin = len(self.lines)
        self._emit(item.items)
        for register, value in (*pairs, (counter, -1)):
            self._line("step", to=register, a=register, value=_fits(value))
        self._line("branch", when="other", a=counter, lines=begin - len(self.lines))
        self._free.append(counter)

    def _step(self, item: Step) -> None:
        fields: dict[str, FieldValue] = {}
        for name, operand in item.fields.items():
            if isinstance(operand, Target):
                self._branches.append((len(self.lines), operand.mark))
                operand = 0
            fields[name] = self._resolved(operand)
        self.lines.append(Line(item.instruction, fields, source=self._source))

    def _resolved(self, operand: Operand) -> FieldValue:
        match operand:
            case Where():
                return Place(self._registers[operand.key], _fits(operand.offset))
            case Key():
                return self._registers[operand]
            case Temporary(number=number):
                return self.first_temporary + number
            case Named(var=var):
                if var not in self._named:
                    self._named[var] = self._take()
                return self._named[var]
            case Computed(register=Temporary(number=number), offset=offset):
                return Place(self.first_temporary + number, _fits(offset))
            case Target():
                raise AssertionError("they were replaced")
        return operand


def _height(item: Item) -> int:
    """Return how many loops are in each other, from this one on."""
    if not isinstance(item, Repeat | Guard | Part):
        return 0
    return isinstance(item, Repeat) + max(map(_height, item.items), default=0)


def _fits(value: int) -> int:
    if not -(1 << 31) <= value < 1 << 31:
        raise Unsupported(f"an address is {value} bytes from the register of its segment")
    return value


def flat(items: Sequence[Item]) -> Iterator[Item]:
    """Iterate over what is in and outside of loops, parts and guards, but not over those."""
    for item in items:
        if isinstance(item, Repeat | Guard | Part):
            yield from flat(item.items)
        else:
            yield item


def steps_of(items: Sequence[Item]) -> Iterator[Step]:
    """Iterate over all instructions, in and outside of loops."""
    return (item for item in flat(items) if isinstance(item, Step))


def executed(items: Sequence[Item]) -> int:
    """Return how many instructions are executed, if branches are not taken."""
    total = 0
    for item in items:
        if isinstance(item, Repeat | Guard | Part):
            total += executed(item.items) * (item.count if isinstance(item, Repeat) else 1)
        else:
            total += isinstance(item, Step)
    return total
