# SPDX-License-Identifier: Apache-2.0
"""The possible values of expressions in the code of a converter."""

from __future__ import annotations

import ast
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from .abstract_values import (
    NOTHING,
    Attributes,
    Bound,
    Constant,
    Inputs,
    Items,
    Local,
    Node,
    Object,
    Options,
    Read,
    Reads,
    Several,
    Super,
    Value,
    Values,
    attributes_named,
    class_of,
    joined,
    member,
    only,
    reads,
    spread,
    values_of_object,
)
from .scope import Scope, truth_of

_SILENT = {"print", "warn", "warning", "debug", "info", "isinstance", "hasattr", "refuse"}
"""Functions whose arguments have no influence on values."""
_SAME = {"list", "tuple", "dict", "int", "float", "bool", "str", "sorted", "set", "reversed"}
_PASSED = {"get_constant", "normalize", "emit", "getattr", "_retrieve_args"}
"""These return their first argument, perhaps in another form."""
_GIVES_INPUTS = {"retrieve_args", "get_input_tensors", "InputsAsNumpy", "inputs"}
_GIVES_ATTRIBUTES = {"kwargs", "attributes", "attribute", "arguments"}


class Expressions:
    """Evaluates expressions, and notes what they use of a node."""

    def __init__(self) -> None:
        self.reads = Reads()
        self.is_own = False
        """Whether the followed function depends on its caller."""
        self._fields: dict[tuple[type, str], Values] = {}
        """The possible values of the members of objects."""

    @abstractmethod
    def _call(self, callee: Value, arguments: list[Values], keywords: dict[str, Values]) -> Values:
        """Follow a call."""

    @abstractmethod
    def _assign(self, target: ast.expr, values: Values, scope: Scope) -> None:
        """Give values to the target of an assignment."""

    # ---- Use ------------------------------------------------------------------------------------

    def use(self, values: Values) -> Values:
        """Note that values are used."""
        for value in values:
            if isinstance(value, Several):
                for element in value.items:
                    self.use(element)
            elif isinstance(value, (Local, Bound)):
                self._call(value, [], {}) if isinstance(value, Local) else None
            else:
                self.reads.note(value)
        return values

    def decide(self, values: Values) -> None:
        """Note that a condition uses values; a node as a whole tells it nothing."""
        self.use(frozenset(v for v in values if not isinstance(v, (Node, Attributes, Inputs))))

    def _use_all(self, arguments: Iterable[Values], keywords: Mapping[str, Values]) -> None:
        for values in (*arguments, *keywords.values()):
            self.use(values)

    # ---- Expressions ----------------------------------------------------------------------------

    def _value(self, expr: ast.expr, scope: Scope) -> Values:
        match expr:
            case ast.Constant(value=value):
                return frozenset({Constant(value)})
            case ast.Name(id=name):
                return scope.find(name)
            case ast.Attribute(value=value, attr=name):
                return self._attribute(self._value(value, scope), name)
            case ast.Subscript(value=value, slice=index):
                return self._subscript(self._value(value, scope), index, scope)
            case ast.Call():
                return self._value_of_call(expr, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if any(isinstance(part, ast.Starred) for part in parts):
                    return joined([self._value(part, scope) for part in parts])
                return frozenset({Several(tuple(self._value(part, scope) for part in parts))})
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                values = self._value(value, scope)
                if isinstance(expr, ast.NamedExpr):
                    self._assign(expr.target, values, scope)
                return values
            case ast.IfExp(test=test, body=body, orelse=other):
                truth = truth_of(test, scope)
                self.decide(self._value(test, scope))
                first = self._value(body, scope) if truth is not False else NOTHING
                return first | (self._value(other, scope) if truth is not True else NOTHING)
            case ast.BoolOp(values=parts):
                return joined([self._value(part, scope) for part in parts])
            case ast.BinOp(left=left, right=right):
                values = self._value(left, scope) | self._value(right, scope)
                kept = frozenset(v for v in values if isinstance(v, (Attributes, Inputs, Several)))
                self.use(values - kept)
                return kept
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others, scope)
            case ast.Lambda():
                return frozenset({Local(expr, scope)})
            case ast.Dict(keys=keys, values=parts):
                values = joined([self._value(part, scope) for part in parts])
                joined([self.use(self._value(key, scope)) for key in keys if key])
                return values
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(expr, scope)
            case ast.Yield(value=value) if value:
                return self._value(value, scope)
            case _:
                for part in ast.iter_child_nodes(expr):
                    if isinstance(part, ast.expr):
                        self.use(self._value(part, scope))
                return NOTHING

    def _compare(
        self, left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], scope: Scope
    ) -> Values:
        values, second = self._value(left, scope), self._value(others[0], scope)
        if isinstance(ops[0], (ast.In, ast.NotIn)) and any(
            isinstance(value, Attributes) for value in second
        ):
            self.use(attributes_named(values))
            return NOTHING
        self.decide(values)
        for other in others:
            self.decide(self._value(other, scope))
        return NOTHING

    def _comprehension(
        self,
        expr: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        scope: Scope,
    ) -> Values:
        inner = Scope(expr, scope, scope.python, scope.owner, scope.instance)
        for loop in expr.generators:
            self._assign(loop.target, self._items(loop.iter, inner), inner)
            for test in loop.ifs:
                values = self._value(test, inner)
                if not isinstance(expr, ast.DictComp):
                    self.decide(values)
        # A list made of the inputs is the inputs again.
        return self._value(expr.value if isinstance(expr, ast.DictComp) else expr.elt, inner)

    def _items(self, expr: ast.expr, scope: Scope) -> Values:
        """Return the possible values of the elements of an iterable."""
        if isinstance(expr, ast.Call) and isinstance(expr.func, ast.Name):
            name = expr.func.id
            if name in ("enumerate", "zip", "reversed"):
                parts = [self._each(self._value(part, scope)) for part in expr.args]
                parts = [NOTHING, *parts] if name == "enumerate" else parts
                return parts[0] if name == "reversed" else frozenset({Several(tuple(parts))})
        return self._each(self._value(expr, scope))

    def _each(self, values: Values) -> Values:
        possible = NOTHING
        for value in values:
            match value:
                case Inputs(start=start, stop=stop):
                    possible |= frozenset({Read(None, start, stop)})
                case Several(items=items):
                    possible |= joined(items)
                case Items():
                    possible |= frozenset({Several((NOTHING, frozenset({Attributes()})))})
                case Attributes() | Read():
                    possible |= frozenset({value})
        return possible

    def _attribute(self, values: Values, name: str) -> Values:
        possible = NOTHING
        for value in values:
            match value:
                case Read():
                    possible |= frozenset({value})
                case Attributes() if name in ("get", "pop"):
                    # The method may be called by another name.
                    possible |= frozenset({value})
                case Node() if name in _GIVES_ATTRIBUTES:
                    possible |= frozenset({Attributes()})
                case Node() if name in ("args", "input"):
                    possible |= frozenset({Inputs()})
                case Node() if name in ("proto", "node"):
                    possible |= frozenset({Node()})
                case Object(value=instance) if inspect.ismodule(instance):
                    possible |= values_of_object(getattr(instance, name, ...))
                case Object() | Node() | Super():
                    possible |= self._member(value, name)
        return possible

    def _member(self, value: Object | Node | Super, name: str) -> Values:
        kind = class_of(value)
        if kind is None:
            return NOTHING
        if (kind, name) in self._fields:
            self.is_own = True
            return self._fields[kind, name]
        if isinstance(value, Super):
            order = list(kind.__mro__)
            later = order[order.index(value.owner) + 1 :] if value.owner in order else order[1:]
            places = [place for place in later if name in vars(place)]
            if not places:
                return NOTHING
            return member(places[0], name, value.instance)
        is_class = isinstance(value, Object) and isinstance(value.value, type)
        possible = member(kind, name, frozenset({value}), is_class)
        for bound in possible:
            if isinstance(bound, Bound) and isinstance(bound.function, property):
                getter = Bound(bound.function.fget, bound.instance, bound.owner)
                return self._call(getter, [], {})
        return possible

    def _subscript(self, values: Values, index: ast.expr, scope: Scope) -> Values:
        if isinstance(index, ast.Slice):
            bounds = [
                self._number(part, scope) if part else None for part in (index.lower, index.upper)
            ]
            return self._element(values, slice(*bounds))
        key = self._value(index, scope)
        number = only(key)
        possible = NOTHING
        for value in values:
            match value:
                case Attributes():
                    possible |= attributes_named(key)
                case Inputs() | Several() | Read():
                    place = number if isinstance(number, int) else None
                    possible |= self._element(frozenset({value}), place)
                case Node():
                    for method in self._member(value, "__getitem__"):
                        possible |= self._call(method, [key], {})
        if not possible:
            # A table of results by node: the result has the node's values.
            return reads(key)
        self.use(reads(key))
        return possible

    def _number(self, expr: ast.expr, scope: Scope) -> int | None:
        number = only(self._value(expr, scope))
        return number if isinstance(number, int) else None

    def _element(self, values: Values, place: int | slice | None) -> Values:
        """Return the values at a place, or with None at any."""
        possible = NOTHING
        for value in values:
            match value:
                case Inputs():
                    possible |= frozenset({value.at(place)})
                case Several(items=items):
                    if isinstance(place, slice):
                        possible |= frozenset({Several(items[place])})
                    elif place is not None and -len(items) <= place < len(items):
                        possible |= items[place]
                    else:
                        possible |= joined(items)
                case Read() | Attributes():
                    possible |= frozenset({value})
        return possible

    def _value_of_call(self, expr: ast.Call, scope: Scope) -> Values:
        name = getattr(expr.func, "attr", getattr(expr.func, "id", ""))
        if name in _SILENT:
            return NOTHING
        if name == "super":
            kinds = [class_of(value) for value in scope.instance]
            return frozenset(
                Super(scope.owner or kind, kind, scope.instance) for kind in kinds if kind
            )
        arguments: list[Values] = []
        if name == "len":
            # The number of inputs is not their content.
            self.use(reads(self._value(expr.args[0], scope)))
            return NOTHING
        for part in expr.args:
            values = self._value(part, scope)
            arguments += spread(values) if isinstance(part, ast.Starred) else [values]
        keywords = {}
        for keyword in expr.keywords:
            values = self._value(keyword.value, scope)
            if keyword.arg:
                keywords[keyword.arg] = values
            else:
                self.use(values)
        if isinstance(expr.func, ast.Attribute):
            possible = self._method_of_model(expr.func, name, arguments, keywords, scope)
            if possible is not None:
                return possible
        if (name in _PASSED and arguments) or (name in _SAME and isinstance(expr.func, ast.Name)):
            for values in arguments[1:]:
                self.use(values)
            if name == "getattr" and len(arguments) > 1 and isinstance(only(arguments[1]), str):
                return self._attribute(arguments[0], str(only(arguments[1]))) | reads(arguments[0])
            return arguments[0] if arguments else NOTHING
        callees = self._value(expr.func, scope)
        if arguments and any(isinstance(value, Attributes) for value in callees):
            return attributes_named(arguments[0]) | joined(arguments[1:])
        functions = [value for value in callees if isinstance(value, (Object, Bound, Local))]
        if not functions:
            self.use(callees)
            self._use_all(arguments, keywords)
        return joined([self._call(function, arguments, keywords) for function in functions])

    def _method_of_model(
        self,
        function: ast.Attribute,
        name: str,
        arguments: list[Values],
        keywords: dict[str, Values],
        scope: Scope,
    ) -> Values | None:
        """Return the result of a method of inputs or attributes; None of other methods."""
        possible: Values | None = None
        for value in self._value(function.value, scope):
            result: Values | None = None
            match value:
                case Attributes() if name in ("get", "pop", "setdefault"):
                    result = attributes_named(arguments[0]) | joined(arguments[1:])
                case Attributes() if name in ("items", "values"):
                    result = frozenset({Items() if name == "items" else Attributes()})
                case Attributes():
                    self._use_all(arguments, keywords)
                    result = frozenset({value}) if name == "copy" else NOTHING
                case Options(name=table):
                    field = name.removesuffix("AsNumpy").removesuffix("Length")
                    result = frozenset({Read(f"{table}.{field.removesuffix('IsNone')}")})
                case Read():
                    self._use_all(arguments, keywords)
                    result = frozenset({value})
                case Node() if name == "normalized_arguments":
                    inputs_and_attributes = (frozenset({Inputs()}), frozenset({Attributes()}))
                    result = frozenset({Several(inputs_and_attributes)})
                case Node() if name == "Inputs":
                    place = only(arguments[0])
                    result = frozenset({Inputs().at(place if isinstance(place, int) else None)})
                case _ if name in _GIVES_INPUTS and isinstance(value, (Node, Object)):
                    result = frozenset({Inputs()})
                case Inputs() if name in ("append", "extend", "insert", "copy", "index", "count"):
                    self._use_all(arguments, keywords)
                    result = frozenset({value})
            if result is not None:
                possible = (possible or NOTHING) | result
        return possible
