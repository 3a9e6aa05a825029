# SPDX-License-Identifier: Apache-2.0
"""Selects moves and vector instructions for loop nests.

What a nest reads and writes in the memory of tensors goes through a scratchpad, tile by tile; an
operand that is there already, because a schedule put it there, is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from ..kinds import ELEMENT_BYTES
from .code import Item, Operand
from .emission import ALIGNMENT, Emission, Tile, dims_of, in_turn, is_exact, outer_of, repeated
from .fusion import meant
from .lookup import with_lookup
from .loops import (
    Affine,
    Buffer,
    Cast,
    Const,
    Expr,
    Fun,
    Load,
    Lookup,
    Op,
    Pick,
    Quantized,
    Rescale,
    Store,
    Unsupported,
    Var,
    children,
    loads_of,
    text_of,
)
from .nests import Nest, index_of, merged, reduction_of, split_at, without_conditions
from .quantizing import with_quantizing
from .rescaling import with_rescaling


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
        parts = without_conditions(nest, self.outer)
        for part in parts:
            store = part.store
            if len(parts) > 1 and isinstance(store.value, Const) and not self._is_far(store.buffer):
                items += self._padding(part, store.value)
                continue
            value = with_quantizing(with_rescaling(store.value, self.machine), self.machine)
            value = with_lookup(value, self.machine)
            items += self._part(Nest(part.loops, Store(store.buffer, store.index, value)))
        return items

    def _padding(self, nest: Nest, value: Const) -> list[Item]:
        """Move constants to where a copy has padding.

        Vectors would fill it, but only after those for the tile before.
        """
        plan = _Plan(kept=list(nest.loops), moved={v: Affine(0, {v: 1}) for v, _ in nest.loops})
        plan.kept.sort(key=lambda loop: -abs(index_of(nest.store).of(loop[0])))
        outside, self.items = self.items, []
        tile = self._place(nest.store.buffer, index_of(nest.store), plan)
        self._fill_by_moves(plan.kept, tile, value)
        made, self.items = self.items, outside
        return made

    # ---- Tiles ----

    def _part(self, nest: Nest) -> list[Item]:
        reduction = reduction_of(nest)
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
        is_far = any(map(self._is_far, _buffers(nest)))

        def footprint(sizes: Mapping[Var, int]) -> int:
            return self._footprint(nest, value, reduction is not None, rows, sizes)

        room = self.scratch.room(footprint(nest.extents), moves=is_far)

        def fits(others: Mapping[Var, int], var: Var, size: int) -> bool:
            return footprint({**others, var: size}) <= room

        sizes = {var: 1 for var, _ in order}
        for var, count in reversed(order):
            sizes[var] = _largest(partial(fits, {**sizes}, var), count)
            if sizes[var] < count:
                break
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
        is_copy = isinstance(value, Load) and value.type == nest.store.buffer.type
        if is_copy and not is_reduction and not all(map(self._is_far, _buffers(nest))):
            # It is moved at once.
            return 0

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
        self.scratch.clear()
        outside, self.items, self.before = self.items, [], []
        store = nest.store
        target = self._place(store.buffer, index_of(store), plan)
        far = self._is_far(store.buffer)
        staged = self._staged(target, plan.kept) if far else target
        if op is None:
            self._assign(value, plan, target, staged, far)
        else:
            if far:
                self._move(plan.kept, target, staged)
            first, self.items = self.items, []
            if rows:
                self._reduce_rows(value, plan, staged, op)
            else:
                self._reduce_columns(store, value, plan, staged, op)
            self.items = [*first, *repeated(plan.outer_reduced, self.items)]
            if far:
                self._move(plan.kept, staged, target)
        made = [*self.before, *in_turn(plan.outer_kept, self.items, self.scratch)]
        self.items = outside
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
        rank = self._rank("red")
        loops, inner = outer_of(kept, rank - 1)
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
            f"count{rank - 1}": last[0],
            f"a{rank - 1}": last[1][0],
        }
        for index, (count, (to, of)) in enumerate(inner):
            fields |= {f"count{index}": count, f"target{index}": to, f"a{index}": of}
        self.items += repeated(around, [self._step("red", fields)])

    def _reduce_columns(
        self, store: Store, value: Expr, plan: _Plan, target: Tile, op: str
    ) -> None:
        outside, self.items = self.items, []
        # What is far is moved once for all columns.
        tiles = {
            load: self._staged_load(load, plan, [*plan.kept, *plan.reduced])
            for load in loads_of(value)
            if self._is_far(load.buffer)
        }
        outside += self.items
        self.items = []
        own = Load(store.buffer, store.index)
        whole = Op(op, own, value, target.type)
        if self._fused(whole, plan, plan.kept, target, {**tiles, own: target}) is None:
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

    def _staged(
        self, tile: Tile, loops: Sequence[tuple[Var, int]], *, lasting: bool = False
    ) -> Tile:
        """Take a place in the scratchpad for an operand, dense in the order of its elements.

        `lasting`: it is the same in all iterations.
        """
        size = ELEMENT_BYTES[tile.type]
        counts = dict(loops)
        order = sorted(
            (var for var in tile.strides if var in counts), key=lambda v: abs(tile.strides[v])
        )
        strides = {}
        for var in order:
            strides[var] = size
            size *= counts[var]
        return Tile(self.scratch.take(size, lasting=lasting), strides, tile.type)

    def _staged_load(self, load: Load, plan: _Plan, loops: Sequence[tuple[Var, int]]) -> Tile:
        source = self._place(load.buffer, index_of(load), plan)
        around = {var for var, _ in (*plan.outer_kept, *plan.outer_reduced)}
        lasting = source.place.index.terms.keys().isdisjoint(around)
        staged = self._staged(source, loops, lasting=lasting)
        with self._once() if lasting else nullcontext():
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
        fused = self._fused(value, plan, loops, target, tiles or {})
        if fused is not None:
            return fused
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
            case Rescale():
                if any(isinstance(part, Const) for part in parts):
                    raise Unsupported(f"a constant is rescaled: {text_of(value)}")
                limits = {name: getattr(value, name) for name in ("zero", "least", "most")}
                self._vector("rescale", loops, target, parts, **limits)
            case Quantized():
                self._vector("vecq", loops, target, parts, **value.fields)
            case Lookup(table=table):
                entries = self._table(table, value.type)
                self._vector("lut", loops, target, (*parts, entries), source=value.a.type)
        return target

    def _table(self, data: bytes, kind: str) -> Tile:
        """Move a table to the scratchpad, once."""
        entry, size = Var("entry"), ELEMENT_BYTES[kind]
        place = self.scratch.take(len(data), lasting=True)
        with self._once():
            tiles = (Tile(it, {entry: size}, kind) for it in (self.pool(data), place))
            self._move([(entry, len(data) // size)], *tiles)
        return Tile(place, {}, kind)

    def _fused(
        self,
        value: Expr,
        plan: _Plan,
        loops: Sequence[tuple[Var, int]],
        target: Tile | None,
        tiles: Mapping[Load, Tile],
    ) -> Tile | None:
        """Compute an expression by one instruction that means it, if the table has one."""
        for instruction, given in meant(self.machine, value):
            numbers = {name: it for name, it in given.items() if isinstance(it, Const)}
            if not all(map(is_exact, numbers.values())):
                continue
            parts = [
                self._as_tile(self._value(part, plan, loops, None, tiles), loops, value.type)
                for name, part in given.items()
                if name not in numbers
            ]
            target = target or self._temporary(parts, loops, value.type)
            fields = {name: float(it.value) for name, it in numbers.items()}
            self._vector(instruction.name, loops, target, parts, **fields)
            return target
        return None

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


def _largest(fits: Callable[[int], bool], count: int) -> int:
    """Return how many iterations of a loop a tile has."""
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


def _within(tile: Tile, loops: Sequence[tuple[Var, int]]) -> Tile:
    """Return an operand in some loops of a tile; the others are around its instructions."""
    inside = {var for var, _ in loops}
    around = {var: stride for var, stride in tile.strides.items() if var not in inside}
    strides = {var: stride for var, stride in tile.strides.items() if var in inside}
    return Tile(tile.place.plus(Affine(0, around)), strides, tile.type)


def _buffers(nest: Nest) -> list[Buffer]:
    return [nest.store.buffer, *(load.buffer for load in loads_of(nest.store.value))]


def _stride_of(value: Expr, var: Var) -> int:
    """Return the largest distance of neighbours of a loop in what an expression reads."""
    return max((abs(index_of(load).of(var)) for load in loads_of(value)), default=0)


def _is_rows(
    value: Expr, kept: Sequence[tuple[Var, int]], reduced: Sequence[tuple[Var, int]]
) -> bool:
    """Whether what is reduced lies behind each other, rather than what is kept."""
    near = [
        any(index_of(load).of(var) == 1 for var, count in loops if count > 1)
        for load in loads_of(value)
        for loops in (kept, reduced)
    ]
    return any(near[1::2]) and not any(near[::2])
