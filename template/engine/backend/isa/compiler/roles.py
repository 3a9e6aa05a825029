# SPDX-License-Identifier: Apache-2.0
"""What the table of a machine says to rules and selection: which memories are for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..encoding import EncodingError, check_conditions
from ..kinds import ELEMENT_BYTES, Address, Choice, FieldValue, Number
from ..machine import Instruction, Machine, Memory
from ..oracle import value_of

_PRODUCT_TYPES = (("f32", "f32", "f32"), ("i8", "i8", "i32"), ("u8", "i8", "i32"))
_SHARES = {"data": 4, "weights": 2, "sums": 2}
"""One of how many parts of its memory an operand of a tile has: data and weights are there twice,
and beside data are the tiles of vectors."""


@dataclass(frozen=True)
class Matrix:
    """What the table says of `mm`, or of `dw`.

    Parameters
    ----------
    data, weights, sums
        The memory of each operand: the first one of its address.
    types
        The types of data, weights and sums that it multiplies.
    width
        By type of data, how many columns take as long as one.
    rooms
        By operand, how many bytes a tile of it may have.
    """

    data: str
    weights: str
    sums: str
    types: frozenset[tuple[str, str, str]]
    width: Mapping[str, int]
    rooms: dict[str, int]


def matrix_of(machine: Machine, name: str = "mm") -> Matrix | None:
    """Return what the table says of an instruction; None: it is not there, or operands are far."""
    known = machine.instructions.get(name)
    if known is None:
        return None
    fields = {"data": "source", "weights": "weights", "sums": "target"}
    memories = {role: _first(machine, known, name) for role, name in fields.items()}
    names = {role: memory.name for role, memory in memories.items() if memory is not None}
    if len(names) < len(fields):
        return None
    sharing = Counter(names.values())
    rooms = {
        role: machine.memory(name).bytes // (_SHARES[role] * sharing[name])
        for role, name in names.items()
    }
    types = frozenset(kinds for kinds in _PRODUCT_TYPES if _multiplies(known, kinds))
    width = {data: _width(known, data) for data, *_ in types}
    return Matrix(**names, types=types, width=width, rooms=rooms)


def near_of(machine: Machine) -> Memory | None:
    """Return the memory of tiles: one that moves reach, and vectors if there are any."""
    addresses = [
        kind.memories
        for name, field in (("ld", "target"), ("st", "source"), ("vec", "a"), ("vec", "target"))
        if name in machine.instructions
        and isinstance(kind := machine.instructions[name].fields.get(field), Address)
    ]
    for memory in machine.memories:
        if not memory.is_segmented and all(memory.name in names for names in addresses):
            return memory
    return None


def most_of(known: Instruction, name: str, **others: FieldValue) -> int:
    """Return the largest number that a field has, halved until conditions with others are met.

    0 if there is none.
    """
    kind = known.fields.get(name)
    number = kind.range[1] if isinstance(kind, Number) else 0
    while number:
        try:
            check_conditions(known, {**_least(known), **others, name: number})
        except EncodingError:
            number //= 2
        else:
            break
    return number


def counts_of(known: Instruction, name: str) -> int:
    """Return how many dimensions an instruction has: how many fields are `name` and a digit."""
    return sum(f"{name}{index}" in known.fields for index in range(len(known.fields)))


def _first(machine: Machine, known: Instruction, name: str) -> Memory | None:
    """Return the first memory of an address that holds no tensors."""
    kind = known.fields.get(name)
    names = kind.memories if isinstance(kind, Address) else ()
    return next((it for it in map(machine.memory, names) if not it.is_segmented), None)


def _least(known: Instruction) -> dict[str, FieldValue]:
    """Return the least fields of an instruction, as far as expressions read them."""
    return {
        name: kind.names[0]
        if isinstance(kind, Choice)
        else max(0, kind.range[0])
        if isinstance(kind, Number)
        else 0
        for name, kind in known.fields.items()
    }


def _multiplies(known: Instruction, kinds: tuple[str, str, str]) -> bool:
    """Whether an instruction has elements of these types, by the sizes of its boxes."""
    choice = known.fields.get("type")
    if not isinstance(choice, Choice) or kinds[0] not in choice.names:
        return False
    fields: dict[str, FieldValue] = {**_least(known), "type": kinds[0], "k": 1, "n": 1}
    sizes = {box.address: value_of(box.bytes, known, fields) for box in known.boxes}
    wanted = dict(zip(("source", "weights", "target"), kinds, strict=True))
    return all(sizes.get(name) == ELEMENT_BYTES[kind] for name, kind in wanted.items())


def _width(known: Instruction, kind: str) -> int:
    """Return how many columns take as long as one."""
    fields = {**_least(known), "type": kind}
    alone = value_of(known.cycles, known, {**fields, "n": 1})
    width, most = 1, most_of(known, "n", type=kind)
    while 2 * width <= most and value_of(known.cycles, known, {**fields, "n": 2 * width}) == alone:
        width *= 2
    return width
