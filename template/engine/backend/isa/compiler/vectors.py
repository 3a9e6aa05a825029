# SPDX-License-Identifier: Apache-2.0
"""Selects moves and vector instructions for loop nests.

What a nest reads and writes in the memory of tensors goes through a scratchpad, tile by tile; an
operand that is there already, because a schedule put it there, is used as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..kinds import ELEMENT_BYTES
from .code import Item, Operand
from .emission import ALIGNMENT, Emission, Tile, dims_of, outer_of, repeated
from .loops import (
    Affine,
    Buffer,
    Cast,
    Const,
    Expr,
    Fun,
    Load,
    Op,
    Pick,
    Unsupported,
    Var,
    children,
    text_of,
)
from .nests import Nest, index_of, merged, split_at, without_conditions

_REDUCTIONS = ("add", "mul", "min", "max")


@dataclass
class _Plan:
    """How a nest is executed: its loops outside of tiles, and those in them."""

    outer_kept: list[tuple[Var, int]] = field(default_factory=list)
    outer_reduced: list[tuple[Var, int]] = field(default_factory=list)
    kept: list[tuple[Var, int]] = field(default_factory=list)
    reduced: list[tuple[Var, int]] = field(default_factory=list)
    moved: dict[Var, Affine] = field(default_factory=dict)


class Vectors(Emission):
    """Selects instructions of the engines that move data and compute with vectors."""

    def of(self, nest: Nest) -> list[Item]:
        """Return the instructions of a nest.

        Raises
        ------
        Unsupported
            Vector instructions do not mean it; the message says why.
        """
        items: list[Item] = []
        for part in without_conditions(nest, self.outer):
            items += self._part(part)
        return items

    # ---- Tiles ----

    def _part(self, nest: Nest) -> list[Item]:
        reduction = _reduction_of(nest)
        target = index_of(nest.store)
        value = nest.store.value if reduction is None else reduction[1]
        kept = [(var, count) for var, count in nest.loops if target.of(var)]
        reduced = [(var, count) for var, count in nest.loops if not target.of(var)]
        if reduction is None:
            if any(count > 1 for _, count in reduced):
                raise Unsupported("elements are assigned again and again")
            reduced = []
        kept.sort(key=lambda loop: -abs(target.of(loop[0])))
        rows = reduction is not None and _is_rows(value, kept, reduced)
        reduced.sort(key=lambda loop: -_stride_of(value, loop[0]))
        order = [*kept, *reduced] if rows else [*reduced, *kept]
        sizes = {var: 1 for var, _ in order}
        whole: set[Var] = set()
        for var, count in reversed(order):
            best = self._largest(nest, value, reduction is not None, rows, sizes, var, count)
            sizes[var] = best
            if best < count:
                break
            whole.add(var)
        for var, count in order:
            rest = count % sizes[var]
            if rest:
                return [
                    item for part in split_at(nest, var, count - rest) for item in self._part(part)
                ]
        plan = _Plan(moved={var: Affine() for var, count in nest.loops if count == 1})
        for loops, outer, inner in (
            (kept, plan.outer_kept, plan.kept),
            (reduced, plan.outer_reduced, plan.reduced),
        ):
            for var, count in loops:
                size = sizes[var]
                terms: dict[Var, int] = {}
                if count > size:
                    over = Var(f"{var.name}_o")
                    outer.append((over, count // size))
                    terms[over] = size
                if size > 1:
                    within = Var(f"{var.name}_i")
                    inner.append((within, size))
                    terms[within] = 1
                plan.moved[var] = Affine(0, terms)
        return self._tiled(nest, plan, value, None if reduction is None else reduction[0], rows)

    def _largest(
        self,
        nest: Nest,
        value: Expr,
        is_reduction: bool,
        rows: bool,
        sizes: Mapping[Var, int],
        var: Var,
        count: int,
    ) -> int:
        def fits(size: int) -> bool:
            trial = {**sizes, var: size}
            return (
                self._footprint(nest, value, is_reduction, rows, trial) <= self.scratch.size - 1024
            )

        if fits(count):
            return count
        low, high = 1, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        # A size that divides the count, if it is not much smaller.
        for size in range(low, max(1, low // 2), -1):
            if count % size == 0:
                return size
        return low

    def _footprint(
        self,
        nest: Nest,
        value: Expr,
        is_reduction: bool,
        rows: bool,
        sizes: Mapping[Var, int],
    ) -> int:
        """Return how many bytes of scratchpad a tile needs."""
        target = index_of(nest.store)
        total = 0

        def add(variables: set[Var], kind: str, is_temporary: bool) -> None:
            nonlocal total
            count = 1
            for var in variables:
                # Columns are accumulated one after the other: temporaries have one.
                if not (is_temporary and is_reduction and not rows and not target.of(var)):
                    count *= sizes.get(var, 1)
            size = count * ELEMENT_BYTES[kind]
            total += -(-size // ALIGNMENT) * ALIGNMENT

        def walk(part: Expr, is_root: bool) -> set[Var]:
            if isinstance(part, Const):
                return set()
            if isinstance(part, Load):
                variables = {var for var in index_of(part).terms if var in sizes}
                if self._is_far(part.buffer):
                    add(variables, part.type, False)
                return variables
            found: set[Var] = set()
            for child in children(part):
                found |= walk(child, False)
            if not is_root or is_reduction:
                add(found, part.type, True)
            return found

        walk(value, True)
        if self._is_far(nest.store.buffer) or is_reduction:
            add({var for var in target.terms if var in sizes}, nest.store.buffer.type, False)
        return total

    def _is_far(self, buffer: Buffer) -> bool:
        return self.machine.memory(buffer.scope).is_segmented

    # ---- Instructions of a tile ----

    def _tiled(
        self, nest: Nest, plan: _Plan, value: Expr, op: str | None, rows: bool
    ) -> list[Item]:
        self.scratch.used = 0
        outside, self.items = self.items, []
        store = nest.store
        target = self._place(store.buffer, index_of(store), plan)
        far = self._is_far(store.buffer)
        staged = self._staged(target, plan.kept) if far else target
        if op is None:
            self._assign(value, plan, target, staged, far)
            inner = self.items
        else:
            if far:
                self._move(plan.kept, target, staged)
            before, self.items = self.items, []
            if rows:
                self._reduce_rows(value, plan, staged, op)
            else:
                self._reduce_columns(value, plan, staged, op)
            inner = [*before, *repeated(plan.outer_reduced, self.items)]
            self.items = inner
            if far:
                self._move(plan.kept, staged, target)
        made, self.items = repeated(plan.outer_kept, self.items), outside
        return made

    def _assign(self, value: Expr, plan: _Plan, target: Tile, staged: Tile, far: bool) -> None:
        if isinstance(value, Load) and value.type == target.type:
            if far and self._is_far(value.buffer):
                source = self._staged_load(value, plan, plan.kept)
            else:
                source = self._place(value.buffer, index_of(value), plan)
            if far or self._is_segment(source):
                self._move(plan.kept, source, target)
            elif source.place != target.place:
                self._vector("cvt", plan.kept, target, (source,), source=value.type)
            return
        self._value(value, plan, plan.kept, staged)
        if far:
            self._move(plan.kept, staged, target)

    def _reduce_rows(self, value: Expr, plan: _Plan, target: Tile, op: str) -> None:
        tile = self._value(value, plan, [*plan.kept, *plan.reduced])
        if isinstance(tile, Const):
            raise Unsupported("numbers are added to themselves")
        if not self._has("red", op, target.type):
            raise Unsupported(f"no instruction reduces {target.type} by {op}")
        kept = merged(dims_of(plan.kept, (target, tile)))
        columns = merged(dims_of(plan.reduced, (tile,))) or [(1, (ELEMENT_BYTES[tile.type],))]
        loops, inner = outer_of(kept, 2)
        more, last = columns[:-1], columns[-1]
        places = [target.place, tile.place]
        around: list[tuple[Var, int]] = []
        for count, strides in loops:
            var = Var("t")
            around.append((var, count))
            places = [
                place.plus(Affine(0, {var: stride}))
                for place, stride in zip(places, strides, strict=True)
            ]
        for count, (stride,) in more:
            var = Var("r")
            around.append((var, count))
            places[1] = places[1].plus(Affine(0, {var: stride}))
        fields: dict[str, Operand] = {
            **{"target": places[0], "a": places[1], "op": op, "type": target.type, "mode": "add"},
            "count2": last[0],
            "a2": last[1][0],
        }
        for index, (count, (to, of)) in enumerate(inner):
            fields |= {f"count{index}": count, f"target{index}": to, f"a{index}": of}
        self.items += repeated(around, [self._step("red", fields)])

    def _reduce_columns(self, value: Expr, plan: _Plan, target: Tile, op: str) -> None:
        outside, self.items = self.items, []
        # What is far is moved once for all columns.
        tiles = {
            load: self._staged_load(load, plan, [*plan.kept, *plan.reduced])
            for load in _loads(value)
            if self._is_far(load.buffer)
        }
        outside += self.items
        self.items = []
        tile = self._value(value, plan, plan.kept, None, tiles)
        self._binary(op, plan.kept, target, target, tile, target.type)
        self.items = [*outside, *repeated(plan.reduced, self.items)]

    # ---- Values ----

    def _place(self, buffer: Buffer, index: Affine, plan: _Plan) -> Tile:
        """Return an operand as it lies in its buffer."""
        size = ELEMENT_BYTES[buffer.type]
        found = Affine(index.constant, {})
        for var, factor in index.terms.items():
            found = found.plus(plan.moved.get(var, Affine(0, {var: 1})), factor)
        found = found.times(size)
        inner = [var for var, _ in (*plan.kept, *plan.reduced)]
        strides = {var: found.of(var) for var in inner if found.of(var)}
        return Tile(self.place_of(buffer).plus(found.without(inner)), strides, buffer.type)

    def _staged(self, tile: Tile, loops: Sequence[tuple[Var, int]]) -> Tile:
        """Take a place in the scratchpad for an operand, dense in the order of its elements."""
        size = ELEMENT_BYTES[tile.type]
        counts = dict(loops)
        order = sorted(
            (var for var in tile.strides if var in counts), key=lambda v: abs(tile.strides[v])
        )
        strides = {}
        for var in order:
            strides[var] = size
            size *= counts[var]
        return Tile(self.scratch.take(size), strides, tile.type)

    def _staged_load(self, load: Load, plan: _Plan, loops: Sequence[tuple[Var, int]]) -> Tile:
        source = self._place(load.buffer, index_of(load), plan)
        staged = self._staged(source, loops)
        self._move(loops, source, staged)
        return staged

    def _value(
        self,
        value: Expr,
        plan: _Plan,
        loops: Sequence[tuple[Var, int]],
        target: Tile | None = None,
        tiles: Mapping[Load, Tile] | None = None,
    ) -> Tile | Const:
        """Compute an expression for all elements of a tile, into a target if one is given."""
        match value:
            case Const():
                if target is not None:
                    self._fill(loops, target, value)
                return value
            case Var():
                raise Unsupported(f"the variable {value.name} is a value")
            case Load():
                if tiles is not None and value in tiles:
                    tile = tiles[value]
                elif self._is_far(value.buffer):
                    tile = self._staged_load(value, plan, loops)
                else:
                    tile = self._place(value.buffer, index_of(value), plan)
                tile = _within(tile, loops)
                if target is not None:
                    self._vector("cvt", loops, target, (tile,), source=tile.type)
                return tile
        parts = [self._value(part, plan, loops, None, tiles) for part in children(value)]
        if all(isinstance(part, Const) for part in parts):
            raise Unsupported(f"a constant expression is not known: {text_of(value)}")
        if target is None:
            target = self._temporary(parts, loops, value.type)
        match value:
            case Op(op=op, a=a):
                self._binary(op, loops, target, parts[0], parts[1], a.type)
            case Fun(fun=fun):
                self._function(fun, loops, target, parts[0])
            case Cast(a=a):
                self._vector("cvt", loops, target, parts, source=a.type)
            case Pick():
                when, one, other = parts
                if isinstance(when, Const):
                    raise Unsupported(f"a condition is not known: {text_of(value.when)}")
                one, other = (self._as_tile(part, loops, value.type) for part in (one, other))
                self._vector("sel", loops, target, (when, one, other))
        return target

    def _temporary(
        self, parts: Sequence[Tile | Const], loops: Sequence[tuple[Var, int]], kind: str
    ) -> Tile:
        variables = {var for part in parts if isinstance(part, Tile) for var in part.strides}
        size = ELEMENT_BYTES[kind]
        strides = {}
        for var, count in reversed(loops):
            if var in variables:
                strides[var] = size
                size *= count
        return Tile(self.scratch.take(size), strides, kind)


def _within(tile: Tile, loops: Sequence[tuple[Var, int]]) -> Tile:
    """Return an operand in some loops of a tile; the others are around its instructions."""
    inside = {var for var, _ in loops}
    around = {var: stride for var, stride in tile.strides.items() if var not in inside}
    strides = {var: stride for var, stride in tile.strides.items() if var in inside}
    return Tile(tile.place.plus(Affine(0, around)), strides, tile.type)


def _reduction_of(nest: Nest) -> tuple[str, Expr] | None:
    """Return by which operation, and what, a nest adds to its target.

    Raises
    ------
    Unsupported
        It reads other elements of its target: its loops have an order.
    """
    store = nest.store
    own = index_of(store)
    found: tuple[str, Expr] | None = None
    match store.value:
        case Op(op=op, a=Load(buffer=buffer) as load, b=rest) if buffer is store.buffer:
            if op in _REDUCTIONS and index_of(load) == own:
                found = op, rest
        case Op(op=op, a=rest, b=Load(buffer=buffer) as load) if buffer is store.buffer:
            if op in _REDUCTIONS and index_of(load) == own:
                found = op, rest
    loops = nest.extents
    if found is not None and all(own.of(var) for var, count in loops.items() if count > 1):
        found = None
    for load in _loads(store.value if found is None else found[1]):
        if load.buffer is store.buffer and (found is not None or index_of(load) != own):
            raise Unsupported(f"it reads other elements of {store.buffer.name}, which it writes")
    return found


def _loads(value: Expr) -> Iterator[Load]:
    if isinstance(value, Load):
        yield value
        return
    for part in children(value):
        yield from _loads(part)


def _stride_of(value: Expr, var: Var) -> int:
    """Return the largest distance of neighbours of a loop in what an expression reads."""
    return max((abs(index_of(load).of(var)) for load in _loads(value)), default=0)


def _is_rows(
    value: Expr, kept: Sequence[tuple[Var, int]], reduced: Sequence[tuple[Var, int]]
) -> bool:
    """Whether what is reduced lies behind each other, rather than what is kept."""
    near = [
        any(index_of(load).of(var) == 1 for var, count in loops if count > 1)
        for load in _loads(value)
        for loops in (kept, reduced)
    ]
    return any(near[1::2]) and not any(near[::2])
