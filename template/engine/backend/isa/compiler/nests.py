# SPDX-License-Identifier: Apache-2.0
"""Loop nests with one assignment: what vector instructions are selected for.

They are brought into a form that has no conditions: a nest is split where one of its variables
decides about a condition, so that padding, concatenation and tails become nests of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .loops import (
    Affine,
    Cast,
    Const,
    Expr,
    For,
    If,
    Load,
    Op,
    Pick,
    Stmt,
    Store,
    Undecided,
    Unsupported,
    Var,
    affine,
    children,
    expression_of,
    loads_of,
    rebuilt,
    substituted,
    text_of,
)

MOST_PIECES = 64
"""Into how many nests conditions may split one."""

REDUCTIONS = ("add", "mul", "min", "max")


@dataclass(frozen=True)
class Nest:
    """Loops around an assignment, the outermost first; their order is free."""

    loops: tuple[tuple[Var, int], ...]
    store: Store

    @property
    def extents(self) -> dict[Var, int]:
        """How often each loop is executed."""
        return dict(self.loops)

    @property
    def text(self) -> str:
        """The nest in a line."""
        loops = ", ".join(f"{var.name} in {count}" for var, count in self.loops)
        store = self.store
        target = f"{store.buffer.name}[{text_of(store.index)}]"
        return f"for {loops}: {target} = {text_of(store.value)}"


def nests_of(loop: For, outer: Mapping[Var, int]) -> list[Nest] | None:
    """Return the nests that a loop is, if it is made of such: one, or an initialization and one.

    Parameters
    ----------
    loop
        The loop.
    outer
        The loops around it, and how often they are executed.

    Raises
    ------
    Undecided
        Whether there is an initialization depends on a loop around it.
    """
    loops: list[tuple[Var, int]] = []
    body: Sequence[Stmt] = [loop]
    while len(body) == 1 and isinstance(body[0], For) and body[0].count is not None:
        loops.append((body[0].var, body[0].count))
        body = body[0].body
    if len(body) == 1 and isinstance(body[0], Store):
        return [Nest(tuple(loops), body[0])]
    if len(body) != 2 or not isinstance(body[1], Store):
        return None
    first = body[0]
    if not isinstance(first, If) or first.other or len(first.body) != 1:
        return None
    inner = first.body[0]
    when = simplified(first.when, {**outer, **dict(loops)})
    if not isinstance(inner, Store) or inner.buffer is not body[1].buffer:
        return None
    whole = Nest(tuple(loops), body[1])
    if isinstance(when, Const):
        return [Nest(tuple(loops), inner), whole] if when.value else [whole]
    zero = zeros_of(when)
    if zero is None:
        return None
    for var in zero:
        if var in outer:
            raise Undecided(var, text_of(when), only_first=True)
    kept = tuple(pair for pair in loops if pair[0] not in zero)
    return [Nest(kept, inner), whole] if zero <= {var for var, _ in loops} else None


def zeros_of(when: Expr) -> set[Var] | None:
    """Return the variables of a condition that says that variables, which are not negative, are 0.

    None if it says something else.
    """
    match when:
        case Op(op="and", a=a, b=b):
            one, other = zeros_of(a), zeros_of(b)
            return None if one is None or other is None else one | other
        case Op(op="eq", a=a, b=Const(value=0)):
            index = affine(a)
            if (
                index is not None
                and index.constant == 0
                and all(f > 0 for f in index.terms.values())
            ):
                return set(index.terms)
    return None


# ---- Conditions ---------------------------------------------------------------------------------


def simplified(value: Expr, extents: Mapping[Var, int]) -> Expr:
    """Return an expression without the conditions that the ranges of variables decide."""
    value = rebuilt(value, lambda part: simplified(part, extents))
    match value:
        case Op(op="lt" | "le" | "eq" | "ne" as op, a=a, b=b):
            known = _decided(op, a, b, extents)
            return value if known is None else Const(int(known), "bool")
        case Op(op="and" | "or" as op, a=a, b=b, type="bool"):
            for one, other in ((a, b), (b, a)):
                if isinstance(one, Const):
                    decides = bool(one.value) == (op == "or")
                    return one if decides else other
        case Op(op="div" | "mod" as op, a=a, b=Const(value=int(size))) if size > 0:
            return _divided(value, op, a, size, extents)
        case Pick(when=Const(value=known), a=a, b=b):
            return a if known else b
    return value


def _decided(op: str, a: Expr, b: Expr, extents: Mapping[Var, int]) -> bool | None:
    one, other = affine(a), affine(b)
    if one is None or other is None:
        return None
    difference = one.plus(other, -1)
    if any(var not in extents for var in difference.terms):
        return None
    low, high = difference.range(extents)
    if op in ("lt", "le"):
        limit = 0 if op == "lt" else 1
        return True if high < limit else False if low >= limit else None
    if low > 0 or high < 0:
        return op == "ne"
    return op == "eq" if low == high == 0 else None


def _divided(value: Op, op: str, a: Expr, size: int, extents: Mapping[Var, int]) -> Expr:
    """Simplify a quotient or remainder, if all but multiples of the divisor is small."""
    index = affine(a)
    if index is None:
        return value
    whole = {var: c for var, c in index.terms.items() if c % size == 0}
    rest = Affine(index.constant % size, {v: c for v, c in index.terms.items() if v not in whole})
    if any(var not in extents for var in rest.terms):
        return value
    low, high = rest.range(extents)
    if low < 0 or high >= size:
        return value
    if op == "mod":
        return expression_of(rest)
    quotients = {var: c // size for var, c in whole.items()}
    return expression_of(Affine(index.constant // size, quotients))


@dataclass(frozen=True)
class _Cut:
    """Where a nest is split: a loop, and the first index of its second part."""

    var: Var
    at: int


def _cut_of(value: Expr, extents: Mapping[Var, int]) -> _Cut | None:
    """Return where the first condition, or division, that one variable decides changes."""
    match value:
        case Op(op="lt" | "le" | "eq" | "ne" as op, a=a, b=b):
            one, other = affine(a), affine(b)
            if one is not None and other is not None:
                difference = one.plus(other, -1)
                if len(difference.terms) == 1:
                    ((var, factor),) = difference.terms.items()
                    if var in extents:
                        return _cut_at(op, var, factor, difference.constant, extents[var])
    for part in children(value):
        cut = _cut_of(part, extents)
        if cut is not None:
            return cut
    return None


def _cut_at(op: str, var: Var, factor: int, constant: int, count: int) -> _Cut | None:
    """Return where factor * var + constant (op) 0 has another value than before."""

    def holds(index: int) -> bool:
        number = factor * index + constant
        return {"lt": number < 0, "le": number <= 0, "eq": number == 0, "ne": number != 0}[op]

    # It changes next to the zero of the left side.
    zero = -constant // factor
    for index in sorted({1, zero - 1, zero, zero + 1, zero + 2}):
        if 0 < index < count and holds(index) != holds(index - 1):
            return _Cut(var, index)
    return None


def without_conditions(nest: Nest, outer: Mapping[Var, int]) -> list[Nest]:
    """Return nests that do the same as one, in which single variables decide about nothing.

    Parameters
    ----------
    nest
        The nest.
    outer
        The loops around it, and how often they are executed.

    Raises
    ------
    Undecided
        A loop around the nest decides about a condition.
    Unsupported
        There are too many.
    """
    done: list[Nest] = []
    todo = [nest]
    while todo:
        if len(done) + len(todo) > MOST_PIECES:
            raise Unsupported("its conditions split it into too many nests")
        current = todo.pop()
        extents = current.extents
        store = current.store
        value = simplified(store.value, {**outer, **extents})
        index = simplified(store.index, {**outer, **extents})
        current = Nest(current.loops, Store(store.buffer, index, value))
        cut = _cut_of(value, extents) or _cut_of(index, extents)
        if cut is not None:
            todo += reversed(split_at(current, cut.var, cut.at))
            continue
        divided = _division_of(value, extents) or _division_of(index, extents)
        if divided is not None:
            todo.append(split_by(current, *divided))
            continue
        _require_decided(value, outer)
        done.append(current)
    return done


def _require_decided(value: Expr, outer: Mapping[Var, int]) -> None:
    match value:
        case Op(op="lt" | "le" | "eq" | "ne", a=a, b=b):
            one, other = affine(a), affine(b)
            if one is not None and other is not None:
                for var in one.plus(other, -1).terms:
                    if var in outer:
                        raise Undecided(var, text_of(value))
    for part in children(value):
        _require_decided(part, outer)


def split_at(nest: Nest, var: Var, at: int) -> list[Nest]:
    """Return the parts of a nest before an index of a loop, and from it on."""
    parts = []
    for first, count in ((0, at), (at, nest.extents[var] - at)):
        fresh = Var(var.name, var.type)
        moved = {var: expression_of(Affine(first, {fresh: 1}))}
        loops = tuple((fresh, count) if known is var else (known, n) for known, n in nest.loops)
        parts.append(Nest(loops, _replaced(nest.store, moved)))
    return parts


def split_by(nest: Nest, var: Var, size: int) -> Nest:
    """Return a nest in which a loop is two; the inner one has a size that divides its count."""
    outer, inner = Var(f"{var.name}_o", var.type), Var(f"{var.name}_i", var.type)
    moved = {var: expression_of(Affine(0, {outer: size, inner: 1}))}
    loops: list[tuple[Var, int]] = []
    for known, count in nest.loops:
        loops += [(outer, count // size), (inner, size)] if known is var else [(known, count)]
    return Nest(tuple(loops), _replaced(nest.store, moved))


def _replaced(store: Store, values: Mapping[Var, Expr]) -> Store:
    index, value = (substituted(part, values) for part in (store.index, store.value))
    return Store(store.buffer, index, value)


def _division_of(value: Expr, extents: Mapping[Var, int]) -> tuple[Var, int] | None:
    """Return a loop and the size of its inner part by which a quotient becomes affine."""
    match value:
        case Op(op="div" | "mod", a=a, b=Const(value=int(size))) if size > 0:
            index = affine(a)
            if index is not None:
                for var, factor in index.terms.items():
                    if var not in extents or size % abs(factor) or factor < 0:
                        continue
                    part = size // factor
                    if 1 < part < extents[var] and extents[var] % part == 0:
                        return var, part
    for part_of in children(value):
        found = _division_of(part_of, extents)
        if found is not None:
            return found
    return None


def reduction_of(nest: Nest) -> tuple[str, Expr] | None:
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
            if op in REDUCTIONS and index_of(load) == own:
                found = op, rest
        case Op(op=op, a=rest, b=Load(buffer=buffer) as load) if buffer is store.buffer:
            if op in REDUCTIONS and index_of(load) == own:
                found = op, rest
    loops = nest.extents
    if found is not None and all(own.of(var) for var, count in loops.items() if count > 1):
        found = None
    for load in loads_of(store.value if found is None else found[1]):
        if load.buffer is store.buffer and (found is not None or index_of(load) != own):
            raise Unsupported(f"it reads other elements of {store.buffer.name}, which it writes")
    return found


# ---- Indices ------------------------------------------------------------------------------------


def index_of(load: Load | Store) -> Affine:
    """Return an index as affine.

    Raises
    ------
    Unsupported
        It is not.
    """
    found = affine(load.index)
    if found is None:
        raise Unsupported(f"the index {text_of(load.index)} of {load.buffer.name} is not affine")
    return found


def casts_removed(value: Expr) -> Expr:
    """Return what is cast."""
    return casts_removed(value.a) if isinstance(value, Cast) else value


def merged(
    dims: Sequence[tuple[int, tuple[int, ...]]],
) -> list[tuple[int, tuple[int, ...]]]:
    """Join dimensions that lie behind each other for all operands.

    Parameters
    ----------
    dims
        Of each dimension, the outermost first: how often, and how many bytes later for each
        operand.

    Returns
    -------
    dims
        As few as do the same; none has the count 1.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for count, strides in dims:
        if count == 1:
            continue
        if found:
            before, steps = found[-1]
            if all(step == count * stride for step, stride in zip(steps, strides, strict=True)):
                found[-1] = (before * count, strides)
                continue
        found.append((count, strides))
    return found
