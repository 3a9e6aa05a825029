# SPDX-License-Identifier: Apache-2.0
"""Selects the instruction of the matrix engine for loop nests that a schedule has prepared."""

from __future__ import annotations

from collections.abc import Callable

from ..kinds import ELEMENT_BYTES, Number
from ..machine import Machine
from .code import Item, Operand, Repeat, Step, Where
from .loops import Affine, Buffer, Load, Op, Var
from .nests import Nest, casts_removed, index_of, merged


def select_matrix(
    machine: Machine, nest: Nest, place_of: Callable[[Buffer], Where], note: str
) -> list[Item] | None:
    """Return `mm` for sums of products of data by weights, in loops of any size.

    The target is in the memory of sums, data in the scratchpad, weights in theirs. None if the nest
    is something else, or an operand lies differently.
    """
    known = machine.instructions.get("mm")
    store = nest.store
    value = store.value
    if known is None or not isinstance(value, Op) or value.op != "add":
        return None
    if not isinstance(value.a, Load) or value.a.buffer is not store.buffer:
        return None
    product = casts_removed(value.b)
    if not isinstance(product, Op) or product.op != "mul":
        return None
    data, weights = casts_removed(product.a), casts_removed(product.b)
    if not isinstance(data, Load) or not isinstance(weights, Load):
        return None
    if data.buffer.scope != "spad":
        data, weights = weights, data
    scopes = (store.buffer.scope, data.buffer.scope, weights.buffer.scope)
    if scopes != ("acc", "spad", "wspad") or index_of(value.a) != index_of(store):
        return None
    if (data.type, weights.type, store.buffer.type) not in PRODUCT_TYPES:
        return None
    return _Matrix(machine, nest, place_of, note).items(data, weights)


PRODUCT_TYPES = (("f32", "f32", "f32"), ("i8", "i8", "i32"), ("u8", "i8", "i32"))
"""Of `mm`: the types of data, weights and sums."""


class _Matrix:
    def __init__(
        self, machine: Machine, nest: Nest, place_of: Callable[[Buffer], Where], note: str
    ) -> None:
        self.machine = machine
        self.nest = nest
        self.place_of = place_of
        self.note = note

    def items(self, data: Load, weights: Load) -> list[Item] | None:
        target = index_of(self.nest.store)
        of_data, of_weights = index_of(data), index_of(weights)
        loops = [(var, count) for var, count in self.nest.loops if count > 1]
        sums, rows, columns, around = [], [], [], []
        for var, count in loops:
            t, d, w = target.of(var), of_data.of(var), of_weights.of(var)
            if not t and d and w:
                sums.append((var, count))
            elif t and d and not w:
                rows.append((var, count))
            elif t and w and not d:
                columns.append((var, count))
            else:
                around.append((var, count))
        # Columns and the innermost sums lie behind each other.
        column = next((loop for loop in columns if target.of(loop[0]) == 1), None)
        inner = next((loop for loop in sums if of_data.of(loop[0]) == 1), None)
        if column is not None and of_weights.of(column[0]) != 1:
            return None
        if column is None and inner is None:
            return None
        around += [loop for loop in columns if loop is not column]
        around += [loop for loop in sums if loop is not inner]
        size, total = ELEMENT_BYTES[data.type], 4
        rows.sort(key=lambda loop: -abs(target.of(loop[0])))
        dims = merged(
            [(count, (total * target.of(var), size * of_data.of(var))) for var, count in rows]
        )
        places = {
            "target": self._place(self.nest.store.buffer, target),
            "source": self._place(data.buffer, of_data),
            "weights": self._place(weights.buffer, of_weights),
        }
        moved = {var: Var(f"{var.name}_m") for var, _ in (*rows, *columns, *sums, *around)}
        inside = {loop[0] for loop in (column, inner) if loop is not None}
        inside |= {var for var, _ in rows}
        for name, place in places.items():
            terms = {
                moved.get(var, var): factor
                for var, factor in place.index.terms.items()
                if var not in inside
            }
            places[name] = Where(place.base, Affine(place.index.constant, terms))
        outer = [(moved[var], count) for var, count in around]
        for count, (to, of) in dims[:-2]:
            var = Var("rows")
            outer.append((var, count))
            places["target"] = places["target"].plus(Affine(0, {var: to}))
            places["source"] = places["source"].plus(Affine(0, {var: of}))
        fields: dict[str, Operand] = {
            **{"type": data.type, "mode": "add", "rows0": 1, "rows1": 1},
            **{"target0": 0, "target1": 0, "source0": 0, "source1": 0},
            "k": 1 if inner is None else inner[1],
            "n": 1 if column is None else column[1],
            "weights0": 0 if inner is None else size * of_weights.of(inner[0]),
            **places,
        }
        last = dims[-2:]
        for index, (count, (to, of)) in enumerate(last):
            at = 2 - len(last) + index
            fields |= {f"rows{at}": count, f"target{at}": to, f"source{at}": of}
        for name, kind in self.machine.instructions["mm"].fields.items():
            value = fields[name]
            if isinstance(kind, Number) and isinstance(value, int):
                low, high = kind.range
                if not low <= value <= high:
                    return None
        items: list[Item] = [Step("mm", fields, self.note)]
        for var, count in reversed(outer):
            items = [Repeat(var, count, items)]
        return items

    def _place(self, buffer: Buffer, index: Affine) -> Where:
        return self.place_of(buffer).plus(index.times(ELEMENT_BYTES[buffer.type]))
