# SPDX-License-Identifier: Apache-2.0
"""What a converter reads of a node: found by following its code, without a model.

A value is used where it decides or becomes something: put into a variable that nothing uses, an
attribute is not read.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections import ChainMap
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from .code_of import Function, node_of
from .expressions import Expressions
from .given import (
    FOLLOWED,
    NOTHING,
    Bound,
    Instance,
    Known,
    Local,
    Options,
    Reads,
    Several,
    Value,
    Values,
    class_of,
    joined,
    known,
    member,
)
from .scope import Scope, truth_of

_SHARED: dict[object, tuple[Values, Reads]] = {}
"""What functions return and read, if it is the same in all converters."""


class Follower(Expressions):
    """Follows one converter.

    `followed`: prefixes of modules whose functions are followed, beside those of importers.
    """

    def __init__(self, followed: Sequence[str] = ()) -> None:
        super().__init__()
        self._followed = (*FOLLOWED, *followed)
        self._done: dict[object, Values] = {}

    # ---- Functions ------------------------------------------------------------------------------

    def follow(self, function: object, *given: Values, **named: Values) -> None:
        """Follow a function, and use what it returns."""
        while isinstance(function, functools.partial):
            named = {**{key: known(value) for key, value in function.keywords.items()}, **named}
            given = (*map(known, function.args), *given)
            function = function.func
        module = getattr(function, "__module__", None)
        if module:
            self._followed = (*self._followed, module)
        self.use(self._call(Known(function), list(given), dict(named)))

    def _call(self, callee: Value, given: list[Values], named: dict[str, Values]) -> Values:
        if isinstance(callee, Known):
            return self._call_known(callee.value, given, named)
        if isinstance(callee, Bound) and self._is_followed(callee.function):
            return self._run(callee.function, [callee.instance, *given], named, callee.owner)
        if isinstance(callee, Local):
            return self._evaluate(callee.node, callee.scope, given, named)
        self._use_all(given, named)
        return NOTHING

    def _call_known(
        self, function: object, given: list[Values], named: dict[str, Values]
    ) -> Values:
        if inspect.ismethod(function):
            instance = frozenset({Known(function.__self__)})
            kind = class_of(Known(function.__self__))
            places = kind.__mro__ if kind else ()
            owner = next((item for item in places if function.__name__ in vars(item)), kind)
            return self._call(Bound(function.__func__, instance, owner), given, named)
        if isinstance(function, type):
            if function.__module__.startswith("tflite.") and "Options" in function.__name__:
                return frozenset({Options(function.__name__)})
            if self._is_followed(function):
                made = frozenset({Known(Instance(function))})
                for method in member(function, "__init__", made):
                    self._call(method, given, named)
                return made
        elif isinstance(function, FunctionType) and self._is_followed(function):
            return self._run(function, given, named, None)
        elif isinstance(function, functools.partial):
            kept = {key: known(value) for key, value in function.keywords.items()}
            fixed = [*map(known, function.args)]
            return self._call_known(function.func, [*fixed, *given], {**kept, **named})
        self._use_all(given, named)
        return NOTHING

    def _is_followed(self, item: object) -> bool:
        return str(getattr(item, "__module__", "")).startswith(self._followed)

    def _run(
        self,
        function: Any,
        given: list[Values],
        named: dict[str, Values],
        owner: type | None,
    ) -> Values:
        function = inspect.unwrap(function)
        node = node_of(function) if isinstance(function, FunctionType) else None
        if node is None:
            self._use_all(given, named)
            return NOTHING
        names: Mapping[str, object] = function.__globals__
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            names = ChainMap({name: cell.cell_contents for name, cell in cells}, {**names})
        scope = Scope(node, None, names, owner)
        return self._evaluate(node, scope, given, named, key=function)

    def _evaluate(
        self,
        node: Function,
        outer: Scope,
        given: list[Values],
        named: dict[str, Values],
        key: object = None,
    ) -> Values:
        instance = given[0] if given else NOTHING
        scope = Scope(node, outer, outer.python, outer.owner, instance)
        self._bind(node.args, scope, given, named)
        bound = tuple(sorted((name, values) for name, values in scope.names.items()))
        place = (key or (node, outer), bound)
        shared = (place, self._followed) if key else None
        if shared in _SHARED:
            found, reads = _SHARED[shared]
            self.reads.add(reads)
            return found
        if place in self._done:
            # It may be unfinished.
            self.is_own = True
            return self._done[place]
        self._done[place] = NOTHING
        outside, self.reads = (self.reads, self.is_own), Reads()
        self.is_own = False
        if isinstance(node, ast.Lambda):
            self._done[place] = self._value(node.body, scope)
        else:
            # Twice, for what a name becomes further down.
            for _ in range(2):
                self._done[place] |= self._block(node.body, scope)
        if shared and not self.is_own:
            _SHARED[shared] = self._done[place], self.reads
        outside[0].add(self.reads)
        self.reads, self.is_own = outside[0], outside[1] or self.is_own
        return self._done[place]

    def _bind(
        self,
        arguments: ast.arguments,
        scope: Scope,
        given: list[Values],
        named: dict[str, Values],
    ) -> None:
        names = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
        every = [*names, *(item.arg for item in arguments.kwonlyargs)]
        last = len(names) - len(arguments.defaults)
        defaults = dict(zip(names[last:], arguments.defaults, strict=True))
        keywords = [item.arg for item in arguments.kwonlyargs]
        defaults |= {k: v for k, v in zip(keywords, arguments.kw_defaults, strict=True) if v}
        left = dict(named)
        for index, name in enumerate(names):
            if index < len(given):
                scope.names[name] = given[index]
        for name in every:
            if name in left:
                scope.names[name] = scope.names.get(name, NOTHING) | left.pop(name)
            elif name not in scope.names:
                default = defaults.get(name)
                scope.names[name] = self._value(default, scope) if default else NOTHING
        scope.fixed = set(every) - scope.assigned
        if arguments.vararg:
            scope.names[arguments.vararg.arg] = frozenset({Several(tuple(given[len(names) :]))})
        if arguments.kwarg:
            scope.names[arguments.kwarg.arg] = joined(left.values())

    # ---- Statements -----------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> Values:
        return joined([self._statement(item, scope) for item in body])

    def _statement(self, item: ast.stmt, scope: Scope) -> Values:
        match item:
            case ast.Return(value=value):
                return self._value(value, scope) if value else NOTHING
            case ast.If(test=test, body=body, orelse=other):
                truth = truth_of(test, scope)
                self.decide(self._value(test, scope))
                first = self._block(body, scope) if truth is not False else NOTHING
                return first | (self._block(other, scope) if truth is not True else NOTHING)
            case ast.Assign(targets=targets, value=value):
                values = self._value(value, scope)
                for target in targets:
                    self._assign(target, values, scope)
            case ast.AnnAssign(target=target, value=value) if value:
                self._assign(target, self._value(value, scope), scope)
            case ast.AugAssign(target=target, value=value):
                self.use(self._value(value, scope))
                if isinstance(target, ast.Name):
                    self.use(scope.find(target.id))
            case ast.For(target=target, iter=each, body=body, orelse=other):
                self._assign(target, self._items(each, scope), scope)
                return self._block([*body, *other], scope)
            case ast.While(test=test, body=body, orelse=other):
                self.decide(self._value(test, scope))
                return self._block([*body, *other], scope)
            case ast.With(items=items, body=body):
                for entry in items:
                    values = self._value(entry.context_expr, scope)
                    if entry.optional_vars:
                        self._assign(entry.optional_vars, values, scope)
                return self._block(body, scope)
            case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=last):
                caught = [line for handler in handlers for line in handler.body]
                return self._block([*body, *caught, *other, *last], scope)
            case ast.FunctionDef():
                scope.set(item.name, frozenset({Local(item, scope)}))
            case ast.Expr(value=value):
                # A yield is a result, a call is made for what it does.
                values = self._value(value, scope)
                return values if isinstance(value, (ast.Yield, ast.YieldFrom)) else NOTHING
            case ast.Assert(test=test):
                self.decide(self._value(test, scope))
            case ast.ImportFrom() | ast.Import():
                self._import(item, scope)
            case _:
                # What an error says has no influence on values.
                pass
        return NOTHING

    def _import(self, item: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        package = str(scope.python.get("__package__") or "")
        for alias in item.names:
            try:
                if isinstance(item, ast.Import):
                    found: object = importlib.import_module(alias.name)
                    name = alias.asname or ""
                else:
                    source = "." * item.level + (item.module or "")
                    module = importlib.import_module(source, package)
                    found, name = getattr(module, alias.name), alias.asname or alias.name
            except (ImportError, AttributeError):
                continue
            if name:
                scope.set(name, known(found))

    def _assign(self, target: ast.expr, values: Values, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.set(name, values)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for index, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        rest = slice(index, None)
                        self._assign(part.value, self._element(values, rest), scope)
                    else:
                        self._assign(part, self._element(values, index), scope)
            case ast.Attribute(value=value, attr=name):
                owners = self._value(value, scope)
                for owner in owners:
                    kind = class_of(owner)
                    if kind is not None:
                        self.is_own = True
                        before = self._fields.get((kind, name), NOTHING)
                        self._fields[kind, name] = before | values
                if not owners:
                    self.use(values)
            case ast.Subscript():
                self.use(values)
                self.use(self._value(target.slice, scope))
            case _:
                self.use(values)
