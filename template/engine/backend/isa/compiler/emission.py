# SPDX-License-Identifier: Apache-2.0
"""Instructions that move and compute tiles: of any number of loops, each as few as it can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from ..kinds import ELEMENT_BYTES, Address
from ..machine import Machine
from ..operations import NUMPY_TYPES, has_operation
from .code import Item, Operand, Repeat, Step, Where, memory_of, step_of
from .loops import Affine, Buffer, Const, Unsupported, Var, divisors
from .nests import merged
from .roles import counts_of

ALIGNMENT = 64
"""Tiles begin at multiples of so many bytes."""

_MOST_FILLED = 1024
"""So many bytes has a constant at most that tiles are filled with."""


_SHORT = 16 << 10
"""Moves of so many bytes take much longer than it takes to begin them."""


_STRIDES = {"multiplier": "scale", "shift": "scale"}
"""Of operands whose distances are in fields of another name."""


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
    """The part of a scratchpad that a nest may use; `tile` bytes of it for what it moves, or 0."""

    base: int
    size: int
    tile: int = 0
    used: int = 0
    lasting: set[int] = field(default_factory=set)
    most: int = 0
    """How many bytes were used at a time."""

    def room(self, whole: int, *, moves: bool) -> int:
        """Return how many bytes the tiles of an iteration should have, where all would have some.

        If it moves, two iterations are there in turn, and the first and the last should be short.
        """
        most = self.size - 1024
        return min(most // 2, self.tile or max(whole // 8, _SHORT)) if moves else most

    def take(self, size: int, *, lasting: bool = False) -> Where:
        """Return a place for so many bytes; one that is lasting is the same in all iterations."""
        aligned = -(-size // ALIGNMENT) * ALIGNMENT
        if self.used + aligned > self.size:
            raise Unsupported(f"its tiles need more than {self.size} bytes of scratchpad")
        self.used += aligned
        self.most = max(self.most, self.used)
        found = Where(self.base + self.used - aligned)
        if lasting:
            self.lasting.add(found.base)
        return found

    def clear(self) -> None:
        """Let all of it be free."""
        self.used = 0
        self.lasting.clear()


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
    """

    def __init__(
        self,
        machine: Machine,
        place_of: Callable[[Buffer], Where],
        scratch: Scratch,
        outer: Mapping[Var, int],
        pool: Callable[[bytes], Where],
    ) -> None:
        self.machine = machine
        self.place_of = place_of
        self.scratch = scratch
        self.outer = outer
        self.pool = pool
        self.items: list[Item] = []
        self.before: list[Item] = []
        """What is done once, before the loops over tiles."""

    @contextmanager
    def _once(self) -> Iterator[None]:
        """Let instructions be before the loops over tiles."""
        outside, self.items = self.items, self.before
        yield
        self.items = outside

    def _as_tile(self, part: Tile | Const, loops: Sequence[tuple[Var, int]], kind: str) -> Tile:
        """Return a number as an operand."""
        if isinstance(part, Tile):
            return part
        tile = Tile(self.scratch.take(ELEMENT_BYTES[kind], lasting=True), {}, kind)
        with self._once():
            if is_exact(part):
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

    def _rank(self, instruction: str) -> int:
        """Return how many dimensions an instruction has."""
        known = self.machine.instructions.get(instruction)
        return 0 if known is None else counts_of(known, "count")

    def _step(self, instruction: str, fields: Mapping[str, Operand]) -> Step:
        return step_of(self.machine, instruction, fields)

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
        }.get(instruction)
        known = self.machine.instructions.get(instruction)
        if names is None:
            assert known is not None
            kinds = known.fields.items()
            names = tuple(n for n, kind in kinds if isinstance(kind, Address) and n != "target")
        every = {"target": target, **dict(zip(names, tiles, strict=True))}
        if known is not None and "type" in known.fields and "type" not in fields:
            fields["type"] = target.type
        dims = merged(dims_of(loops, tuple(every.values())))
        # An operand that a loop does not change is computed once.
        dims = [(n, strides) for n, strides in dims if strides[0] or instruction == "red"]
        rank = self._rank(instruction)
        outer, inner = outer_of(dims, rank)
        if instruction == "rescale":
            # Multipliers and shifts have one distance, that of the last dimension.
            while len(inner) > 1 and any(strides[2] or strides[3] for _, strides in inner[:-1]):
                outer.append(inner.pop(0))
        places = {name: tile.place for name, tile in every.items()}
        around: list[tuple[Var, int]] = []
        for count, strides in outer:
            var = Var("t")
            around.append((var, count))
            for name, stride in zip(places, strides, strict=True):
                places[name] = places[name].plus(Affine(0, {var: stride}))
        step_fields: dict[str, Operand] = {**fields, **places}
        first = rank - len(inner)
        for index, (count, strides) in enumerate(inner):
            step_fields[f"count{first + index}"] = count
            for name, stride in zip(places, strides, strict=True):
                field_ = f"{_STRIDES.get(name, name)}{first + index}"
                if stride or (known is not None and field_ in known.fields):
                    step_fields[field_] = stride
        self.items += repeated(around, [self._step(instruction, step_fields)])

    def _fill(self, loops: Sequence[tuple[Var, int]], target: Tile, value: Const) -> None:
        if not is_exact(value):
            tile = self._as_tile(value, loops, target.type)
            self._vector("cvt", loops, target, (tile,), source=target.type)
            return
        if "fill" not in self.machine.instructions:
            self._fill_by_moves(loops, target, value)
            return
        self._vector("fill", loops, target, (), value=float(value.value))

    def _fill_by_moves(self, loops: Sequence[tuple[Var, int]], target: Tile, value: Const) -> None:
        """Fill a tile with a constant that has as many elements as lie behind each other."""
        size = ELEMENT_BYTES[target.type]
        dims = merged(dims_of(loops, (target,)))
        count = dims[-1][0] if dims and dims[-1][1] == (size,) else 1
        row = next(part for part in divisors(count) if part * size <= _MOST_FILLED)
        if count > 1:
            dims[-1:] = [(count // row, (row * size,)), (row, (size,))]
        variables = [(Var("f"), count) for count, _ in dims]
        strides = {var: step for (var, _), (_, (step,)) in zip(variables, dims, strict=True)}
        data = np.full(row, value.value, NUMPY_TYPES[target.type]).tobytes()
        source = Tile(self.pool(data), {variables[-1][0]: size} if count > 1 else {}, target.type)
        self._move(variables, source, Tile(target.place, strides, target.type))

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
            if isinstance(part, Const) and not is_exact(part)
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
        # What is the same elsewhere is repeated around them.
        relevant.sort(key=lambda loop: -abs(far.strides.get(loop[0], 0)) or -math.inf)
        dims = merged([*dims_of(relevant, (source, target)), (size, (1, 1))])
        if not dims or dims[-1][1] != (1, 1):
            dims.append((1, (1, 1)))
        bytes_, rest = dims[-1][0], dims[:-1]
        instruction = "ld" if is_load else "st"
        rank = self._rank(instruction)
        outer, inner = outer_of(rest, rank)
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
        first = rank - len(inner)
        for index, (count, (of, to)) in enumerate(inner):
            at = first + index
            fields |= {f"count{at}": count, f"source{at}": of, f"target{at}": to}
        self.items += repeated(around, [self._step(instruction, fields)])

    def _is_segment(self, tile: Tile) -> bool:
        return self.machine.memory(memory_of(self.machine, tile.place)).is_segmented


def is_exact(value: Const) -> bool:
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


def in_turn(loops: Sequence[tuple[Var, int]], items: list[Item], scratch: Scratch) -> list[Item]:
    """Put items in loops, with a second place for their tiles if the scratchpad has it.

    The innermost loop uses the two in turn: while one tile is computed, the next one is moved.
    """
    if not loops or not scratch.used or 2 * scratch.used > scratch.size:
        return repeated(loops, items)
    scratch.most = max(scratch.most, 2 * scratch.used)
    *outer, (var, count) = loops
    fresh = Var(var.name)
    terms = {fresh: 2} if count > 3 else {}
    pair = [
        item
        for index, later in enumerate((0, scratch.used))
        for item in _with(items, {var: Affine(index, terms)}, scratch, later)
    ]
    inner = repeated([(fresh, count // 2)] if terms else [], pair)
    if count % 2:
        inner += _with(items, {var: Affine(count - 1)}, scratch, 0)
    return repeated(outer, inner)


def _with(
    items: Sequence[Item], values: Mapping[Var, Affine], scratch: Scratch, later: int
) -> list[Item]:
    """Return items with variables replaced, and their tiles so many bytes later."""

    def of(operand: Operand) -> Operand:
        if not isinstance(operand, Where):
            return operand
        is_tile = 0 <= operand.base - scratch.base < scratch.used
        moves = is_tile and operand.base not in scratch.lasting
        return replace(operand.replaced(values), base=operand.base + later * moves)

    found: list[Item] = []
    for item in items:
        if isinstance(item, Repeat):
            fresh = Var(item.var.name)
            inner = {**values, item.var: Affine(0, {fresh: 1})}
            found.append(Repeat(fresh, item.count, _with(item.items, inner, scratch, later)))
        else:
            assert isinstance(item, Step)
            fields = {name: of(operand) for name, operand in item.fields.items()}
            found.append(Step(item.instruction, fields))
    return found
