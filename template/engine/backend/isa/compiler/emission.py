# SPDX-License-Identifier: Apache-2.0
"""Instructions that move and compute tiles: of any number of loops, each as few as it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..kinds import ELEMENT_BYTES, Address, Number
from ..machine import CONSTANTS, SEGMENT_BITS, Machine
from ..oracle import NUMPY_TYPES, has_operation
from .code import Item, Operand, Repeat, Step, Where
from .loops import Affine, Buffer, Const, Unsupported, Var
from .nests import merged

ALIGNMENT = 64
"""Tiles begin at multiples of so many bytes."""


@dataclass(frozen=True)
class Tile:
    """An operand: where its first element is, and how many bytes later the next one in each loop.

    Loops that `strides` does not have do not change it.
    """

    place: Where
    strides: Mapping[Var, int]
    type: str


@dataclass
class Scratch:
    """The part of a scratchpad that a nest may use."""

    base: int
    size: int
    used: int = 0

    def take(self, size: int) -> Where:
        """Return a place for so many bytes."""
        aligned = -(-size // ALIGNMENT) * ALIGNMENT
        if self.used + aligned > self.size:
            raise Unsupported(f"its tiles need more than {self.size} bytes of scratchpad")
        self.used += aligned
        return Where(self.base + self.used - aligned)


class Emission:
    """Makes instructions of the engines that move data and compute with vectors.

    Parameters
    ----------
    machine
        The machine.
    place_of
        The address of a buffer's first element.
    scratch
        The part of the scratchpad that is free.
    outer
        The loops around the nests, and how often they are executed.
    pool
        Returns the address of a constant with these bytes.
    note
        What the instructions are for.
    """

    def __init__(
        self,
        machine: Machine,
        place_of: Callable[[Buffer], Where],
        scratch: Scratch,
        outer: Mapping[Var, int],
        pool: Callable[[bytes], Where],
        note: str,
    ) -> None:
        self.machine = machine
        self.place_of = place_of
        self.scratch = scratch
        self.outer = outer
        self.pool = pool
        self.note = note
        self.items: list[Item] = []

    def _as_tile(self, part: Tile | Const, loops: Sequence[tuple[Var, int]], kind: str) -> Tile:
        """Return a number as an operand."""
        if isinstance(part, Tile):
            return part
        tile = Tile(self.scratch.take(ELEMENT_BYTES[kind]), {}, kind)
        if _is_exact(part):
            self._fill(loops, tile, part)
        else:
            data = np.array(part.value, NUMPY_TYPES[kind]).tobytes()
            self._move(loops, Tile(self.pool(data), {}, kind), tile)
        return tile

    # ---- Instructions ----

    def _has(self, instruction: str, op: str, kind: str) -> bool:
        known = self.machine.instructions.get(instruction)
        if known is None:
            return False
        for name, wanted in (("op", op), ("type", kind), ("fun", op)):
            choice = known.fields.get(name)
            if choice is not None and wanted not in getattr(choice, "names", ()):
                return False
        return True

    def _step(self, instruction: str, fields: Mapping[str, Operand]) -> Step:
        """Return an instruction; numbers and strides that are left out are 1 and 0.

        Raises
        ------
        Unsupported
            The machine has no such instruction, or its fields do not hold a number.
        """
        known = self.machine.instructions.get(instruction)
        if known is None:
            raise Unsupported(f"the machine has no instruction {instruction}")
        complete: dict[str, Operand] = {}
        for name, kind in known.fields.items():
            default = kind.range[0] if isinstance(kind, Number) and kind.range[0] > 0 else 0
            value = fields.get(name, default)
            if isinstance(kind, Number) and isinstance(value, int):
                low, high = kind.range
                if not low <= value <= high:
                    raise Unsupported(f"{name} of {instruction} is {value}, at most {high}")
            if isinstance(kind, Address) and isinstance(value, Where):
                memory = self._memory_of(value)
                if memory not in kind.memories:
                    raise Unsupported(
                        f"{name} of {instruction} is in {memory}; it may be in "
                        f"{', '.join(kind.memories)}"
                    )
            complete[name] = value
        return Step(instruction, complete, self.note)

    def _vector(
        self,
        instruction: str,
        loops: Sequence[tuple[Var, int]],
        target: Tile,
        operands: Sequence[Tile | Const],
        **fields: Operand,
    ) -> None:
        tiles = [part for part in operands if isinstance(part, Tile)]
        names = {
            "cvt": ("a",),
            "act": ("a",),
            "vecs": ("a",),
            "vec": ("a", "b"),
            "sel": ("when", "a", "b"),
            "fill": (),
        }[instruction]
        every = {"target": target, **dict(zip(names, tiles, strict=True))}
        known = self.machine.instructions.get(instruction)
        if known is not None and "type" in known.fields and "type" not in fields:
            fields["type"] = target.type
        dims = merged(dims_of(loops, tuple(every.values())))
        # An operand that a loop does not change is computed once.
        dims = [(n, strides) for n, strides in dims if strides[0] or instruction == "red"]
        outer, inner = outer_of(dims, 3)
        places = {name: tile.place for name, tile in every.items()}
        around: list[tuple[Var, int]] = []
        for count, strides in outer:
            var = Var("t")
            around.append((var, count))
            for name, stride in zip(places, strides, strict=True):
                places[name] = places[name].plus(Affine(0, {var: stride}))
        step_fields: dict[str, Operand] = {**fields, **places}
        first = 3 - len(inner)
        for index, (count, strides) in enumerate(inner):
            step_fields[f"count{first + index}"] = count
            for name, stride in zip(places, strides, strict=True):
                step_fields[f"{name}{first + index}"] = stride
        self.items += repeated(around, [self._step(instruction, step_fields)])

    def _fill(self, loops: Sequence[tuple[Var, int]], target: Tile, value: Const) -> None:
        if not _is_exact(value):
            tile = self._as_tile(value, loops, target.type)
            self._vector("cvt", loops, target, (tile,), source=target.type)
            return
        self._vector("fill", loops, target, (), value=float(value.value))

    def _function(
        self, fun: str, loops: Sequence[tuple[Var, int]], target: Tile, part: Tile | Const
    ) -> None:
        if target.type != "f32" or not self._has("act", fun, "f32"):
            raise Unsupported(f"no vector instruction means {fun} of {target.type}")
        self._vector("act", loops, target, (part,), fun=fun)

    def _binary(
        self,
        op: str,
        loops: Sequence[tuple[Var, int]],
        target: Tile,
        one: Tile | Const,
        other: Tile | Const,
        kind: str,
    ) -> None:
        one, other = (
            self._as_tile(part, loops, kind)
            if isinstance(part, Const) and not _is_exact(part)
            else part
            for part in (one, other)
        )
        instruction = "vec" if isinstance(one, Tile) and isinstance(other, Tile) else "vecs"
        if not self._has(instruction, op, kind) or not has_operation(op, kind):
            raise Unsupported(f"no vector instruction means {op} of {kind}")
        fields: dict[str, Operand] = {"op": op, "type": kind}
        if instruction == "vecs":
            number = other if isinstance(other, Const) else one
            assert isinstance(number, Const)
            fields |= {
                "order": "last" if number is other else "first",
                "value": float(number.value),
            }
        self._vector(instruction, loops, target, (one, other), **fields)

    def _move(self, loops: Sequence[tuple[Var, int]], source: Tile, target: Tile) -> None:
        """Move a tile to or from the memory of tensors."""
        size = ELEMENT_BYTES[source.type]
        relevant = [
            (var, count)
            for var, count in loops
            if source.strides.get(var) or target.strides.get(var)
        ]
        # The order of the elements in the memory of tensors makes the longest rows.
        is_load = self._is_segment(source)
        far = source if is_load else target
        relevant.sort(key=lambda loop: -abs(far.strides.get(loop[0], 0)))
        dims = merged([*dims_of(relevant, (source, target)), (size, (1, 1))])
        if not dims or dims[-1][1] != (1, 1):
            dims.append((1, (1, 1)))
        bytes_, rest = dims[-1][0], dims[:-1]
        outer, inner = outer_of(rest, 2)
        places = [source.place, target.place]
        around: list[tuple[Var, int]] = []
        for count, strides in outer:
            var = Var("t")
            around.append((var, count))
            places = [
                place.plus(Affine(0, {var: stride}))
                for place, stride in zip(places, strides, strict=True)
            ]
        fields: dict[str, Operand] = {"source": places[0], "target": places[1], "bytes": bytes_}
        first = 2 - len(inner)
        for index, (count, (of, to)) in enumerate(inner):
            at = first + index
            fields |= {f"count{at}": count, f"source{at}": of, f"target{at}": to}
        instruction = "ld" if is_load else "st"
        self.items += repeated(around, [self._step(instruction, fields)])

    def _memory_of(self, place: Where) -> str:
        """Return the name of the memory that an address is in."""
        segment = place.base >> SEGMENT_BITS
        for memory in self.machine.memories:
            is_there = segment == self.machine.base(memory.name) >> SEGMENT_BITS
            if memory.is_segmented and segment >= CONSTANTS:
                return memory.name
            if not memory.is_segmented and is_there:
                return memory.name
        raise AssertionError(f"no memory has segment {segment}")

    def _is_segment(self, tile: Tile) -> bool:
        return self.machine.memory(self._memory_of(tile.place)).is_segmented


def _is_exact(value: Const) -> bool:
    """Whether the instructions have such a number: as float32."""
    return isinstance(value.value, float) or float(np.float32(value.value)) == value.value


def dims_of(
    loops: Sequence[tuple[Var, int]], tiles: Sequence[Tile]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the dimensions of loops: how often, and how many bytes later for each tile."""
    return [(count, tuple(tile.strides.get(var, 0) for tile in tiles)) for var, count in loops]


def outer_of(
    dims: list[tuple[int, tuple[int, ...]]], most: int
) -> tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, tuple[int, ...]]]]:
    """Split dimensions into those of loops around an instruction, and those that it has."""
    at = max(0, len(dims) - most)
    return dims[:at], dims[at:]


def repeated(loops: Sequence[tuple[Var, int]], items: list[Item]) -> list[Item]:
    """Put items in loops, the outermost first."""
    for var, count in reversed(loops):
        items = [Repeat(var, count, items)]
    return items
