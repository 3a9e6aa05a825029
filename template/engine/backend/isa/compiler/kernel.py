# SPDX-License-Identifier: Apache-2.0
"""From the loops of a kernel to instructions: what is selected, and scalar code for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..machine import Machine
from .code import Item, Repeat, Where
from .emission import ALIGNMENT, Scratch
from .loops import (
    Affine,
    Buffer,
    Const,
    Expr,
    For,
    Loops,
    Stmt,
    Undecided,
    Unsupported,
    Var,
    expression_of,
    lines_of,
    replaced,
)
from .matrices import select_matrix
from .nests import Nest, nests_of
from .scalar import Scalar
from .vectors import Vectors


@dataclass(frozen=True)
class ScalarNest:
    """A nest that runs as scalar code, and why."""

    text: str
    reason: str


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
    """

    def __init__(
        self,
        machine: Machine,
        loops: Loops,
        place_of: Callable[[Buffer], Where],
        free: dict[str, int],
        pool: Callable[[bytes], Where],
        vectors: bool = True,
    ) -> None:
        self.machine = machine
        self.loops = loops
        self.place_of = place_of
        self.free = free
        self.pool = pool
        self.vectors = vectors
        self.scalar: list[ScalarNest] = []
        self.note = loops.name
        self.outer: dict[Var, int] = {}

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
            else:
                items += self._scalar([statement], "it is no loop")
        return items

    def _loop(self, loop: For) -> list[Item]:
        nests = nests_of(loop)
        reason = "its loops have several statements"
        if nests is not None:
            try:
                return [item for nest in nests for item in self._nest(nest)]
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
        try:
            return [Repeat(loop.var, count, self._statements(loop.body))]
        except Undecided as error:
            if error.var is not loop.var:
                raise
        finally:
            del self.outer[loop.var]
        del self.scalar[known:]
        # Conditions change at the ends first: those of padding and of what is left over.
        ends = [0, 1, count - 1, count] if count > 2 else [0, 1, count]
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

    def _nest(self, nest: Nest) -> list[Item]:
        found = select_matrix(self.machine, nest, self.place_of, self.note)
        if found is not None:
            return found
        memory = next((m for m in self.machine.memories if not m.is_segmented), None)
        if memory is None:
            raise Unsupported("the machine has no scratchpad")
        begin = -(-self.free.get(memory.name, 0) // ALIGNMENT) * ALIGNMENT
        scratch = Scratch(self.machine.base(memory.name) + begin, memory.bytes - begin)
        return Vectors(self.machine, self.place_of, scratch, self.outer, self.pool, self.note).of(
            nest
        )

    def _scalar(self, statements: list[Stmt], reason: str) -> list[Item]:
        text = "; ".join(line.strip() for line in lines_of(statements))
        self.scalar.append(ScalarNest(text, reason))
        return Scalar(self.place_of, self.note).of(statements)
