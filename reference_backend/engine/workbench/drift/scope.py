# SPDX-License-Identifier: Apache-2.0
"""The names that a function sees while it is followed, and conditions on them."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Mapping

from .abstract_values import NOTHING, Constant, Values, values_of_object


@functools.cache
def _assigned(node: ast.AST) -> frozenset[str]:
    """Return the names that a function assigns to."""
    return frozenset(
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )


class Scope:
    """The names that the function `node` sees.

    `outer`: the scope of the function around it, if that is being followed too.
    `python`: its names of the module and of closures.
    `owner`, `instance`: the class whose method it is, and its first argument, for `super()`.
    """

    def __init__(
        self,
        node: ast.AST,
        outer: Scope | None,
        python: Mapping[str, object],
        owner: type | None = None,
        instance: Values = NOTHING,
    ) -> None:
        self.outer, self.python, self.owner, self.instance = outer, python, owner, instance
        self.names: dict[str, Values] = {}
        self.fixed: set[str] = set()
        """Parameters that are never assigned to."""
        self.assigned = _assigned(node)

    def find(self, name: str) -> Values:
        """Return the possible values of a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        for place in (self.python, vars(builtins)):
            if name in place:
                return values_of_object(place[name])
        return NOTHING

    def set(self, name: str, values: Values) -> None:
        """Add possible values of a name: branches are not told apart."""
        self.names[name] = self.names.get(name, NOTHING) | values


def truth_of(test: ast.expr, scope: Scope) -> bool | None:
    """Return whether a condition on fixed arguments holds; None if unknown."""
    match test:
        case ast.Name(id=name) if name in scope.fixed:
            values = scope.names.get(name, NOTHING)
            value = next(iter(values)) if len(values) == 1 else None
            return bool(value.value) if isinstance(value, Constant) else None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = truth_of(operand, scope)
            return None if truth is None else not truth
        case ast.BoolOp(op=kind, values=parts):
            truths = [truth_of(part, scope) for part in parts]
            decides = isinstance(kind, ast.Or)
            if decides in truths:
                return decides
            return None if None in truths else not decides
        case ast.Compare(left=ast.Name(id=name), ops=[kind], comparators=[operand]):
            if name not in scope.fixed:
                return None
            return _compared(scope.names.get(name, NOTHING), kind, operand)
    return None


def _compared(values: Values, kind: ast.cmpop, operand: ast.expr) -> bool | None:
    value = next(iter(values)) if len(values) == 1 else None
    try:
        fixed = ast.literal_eval(operand)
    except ValueError:
        return None
    if not isinstance(value, Constant):
        return None
    match kind:
        case ast.Eq() | ast.Is():
            return bool(value.value == fixed)
        case ast.NotEq() | ast.IsNot():
            return bool(value.value != fixed)
        case ast.In():
            return value.value in fixed
        case ast.NotIn():
            return value.value not in fixed
    return None
