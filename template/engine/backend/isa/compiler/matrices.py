# SPDX-License-Identifier: Apache-2.0
"""Selects the instructions of the matrix engine for loop nests that a schedule has prepared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..kinds import ELEMENT_BYTES, Address, Choice
from ..machine import Machine
from .code import Item, Operand, Step, Where, step_of
from .emission import repeated
from .loops import Affine, Buffer, Const, Load, Op, Store, Unsupported, Var, divisors
from .nests import Nest, casts_removed, index_of, merged
from .roles import counts_of, matrix_of, most_of


def select_matrix(
    machine: Machine, nest: Nest, first: Nest | None, place_of: Callable[[Buffer], Where]
) -> list[Item] | None:
    """Return `mm` or `dw` for sums of products of data by weights, in loops of any size.

    `first` sets the sums to 0 before. None if the nests are something else, or an operand lies
    where the instruction does not reach it.
    """
    store = nest.store
    value = store.value
    if not isinstance(value, Op) or value.op != "add":
        return None
    if not isinstance(value.a, Load) or value.a.buffer is not store.buffer:
        return None
    product = casts_removed(value.b)
    if not isinstance(product, Op) or product.op != "mul":
        return None
    one, other = casts_removed(product.a), casts_removed(product.b)
    if not isinstance(one, Load) or not isinstance(other, Load):
        return None
    if index_of(value.a) != index_of(store):
        return None
    found: list[_Products] = []
    for kind in (_Matrix, _Windows):
        matrix = matrix_of(machine, kind.name)
        if matrix is None or (
            first is not None and not _is_zero(machine, kind.name, first.store, store)
        ):
            continue
        for data, weights in ((one, other), (other, one)):
            buffers = {"target": store.buffer, "source": data.buffer, "weights": weights.buffer}
            if (data.type, weights.type, store.buffer.type) not in matrix.types:
                continue
            if not all(_reaches(machine, kind.name, *it) for it in buffers.items()):
                continue
            selected = kind(machine, nest, place_of, data, weights)
            if selected.is_possible:
                found.append(selected)
    # Operands in one memory may be either: that is best which has columns and sums.
    found.sort(key=lambda it: (it.column is None) + (not it.inner))
    return found[0].items(sets=first is not None) if found else None


def _is_zero(machine: Machine, instruction: str, first: Store, store: Store) -> bool:
    """Whether an assignment sets sums to 0, and the instruction can set instead of add."""
    modes = machine.instructions[instruction].fields.get("mode")
    can_set = isinstance(modes, Choice) and "set" in modes.names
    is_zero = isinstance(first.value, Const) and not first.value.value
    return can_set and is_zero and index_of(first) == index_of(store)


def _reaches(machine: Machine, instruction: str, name: str, buffer: Buffer) -> bool:
    field = machine.instructions[instruction].fields[name]
    return isinstance(field, Address) and buffer.scope in field.memories


@dataclass(frozen=True)
class _Axis:
    """A dimension of the instruction: its fields, how often, and how many bytes later operands.

    `adds`: what it counts is added.
    """

    count: int
    count_field: str
    steps: Mapping[str, int]
    step_fields: Mapping[str, str]
    adds: bool = False


class _Products:
    """Sums of products, whose loops become dimensions of an instruction, or are around it."""

    name: ClassVar[str]

    def __init__(
        self,
        machine: Machine,
        nest: Nest,
        place_of: Callable[[Buffer], Where],
        data: Load,
        weights: Load,
    ) -> None:
        self.machine = machine
        self.nest = nest
        self.place_of = place_of
        self.loads: dict[str, Load] = {"source": data, "weights": weights}
        self.target = index_of(nest.store)
        self.of_data, self.of_weights = index_of(data), index_of(weights)
        self.sizes = [ELEMENT_BYTES[load.type] for load in (data, weights)]
        self.total = ELEMENT_BYTES[nest.store.buffer.type]
        self.column: tuple[Var, int] | None = None
        """The columns of the instruction."""
        self.inner: list[tuple[Var, int]] = []
        """Loops over sums that the instruction has."""
        self.rows: list[tuple[Var, int]] = []
        self.around: list[tuple[Var, int]] = []
        self.over: list[tuple[Var, int]] = []
        """Loops around the instruction, and those of them over sums."""
        for var, count in nest.loops:
            if count > 1:
                if not self.target.of(var):
                    self.over.append((var, count))
                elif self.of_data.of(var) and not self.of_weights.of(var):
                    self.rows.append((var, count))
                else:
                    self.around.append((var, count))
        self.choose()

    def choose(self) -> None:
        """Take the columns and sums of the instruction from the loops around it."""
        raise NotImplementedError

    @property
    def is_possible(self) -> bool:
        """Whether operands lie as the instruction has them."""
        raise NotImplementedError

    def inner_axes(self) -> list[_Axis]:
        """Return the dimensions of columns and of sums, these last."""
        raise NotImplementedError

    def items(self, *, sets: bool) -> list[Item] | None:
        """Return the instructions, the first of which may set; None: a number does not fit."""
        store = self.nest.store
        indices = {"target": self.target, "source": self.of_data, "weights": self.of_weights}
        places = {
            name: self._place(self.loads.get(name, store).buffer, index)
            for name, index in indices.items()
        }
        inside = {var for var, _ in (*self.inner, *self.rows)}
        if self.column is not None:
            inside.add(self.column[0])
        moved = {var: Var(f"{var.name}_m") for var, _ in (*self.around, *self.over)}
        for name, place in places.items():
            terms = {
                moved.get(var, var): factor
                for var, factor in place.index.terms.items()
                if var not in inside
            }
            places[name] = Where(place.base, Affine(place.index.constant, terms))
        outer = [(moved[var], count) for var, count in self.around]
        rows, more = self._row_axes()
        axes = [*rows, *self.inner_axes()]
        for axis in more:
            outer.append(_loop_of(axis, "rows", axis.count, 1, places))
        known = self.machine.instructions[self.name]
        items: list[Item] = []
        kind = self.loads["source"].type
        limits = [most_of(known, axis.count_field, type=kind) for axis in axes]
        if 0 in limits:
            return None
        for pieces in itertools.product(
            *(_pieces(axis.count, most) for axis, most in zip(axes, limits, strict=True))
        ):
            at, around = dict(places), list(outer)
            over = [(moved[var], count) for var, count in self.over]
            fields: dict[str, Operand] = {"type": kind, "mode": "add"}
            for axis, (begin, repeats, size) in zip(axes, pieces, strict=True):
                fields[axis.count_field] = size
                fields |= {
                    field: axis.steps[name] if size > 1 else 0
                    for name, field in axis.step_fields.items()
                }
                for name, step in axis.steps.items():
                    at[name] = at[name].plus(Affine(begin * step))
                if repeats > 1:
                    loops = over if axis.adds else around
                    loops.append(_loop_of(axis, "part", repeats, size, at))
            try:
                made = step_of(self.machine, self.name, {**fields, **at})
            except Unsupported:
                return None
            # Sums come last, so that others follow the first one.
            parts = zip(axes, pieces, strict=True)
            is_first = sets and not any(begin for axis, (begin, *_) in parts if axis.adds)
            items += repeated(around, _summed(made, over) if is_first else repeated(over, [made]))
        return items

    def _row_axes(self) -> tuple[list[_Axis], list[_Axis]]:
        """Return the dimensions of rows that the instruction has, and those around it."""
        size, _ = self.sizes
        self.rows.sort(key=lambda loop: -abs(self.target.of(loop[0])))
        dims = merged(
            [
                (count, (self.total * self.target.of(var), size * self.of_data.of(var)))
                for var, count in self.rows
            ]
        )
        rank = counts_of(self.machine.instructions[self.name], "rows")
        rows = []
        for index, (count, (to, of)) in enumerate(dims, rank - len(dims)):
            fields = {"target": f"target{index}", "source": f"source{index}"}
            rows.append(_Axis(count, f"rows{index}", {"target": to, "source": of}, fields))
        first = max(0, len(rows) - rank)
        return rows[first:], rows[:first]

    def _place(self, buffer: Buffer, index: Affine) -> Where:
        return self.place_of(buffer).plus(index.times(ELEMENT_BYTES[buffer.type]))


class _Matrix(_Products):
    name = "mm"

    def choose(self) -> None:
        # Columns and the innermost sums lie behind each other.
        columns = (
            loop
            for loop in self.around
            if self.target.of(loop[0]) == 1
            and self.of_weights.of(loop[0])
            and not self.of_data.of(loop[0])
        )
        self.column = next(columns, None)
        self.inner = [loop for loop in self.over if self.of_data.of(loop[0]) == 1][:1]
        self.around = [loop for loop in self.around if loop is not self.column]
        self.over = [loop for loop in self.over if loop not in self.inner]

    @property
    def is_possible(self) -> bool:
        if self.column is None:
            return bool(self.inner)
        return self.of_weights.of(self.column[0]) == 1

    def inner_axes(self) -> list[_Axis]:
        size, weight = self.sizes
        k, row = (self.inner[0][1], self.of_weights.of(self.inner[0][0])) if self.inner else (1, 0)
        n = 1 if self.column is None else self.column[1]
        steps = {"source": size, "weights": weight * row}
        return [
            _Axis(n, "n", {"target": self.total, "weights": weight}, {}),
            _Axis(k, "k", steps, {"weights": "weights0"}, adds=True),
        ]


class _Windows(_Products):
    name = "dw"

    def choose(self) -> None:
        # Channels lie behind each other in all operands.
        parts = (self.target, self.of_data, self.of_weights)
        self.column = next(
            (loop for loop in self.around if all(part.of(loop[0]) == 1 for part in parts)), None
        )
        self.over.sort(key=lambda loop: -abs(self.of_data.of(loop[0])))
        rank = counts_of(self.machine.instructions[self.name], "taps")
        first = max(0, len(self.over) - rank)
        self.over, self.inner = self.over[:first], self.over[first:]
        self.around = [loop for loop in self.around if loop is not self.column]

    @property
    def is_possible(self) -> bool:
        return self.column is not None

    def inner_axes(self) -> list[_Axis]:
        size, weight = self.sizes
        n = 1 if self.column is None else self.column[1]
        axes = [_Axis(n, "n", {"target": self.total, "source": size, "weights": weight}, {})]
        rank = counts_of(self.machine.instructions[self.name], "taps")
        for index, (var, count) in enumerate(self.inner, rank - len(self.inner)):
            steps = {
                "source": size * self.of_data.of(var),
                "weights": weight * self.of_weights.of(var),
            }
            fields = {"source": f"tap{index}", "weights": f"weights{index}"}
            axes.append(_Axis(count, f"taps{index}", steps, fields, adds=True))
        return axes


def _loop_of(
    axis: _Axis, name: str, count: int, size: int, places: dict[str, Where]
) -> tuple[Var, int]:
    """Return a loop around the instruction, by which places move so many elements."""
    var = Var(name)
    for operand, step in axis.steps.items():
        places[operand] = places[operand].plus(Affine(0, {var: size * step}))
    return var, count


def _pieces(count: int, most: int) -> list[tuple[int, int, int]]:
    """Cut a dimension to what a field holds: where parts begin, how many, and of which size."""
    if count <= most:
        return [(0, 1, count)]
    even = next(size for size in divisors(count) if size <= most)
    size = even if 2 * even > most else most
    pieces = [(0, count // size, size)]
    return pieces if count % size == 0 else [*pieces, (count - count % size, 1, count % size)]


def _summed(step: Step, over: Sequence[tuple[Var, int]]) -> list[Item]:
    """Add products in loops; the very first one is set."""
    items: list[Item] = [_moved(step, {var: Affine() for var, _ in over}, "set")]
    for at in reversed(range(len(over))):
        var, count = over[at]
        later = Var(var.name)
        values = {outer: Affine() for outer, _ in over[:at]} | {var: Affine(1, {later: 1})}
        loops = [(later, count - 1), *over[at + 1 :]]
        items += repeated(loops, [_moved(step, values, "add")])
    return items


def _moved(step: Step, values: Mapping[Var, Affine], mode: str) -> Step:
    """Return an instruction with variables replaced, and another mode."""
    fields = {
        name: value.replaced(values) if isinstance(value, Where) else value
        for name, value in step.fields.items()
    }
    return Step(step.instruction, {**fields, "mode": mode})
