# SPDX-License-Identifier: Apache-2.0
"""From the loops of a kernel to instructions: what is selected, and scalar code for the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..machine import Machine, Source
from .code import Item, Part, Repeat, Where, executed
from .emission import ALIGNMENT, Scratch
from .loops import (
    Affine,
    Buffer,
    Const,
    Expr,
    For,
    Loops,
    Stmt,
    Store,
    Undecided,
    Unsupported,
    Var,
    expression_of,
    in_a_line,
    replaced,
)
from .matrices import select_matrix
from .nests import Nest, nests_of
from .roles import near_of
from .scalar import Scalar
from .vectors import Vectors


@dataclass(frozen=True)
class ScalarNest:
    """A nest that runs as scalar code, why, and how many lines it executes, about."""

    text: str
    reason: str
    lines: int


MOST_LETTERS = 300
"""How much of a nest the source of its instructions has."""


class KernelCode:
    """Makes the instructions of a kernel.

    Parameters
    ----------
    machine
        The machine.
    loops
        The kernel; its buffers in scratchpads have offsets.
    place_of
        The address of a parameter's or a workspace buffer's first byte.
    free
        Of each scratchpad, the first byte behind the buffers of the kernel.
    pool
        Returns the address of a constant with these bytes.
    vectors
        Whether instructions of vectors and matrices are selected; else all is scalar code.
    tile
        How many bytes of a scratchpad vectors use for what they move; 0: the compiler chooses.
    """

    def __init__(
        self,
        machine: Machine,
        loops: Loops,
        place_of: Callable[[Buffer], Where],
        free: dict[str, int],
        pool: Callable[[bytes], Where],
        *,
        vectors: bool = True,
        tile: int = 0,
    ) -> None:
        self.machine = machine
        self.loops = loops
        self.place_of = place_of
        self.free = free
        self.pool = pool
        self.vectors = vectors
        self.tile = tile
        self.scalar: list[ScalarNest] = []
        self.outer: dict[Var, int] = {}
        self.tiles_at, self.tiles = 0, 0
        """Where nests have their tiles, behind the buffers of a scratchpad, and how many bytes."""
        self._within: Source | None = None

    def items(self) -> list[Item]:
        """Return the instructions.

        Raises
        ------
        Unsupported
            Not even scalar code means a statement.
        """
        return self._statements(self.loops.body)

    def _statements(self, statements: Sequence[Stmt]) -> list[Item]:
        items: list[Item] = []
        for statement in statements:
            if self.vectors and isinstance(statement, For):
                items += self._loop(statement)
            elif self.vectors and isinstance(statement, Store) and not self.outer:
                # A tensor of one element has no loops.
                items += self._loop(For(Var("i"), Const(1, "i64"), [statement]))
            else:
                why = "it is no loop" if self.vectors else "the step 'select' is left out"
                items += self._scalar([statement], why)
        return items

    def _loop(self, loop: For) -> list[Item]:
        nests = nests_of(loop, self.outer)
        reason = "its loops have several statements"
        if nests is not None:
            try:
                return [Part(self._source([loop]), self._nests(nests))]
            except Undecided:
                raise
            except Unsupported as error:
                reason = str(error)
        elif loop.count is not None and any(isinstance(part, For) for part in loop.body):
            return self._repeated(loop)
        return self._scalar([loop], reason)

    def _repeated(self, loop: For) -> list[Item]:
        """Return a loop around others; where it decides about their conditions, several."""
        count = loop.count
        assert count is not None
        known = len(self.scalar)
        self.outer[loop.var] = count
        around = self._within
        self._within = Source(f"for {loop.var.name} in {count}:", around)
        try:
            return [Part(self._within, [Repeat(loop.var, count, self._statements(loop.body))])]
        except Undecided as error:
            if error.var is not loop.var:
                raise
            only_first = error.only_first
        finally:
            del self.outer[loop.var]
            self._within = around
        del self.scalar[known:]
        # Conditions change at the ends first: those of padding and of what is left over.
        ends = [0, 1, count] if only_first or count <= 2 else [0, 1, count - 1, count]
        items: list[Item] = []
        for first, end in itertools.pairwise(ends):
            if end - first == 1:
                values: dict[Var, Expr] = {loop.var: Const(first, loop.var.type)}
                items += self._statements(replaced(loop.body, values))
            else:
                fresh = Var(loop.var.name, loop.var.type)
                values = {loop.var: expression_of(Affine(first, {fresh: 1}))}
                extent = Const(end - first, fresh.type)
                items += self._repeated(For(fresh, extent, replaced(loop.body, values)))
        return items

    def _nests(self, nests: Sequence[Nest]) -> list[Item]:
        first = nests[0] if len(nests) > 1 else None
        found = select_matrix(self.machine, nests[-1], first, self.place_of)
        if found is not None:
            return found
        init = [item for nest in nests[:-1] for item in self._vectors(nest)]
        product = select_matrix(self.machine, nests[-1], None, self.place_of)
        return init + (self._vectors(nests[-1]) if product is None else product)

    def _vectors(self, nest: Nest) -> list[Item]:
        memory = near_of(self.machine)
        if memory is None:
            raise Unsupported("the machine has no memory that both moves and vectors reach")
        begin = -(-self.free.get(memory.name, 0) // ALIGNMENT) * ALIGNMENT
        scratch = Scratch(self.machine.base(memory.name) + begin, memory.bytes - begin, self.tile)
        vectors = Vectors(self.machine, self.place_of, scratch, self.outer, self.pool)
        items = vectors.of(nest)
        self.tiles_at, self.tiles = scratch.base, max(self.tiles, scratch.most)
        return items

    def _scalar(self, statements: list[Stmt], reason: str) -> list[Item]:
        items = Scalar(self.machine, self.place_of).of(statements)
        lines = executed(items) * math.prod(self.outer.values())
        self.scalar.append(ScalarNest(in_a_line(statements), reason, lines))
        return [Part(self._source(statements, reason), items)]

    def _source(self, statements: Sequence[Stmt], reason: str = "") -> Source:
        text = in_a_line(statements)
        if len(text) > MOST_LETTERS:
            text = f"{text[:MOST_LETTERS]}..."
        return Source(text, self._within, reason)
