# SPDX-License-Identifier: Apache-2.0
"""Finds what a converter reads of a node by following its code, without a model.

A value is read where it decides something, or becomes part of a result; an attribute in a variable
that nothing uses is not read.
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

from .abstract_values import (
    FOLLOWED,
    NOTHING,
    Bound,
    Instance,
    Local,
    Object,
    Options,
    Reads,
    Several,
    Value,
    Values,
    class_of,
    joined,
    member,
    values_of_object,
)
from .code_of import Function, node_of
from .expressions import Expressions
from .scope import Scope, truth_of

_SHARED: dict[object, tuple[Values, Reads]] = {}
"""The values that functions return, and their reads, if equal in all converters."""


class Follower(Expressions):
    """Follows one converter into functions of the importers, and of modules with these prefixes."""

    def __init__(self, followed: Sequence[str] = ()) -> None:
        super().__init__()
        self._followed = (*FOLLOWED, *followed)
        self._done: dict[object, Values] = {}

    # ---- Functions ------------------------------------------------------------------------------

    def follow(self, function: object, *arguments: Values, **keywords: Values) -> None:
        """Follow a function, and use what it returns."""
        while isinstance(function, functools.partial):
            keywords = {
                **{key: values_of_object(value) for key, value in function.keywords.items()},
                **keywords,
            }
            arguments = (*map(values_of_object, function.args), *arguments)
            function = function.func
        module = getattr(function, "__module__", None)
        if module:
            self._followed = (*self._followed, module)
        self.use(self._call(Object(function), list(arguments), dict(keywords)))

    def _call(self, callee: Value, arguments: list[Values], keywords: dict[str, Values]) -> Values:
        if isinstance(callee, Object):
            return self._call_object(callee.value, arguments, keywords)
        if isinstance(callee, Bound) and self._is_followed(callee.function):
            return self._run(callee.function, [callee.instance, *arguments], keywords, callee.owner)
        if isinstance(callee, Local):
            return self._evaluate(callee.node, callee.scope, arguments, keywords)
        self._use_all(arguments, keywords)
        return NOTHING

    def _call_object(
        self, function: object, arguments: list[Values], keywords: dict[str, Values]
    ) -> Values:
        if inspect.ismethod(function):
            instance = frozenset({Object(function.__self__)})
            kind = class_of(Object(function.__self__))
            places = kind.__mro__ if kind else ()
            owner = next((base for base in places if function.__name__ in vars(base)), kind)
            return self._call(Bound(function.__func__, instance, owner), arguments, keywords)
        if isinstance(function, type):
            if function.__module__.startswith("tflite.") and "Options" in function.__name__:
                return frozenset({Options(function.__name__)})
            if self._is_followed(function):
                created = frozenset({Object(Instance(function))})
                for method in member(function, "__init__", created):
                    self._call(method, arguments, keywords)
                return created
        elif isinstance(function, FunctionType) and self._is_followed(function):
            return self._run(function, arguments, keywords, None)
        elif isinstance(function, functools.partial):
            kept = {key: values_of_object(value) for key, value in function.keywords.items()}
            fixed = [*map(values_of_object, function.args)]
            return self._call_object(function.func, [*fixed, *arguments], {**kept, **keywords})
        self._use_all(arguments, keywords)
        return NOTHING

    def _is_followed(self, function: object) -> bool:
        return str(getattr(function, "__module__", "")).startswith(self._followed)

    def _run(
        self,
        function: Any,
        arguments: list[Values],
        keywords: dict[str, Values],
        owner: type | None,
    ) -> Values:
        function = inspect.unwrap(function)
        node = node_of(function) if isinstance(function, FunctionType) else None
        if node is None:
            self._use_all(arguments, keywords)
            return NOTHING
        names: Mapping[str, object] = function.__globals__
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            names = ChainMap({name: cell.cell_contents for name, cell in cells}, {**names})
        scope = Scope(node, None, names, owner)
        return self._evaluate(node, scope, arguments, keywords, key=function)

    def _evaluate(
        self,
        node: Function,
        outer: Scope,
        arguments: list[Values],
        keywords: dict[str, Values],
        key: object = None,
    ) -> Values:
        instance = arguments[0] if arguments else NOTHING
        scope = Scope(node, outer, outer.python, outer.owner, instance)
        self._bind(node.args, scope, arguments, keywords)
        bound = tuple(sorted((name, values) for name, values in scope.names.items()))
        place = (key or (node, outer), bound)
        shared = (place, self._followed) if key else None
        if shared in _SHARED:
            values, reads = _SHARED[shared]
            self.reads.add(reads)
            return values
        if place in self._done:
            # In a recursion, the values may be incomplete.
            self.is_own = True
            return self._done[place]
        self._done[place] = NOTHING
        outside, self.reads = (self.reads, self.is_own), Reads()
        self.is_own = False
        if isinstance(node, ast.Lambda):
            self._done[place] = self._value(node.body, scope)
        else:
            # Twice, since a name may get values further down.
            for _ in range(2):
                self._done[place] |= self._block(node.body, scope)
        if shared and not self.is_own:
            _SHARED[shared] = self._done[place], self.reads
        outside[0].add(self.reads)
        self.reads, self.is_own = outside[0], outside[1] or self.is_own
        return self._done[place]

    def _bind(
        self,
        signature: ast.arguments,
        scope: Scope,
        arguments: list[Values],
        keywords: dict[str, Values],
    ) -> None:
        names = [parameter.arg for parameter in (*signature.posonlyargs, *signature.args)]
        keyword_only = [parameter.arg for parameter in signature.kwonlyargs]
        last = len(names) - len(signature.defaults)
        defaults = dict(zip(names[last:], signature.defaults, strict=True))
        defaults |= {k: v for k, v in zip(keyword_only, signature.kw_defaults, strict=True) if v}
        unbound = dict(keywords)
        for index, name in enumerate(names):
            if index < len(arguments):
                scope.names[name] = arguments[index]
        for name in (*names, *keyword_only):
            if name in unbound:
                scope.names[name] = scope.names.get(name, NOTHING) | unbound.pop(name)
            elif name not in scope.names:
                default = defaults.get(name)
                scope.names[name] = self._value(default, scope) if default else NOTHING
        scope.fixed = {*names, *keyword_only} - scope.assigned
        if signature.vararg:
            scope.names[signature.vararg.arg] = frozenset({Several(tuple(arguments[len(names) :]))})
        if signature.kwarg:
            scope.names[signature.kwarg.arg] = joined(unbound.values())

    # ---- Statements -----------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> Values:
        return joined([self._statement(statement, scope) for statement in body])

    def _statement(self, statement: ast.stmt, scope: Scope) -> Values:
        match statement:
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
                scope.set(statement.name, frozenset({Local(statement, scope)}))
            case ast.Expr(value=value):
                # A yield is a result; other expressions have only effects.
                values = self._value(value, scope)
                return values if isinstance(value, (ast.Yield, ast.YieldFrom)) else NOTHING
            case ast.Assert(test=test):
                self.decide(self._value(test, scope))
            case ast.ImportFrom() | ast.Import():
                self._import(statement, scope)
            case _:
                pass  # An error's text has no influence on values.
        return NOTHING

    def _import(self, statement: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        package = str(scope.python.get("__package__") or "")
        for alias in statement.names:
            try:
                if isinstance(statement, ast.Import):
                    imported: object = importlib.import_module(alias.name)
                    name = alias.asname or ""
                else:
                    source = "." * statement.level + (statement.module or "")
                    module = importlib.import_module(source, package)
                    imported, name = getattr(module, alias.name), alias.asname or alias.name
            except (ImportError, AttributeError):
                continue
            if name:
                scope.set(name, values_of_object(imported))

    def _assign(self, target: ast.expr, values: Values, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.set(name, values)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for index, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        tail = self._element(values, slice(index, None))
                        self._assign(part.value, tail, scope)
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
