# SPDX-License-Identifier: Apache-2.0
"""The registered patterns, with quick tests for whether they can match."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property

from tvm.relax.dpl import (
    CallPattern,
    DFPattern,
    ExprPattern,
    OrPattern,
    TupleGetItemPattern,
    TuplePattern,
)
from tvm.relax.transform import FusionPattern

from . import ir


class Entry:
    """A registered pattern, with quick tests for whether it can match at a call.

    To read a pattern takes long, so what most blocks do not need is read at its first use.
    """

    def __init__(self, pattern: FusionPattern) -> None:
        self.pattern = pattern
        self.heads: dict[str, list[CallPattern]] = {}
        """The calls that a match may end in, by op."""
        for call in _heads(pattern.pattern):
            self.heads.setdefault(_op_of(call), []).append(call)

    @cached_property
    def label(self) -> str:
        """The label of the composites that it makes."""
        return str(self.pattern.name).partition(".")[2]

    @cached_property
    def annotations(self) -> dict[str, DFPattern]:
        """The parts that its check reads."""
        return dict(self.pattern.annotation_patterns.items())

    @property
    def depth(self) -> int:
        """The depth in calls."""
        return self._extent[0]

    @property
    def needed(self) -> frozenset[str]:
        """The ops that every match contains."""
        return self._extent[1]

    @cached_property
    def _extent(self) -> tuple[int, frozenset[str]]:
        return _extent(self.pattern.pattern, {})

    @cached_property
    def _producers(self) -> dict[str, list[frozenset[str]]]:
        return {
            op: [
                frozenset(_op_of(producer) for part in call.args for producer in _heads(part))
                for call in calls
            ]
            for op, calls in self.heads.items()
        }

    def may_match(self, op: str, producers: set[str]) -> bool:
        """Whether a call of an op whose operands these ops produce may end a match."""
        return any(not wanted or wanted & producers for wanted in self._producers[op])


@cache
def entry_of(pattern: FusionPattern) -> Entry:
    """Return the entry of a pattern, which many partitionings share."""
    return Entry(pattern)


def _op_of(call: CallPattern) -> str:
    return str(call.op.expr.name)


def _heads(pattern: DFPattern) -> Iterator[CallPattern]:
    if isinstance(pattern, OrPattern):
        yield from _heads(pattern.left)
        yield from _heads(pattern.right)
    elif isinstance(pattern, CallPattern) and isinstance(pattern.op, ExprPattern):
        yield pattern


def _extent(
    pattern: DFPattern, memo: dict[int, tuple[int, frozenset[str]]]
) -> tuple[int, frozenset[str]]:
    """Return the depth of a pattern in calls, and the ops that every match contains.

    `memo` has the results so far: a pattern is a DAG with too many paths to walk.
    """
    key = ir.id_of(pattern)
    if key not in memo:
        depth, needed = 0, frozenset[str]()
        if isinstance(pattern, OrPattern):
            left, right = _extent(pattern.left, memo), _extent(pattern.right, memo)
            depth, needed = max(left[0], right[0]), left[1] & right[1]
        elif isinstance(pattern, CallPattern | TuplePattern | TupleGetItemPattern):
            inside = (
                list(pattern.args)
                if isinstance(pattern, CallPattern)
                else list(pattern.fields)
                if isinstance(pattern, TuplePattern)
                else [pattern.tuple]
            )
            parts = [_extent(part, memo) for part in inside]
            depth = 1 + max((part[0] for part in parts), default=0)
            needed = needed.union(*(part[1] for part in parts))
            if isinstance(pattern, CallPattern) and isinstance(pattern.op, ExprPattern):
                needed |= {_op_of(pattern)}
        memo[key] = depth, needed
    return memo[key]
