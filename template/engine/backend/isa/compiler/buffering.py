# SPDX-License-Identifier: Apache-2.0
"""Two buffers in turn, so that a tile is loaded while the one before is computed.

Engines work at the same time as long as no instruction needs the bytes of another one. A loop that
fills a buffer in each iteration makes them wait; with two buffers in turn it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..machine import Machine
from .loops import (
    Affine,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Loops,
    Stmt,
    Store,
    Var,
    While,
    expression_of,
    loads_of,
    rebuilt,
    replaced,
)
from .nests import zeros_of
from .roles import near_of

LEVELS = 2
"""In how many loops around each other buffers alternate: each doubles the instructions."""


def alternate(loops: Loops, machine: Machine) -> Loops:
    """Return a kernel whose loops around tiles fill two buffers in turn, where both fit."""
    room = {memory.name: memory.bytes for memory in machine.memories if not memory.is_segmented}
    for buffer in loops.buffers:
        if buffer.scope in room:
            room[buffer.scope] -= buffer.bytes
    # What follows a product needs tiles of its own.
    near = near_of(machine)
    if near is not None:
        room[near.name] -= near.bytes // 4
    changed = _Alternating(loops, room)
    body, _ = changed.statements(loops.body)
    return Loops(loops.name, loops.parameters, changed.buffers, body)


class _Alternating:
    def __init__(self, loops: Loops, room: dict[str, int]) -> None:
        self.buffers = list(loops.buffers)
        self.room = room

    def statements(self, statements: Sequence[Stmt]) -> tuple[list[Stmt], int]:
        """Return changed statements, and in how many loops around each other buffers alternate."""
        found: list[Stmt] = []
        most = 0
        for statement in statements:
            if not isinstance(statement, For) or len(statement.body) < 2:
                if isinstance(statement, For):
                    body, levels = self.statements(statement.body)
                    statement = replace(statement, body=body)
                    most = max(most, levels)
                found.append(statement)
                continue
            body, levels = self.statements(statement.body)
            statement = replace(statement, body=body)
            if levels < LEVELS and (statement.count or 0) > 1:
                twins = self._twins(statement)
                if twins:
                    found += _unrolled(statement, twins)
                    most = max(most, levels + 1)
                    continue
            most = max(most, levels)
            found.append(statement)
        return found, most

    def _twins(self, loop: For) -> dict[Buffer, Buffer]:
        """Return a second buffer for each that an iteration fills before it reads it."""
        twins: dict[Buffer, Buffer] = {}
        seen: set[Buffer] = set()
        for target, read in _accesses(loop.body):
            seen |= read
            if target in seen:
                continue
            seen.add(target)
            if self.room.get(target.scope, -1) >= target.bytes:
                self.room[target.scope] -= target.bytes
                twins[target] = replace(target, name=f"{target.name}_2")
        self.buffers += twins.values()
        return twins


def _accesses(
    statements: Sequence[Stmt], inner: frozenset[Var] = frozenset()
) -> Iterator[tuple[Buffer, set[Buffer]]]:
    """Iterate over assignments: the buffer that is written, and those that are read for it.

    `inner`: the variables of the loops around the statements.
    """
    for statement in statements:
        match statement:
            case Store(buffer=buffer, index=index, value=value):
                yield buffer, {load.buffer for part in (index, value) for load in loads_of(part)}
            case For(var=var, body=body):
                yield from _accesses(body, inner | {var})
            case While(body=body):
                yield from _accesses(body, inner)
            case If(when=when, body=body, other=other):
                zero = zeros_of(when)
                # Unless it is executed at the first, what it writes is not filled.
                is_first = zero is not None and zero <= inner and not other
                for buffer, read in (*_accesses(body, inner), *_accesses(other, inner)):
                    yield buffer, read if is_first else {*read, buffer}


def _unrolled(loop: For, twins: Mapping[Buffer, Buffer]) -> list[Stmt]:
    """Return a loop over pairs of iterations, and the last one if it is left over."""
    count = loop.count
    assert count is not None
    fresh = Var(loop.var.name, loop.var.type)
    bodies: list[Stmt] = []
    for index in (0, 1):
        values: dict[Var, Expr] = {loop.var: expression_of(Affine(index, {fresh: 2}))}
        body = replaced(loop.body, values)
        bodies += _renamed(body, twins) if index else body
    found: list[Stmt] = []
    if count > 3:
        found.append(For(fresh, Const(count // 2, fresh.type), bodies, loop.marks))
    else:
        found += replaced(bodies, {fresh: Const(0, fresh.type)})
    if count % 2:
        found += replaced(loop.body, {loop.var: Const(count - 1, loop.var.type)})
    return found


def _renamed(statements: Sequence[Stmt], twins: Mapping[Buffer, Buffer]) -> list[Stmt]:
    def of(value: Expr) -> Expr:
        value = rebuilt(value, of)
        if isinstance(value, Load):
            return replace(value, buffer=twins.get(value.buffer, value.buffer))
        return value

    found: list[Stmt] = []
    for statement in statements:
        match statement:
            case Store():
                target = twins.get(statement.buffer, statement.buffer)
                found.append(Store(target, of(statement.index), of(statement.value)))
            case For():
                found.append(replace(statement, body=_renamed(statement.body, twins)))
            case While():
                body = _renamed(statement.body, twins)
                found.append(While(of(statement.when), body))
            case If():
                parts = (_renamed(part, twins) for part in (statement.body, statement.other))
                found.append(If(of(statement.when), *parts))
            case Let():
                found.append(Let(statement.var, of(statement.value)))
    return found
