# SPDX-License-Identifier: Apache-2.0
"""Scalar code: instructions for any loops, element by element; right, and slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..kinds import ELEMENT_BYTES
from ..machine import Machine
from .code import (
    Computed,
    Guard,
    Item,
    Key,
    Mark,
    Named,
    Operand,
    Repeat,
    Target,
    Temporary,
    Where,
    step_of,
    temporaries_of,
    variable_key,
)
from .loops import (
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Fun,
    If,
    Let,
    Load,
    Op,
    Pick,
    Stmt,
    Store,
    Unsupported,
    Var,
    While,
    affine,
    children,
)

_REALS = ("f32", "f16")
_COMPARISONS = ("eq", "ne", "lt", "le")


class Scalar:
    """Makes scalar code.

    Parameters
    ----------
    machine
        The machine.
    place_of
        The address of a buffer's first element.
    """

    def __init__(self, machine: Machine, place_of: Callable[[Buffer], Where]) -> None:
        self.machine = machine
        self.place_of = place_of
        self.items: list[Item] = []
        self.named: set[Var] = set()
        self._used = 0

    def of(self, statements: Sequence[Stmt]) -> list[Item]:
        """Return the instructions of statements.

        Raises
        ------
        Unsupported
            An expression is too deep.
        """
        outside, self.items = self.items, []
        for statement in statements:
            self._statement(statement)
        made, self.items = self.items, outside
        return made

    # ---- Statements ----

    def _add(self, instruction: str, **fields: Operand) -> None:
        self.items.append(step_of(self.machine, instruction, fields))

    def _statement(self, statement: Stmt) -> None:
        match statement:
            case Store(buffer=buffer, index=index, value=value):
                used = self._used
                register = self._value(value)
                kind = "f32" if value.type in _REALS else "i64"
                if kind == "f32" and buffer.type not in _REALS:
                    raise Unsupported(f"a real number is stored as {buffer.type}")
                target = self._address(buffer, index)
                self._add("sts", a=register, target=target, type=buffer.type)
                self._used = used
            case For(var=var, count=int(count), body=body) if count > 0:
                self.items.append(Repeat(var, count, self.of(body)))
            case For(count=int()):
                pass
            case For(var=var, extent=extent, body=body):
                self._counted(var, extent, body)
            case While(when=when, body=body):
                self._repeated(lambda: self._value(when), body)
            case If(when=when, body=body, other=other):
                self._branched(when, body, other)
            case Let(var=var, value=value):
                used = self._used
                self._set(Named(var), self._value(value))
                self.named.add(var)
                self._used = used

    def _set(self, to: Operand, value: Operand) -> None:
        self._add("step", to=to, a=value, value=0)

    def _counted(self, var: Var, extent: Expr, body: Sequence[Stmt]) -> None:
        """Add a loop whose count is computed."""
        end = Var(f"{var.name}_end")
        used = self._used
        self._set(Named(end), self._value(extent))
        self._used = used
        self.named |= {var, end}
        self._set(Named(var), 0)

        def is_left() -> Operand:
            register = self._take()
            self._add("alu", to=register, a=Named(var), b=Named(end), op="lt", type="i64")
            return register

        self._repeated(is_left, body, var)

    def _repeated(
        self, condition: Callable[[], Operand], body: Sequence[Stmt], var: Var | None = None
    ) -> None:
        again, after = Mark(), Mark()
        outside, self.items = self.items, []
        used = self._used
        self.items.append(again)
        self._add("branch", when="zero", a=condition(), lines=Target(after))
        self._used = used
        self.items += [Guard(self.of(body))]
        if var is not None:
            self._add("step", to=Named(var), a=Named(var), value=1)
        self._add("branch", when="always", a=0, lines=Target(again))
        self.items.append(after)
        made, self.items = self.items, outside
        self.items += made

    def _branched(self, when: Expr, body: Sequence[Stmt], other: Sequence[Stmt]) -> None:
        used = self._used
        condition = self._value(when)
        otherwise, after = Mark(), Mark()
        self._add("branch", when="zero", a=condition, lines=Target(otherwise))
        self._used = used
        self.items.append(Guard(self.of(body)))
        if other:
            self._add("branch", when="always", a=0, lines=Target(after))
        self.items.append(otherwise)
        if other:
            self.items += [Guard(self.of(other)), after]

    # ---- Addresses ----

    def _address(self, buffer: Buffer, index: Expr) -> Operand:
        place = self.place_of(buffer)
        size = ELEMENT_BYTES[buffer.type]
        known = affine(index)
        if known is not None and not any(var in self.named for var in known.terms):
            return place.plus(known.times(size))
        register = self._own(self._value(index))
        factor = self._take()
        self._add("set", to=factor, value=size)
        self._add("alu", to=register, a=register, b=factor, op="mul", type="i64")
        base = Key(place.key.segment, frozenset())
        self._add("alu", to=register, a=register, b=base, op="add", type="i64")
        # What the place of a buffer has of loops is not here: those are buffers of tiles.
        if place.index.terms:
            raise Unsupported(f"the index of {buffer.name} in a tile is not affine")
        return Computed(register, place.offset, place.key.segment)

    # ---- Values ----

    def _take(self) -> Temporary:
        if self._used == temporaries_of(self.machine) - 1:
            raise Unsupported("an expression needs more registers than there are")
        self._used += 1
        return Temporary(self._used - 1)

    def _own(self, value: Operand) -> Temporary:
        """Return a register that may be changed."""
        if isinstance(value, Temporary):
            return value
        register = self._take()
        self._set(register, value)
        return register

    def _value(self, value: Expr) -> Operand:
        match value:
            case Const(value=number, type=kind):
                register = self._take()
                self._add("set", to=register, value=bits_of(number, kind))
                return register
            case Var():
                return Named(value) if value in self.named else variable_key(value)
            case Load(buffer=buffer, index=index):
                used = self._used
                place = self._address(buffer, index)
                self._used = used
                register = self._take()
                self._add("lds", to=register, source=place, type=buffer.type)
                return register
            case Op():
                return self._operation(value)
            case Fun(fun=fun, a=a):
                used = self._used
                operand = self._value(a)
                self._used = used
                register = self._take()
                self._add("fun", to=register, a=operand, fun=fun)
                return self._narrowed(register, value.type)
            case Cast(a=a, type=kind):
                used = self._used
                operand = self._value(a)
                self._used = used
                register = self._take()
                source = "f32" if a.type in _REALS else "i64"
                self._add("cast", to=register, a=operand, source=source, type=kind)
                return register
            case Pick():
                return self._picked(value)
        raise AssertionError(value)

    def _operation(self, value: Op) -> Operand:
        used = self._used
        # The deeper operand first: it needs the most registers.
        first, second = value.a, value.b
        swapped = _depth(second) > _depth(first)
        one = self._value(second if swapped else first)
        other = self._value(first if swapped else second)
        a, b = (other, one) if swapped else (one, other)
        self._used = used
        register = self._take()
        kind = "f32" if value.a.type in _REALS else "i64"
        self._add("alu", to=register, a=a, b=b, op=value.op, type=kind)
        if value.op in _COMPARISONS or value.op in ("min", "max", "and", "or", "mod"):
            return register
        return self._narrowed(register, value.type)

    def _narrowed(self, register: Temporary, kind: str) -> Temporary:
        """Keep what a type of fewer bits than a register's has of a result."""
        if kind in ("f32", "i64", "bool"):
            return register
        source = "f32" if kind == "f16" else "i64"
        self._add("cast", to=register, a=register, source=source, type=kind)
        return register

    def _picked(self, value: Pick) -> Operand:
        used = self._used
        condition = self._value(value.when)
        self._used = used
        register = self._take()
        otherwise, after = Mark(), Mark()
        # The condition may be in the same register: it is read first.
        self._add("branch", when="zero", a=condition, lines=Target(otherwise))
        inside = self._used
        self._set(register, self._value(value.a))
        self._used = inside
        self._add("branch", when="always", a=0, lines=Target(after))
        self.items.append(otherwise)
        self._set(register, self._value(value.b))
        self._used = inside
        self.items.append(after)
        return register


def _depth(value: Expr) -> int:
    return 1 + max((_depth(part) for part in children(value)), default=0)


def bits_of(number: float, kind: str) -> int:
    """Return what a register has for a number."""
    if kind not in _REALS:
        return int(number)
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.int32))
