# SPDX-License-Identifier: Apache-2.0
"""What an expression in the code of a converter may be."""

from __future__ import annotations

import ast
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from .given import (
    NOTHING,
    Attributes,
    Bound,
    Constant,
    Inputs,
    Items,
    Known,
    Local,
    Node,
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
    known,
    member,
    only,
    reads,
    spread,
)
from .scope import Scope, truth_of

_SILENT = {"print", "warn", "warning", "debug", "info", "isinstance", "hasattr", "refuse"}
"""What these are given has no influence on values."""
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
        """Whether what is being followed depends on where it was called from."""
        self._fields: dict[tuple[type, str], Values] = {}
        """What the members of objects may be."""

    @abstractmethod
    def _call(self, callee: Value, given: list[Values], named: dict[str, Values]) -> Values:
        """Follow a call."""

    @abstractmethod
    def _assign(self, target: ast.expr, values: Values, scope: Scope) -> None:
        """Give values to what stands left of an assignment."""

    # ---- Use ------------------------------------------------------------------------------------

    def use(self, values: Values) -> Values:
        """Note that values are used."""
        for value in values:
            if isinstance(value, Several):
                for item in value.items:
                    self.use(item)
            elif isinstance(value, (Local, Bound)):
                self._call(value, [], {}) if isinstance(value, Local) else None
            else:
                self.reads.note(value)
        return values

    def decide(self, values: Values) -> None:
        """Note that a condition looks at values: of a node as a whole, it learns nothing."""
        self.use(frozenset(v for v in values if not isinstance(v, (Node, Attributes, Inputs))))

    def _use_all(self, given: Iterable[Values], named: Mapping[str, Values]) -> None:
        for values in (*given, *named.values()):
            self.use(values)

    # ---- Expressions ----------------------------------------------------------------------------

    def _value(self, item: ast.expr, scope: Scope) -> Values:
        match item:
            case ast.Constant(value=value):
                return frozenset({Constant(value)})
            case ast.Name(id=name):
                return scope.find(name)
            case ast.Attribute(value=value, attr=name):
                return self._attribute(self._value(value, scope), name)
            case ast.Subscript(value=value, slice=index):
                return self._subscript(self._value(value, scope), index, scope)
            case ast.Call():
                return self._value_of_call(item, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if any(isinstance(part, ast.Starred) for part in parts):
                    return joined([self._value(part, scope) for part in parts])
                return frozenset({Several(tuple(self._value(part, scope) for part in parts))})
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                values = self._value(value, scope)
                if isinstance(item, ast.NamedExpr):
                    self._assign(item.target, values, scope)
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
                return frozenset({Local(item, scope)})
            case ast.Dict(keys=keys, values=parts):
                values = joined([self._value(part, scope) for part in parts])
                joined([self.use(self._value(key, scope)) for key in keys if key])
                return values
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(item, scope)
            case ast.Yield(value=value) if value:
                return self._value(value, scope)
            case _:
                for part in ast.iter_child_nodes(item):
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
        item: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        scope: Scope,
    ) -> Values:
        inner = Scope(item, scope, scope.python, scope.owner, scope.instance)
        for each in item.generators:
            self._assign(each.target, self._items(each.iter, inner), inner)
            for test in each.ifs:
                values = self._value(test, inner)
                if not isinstance(item, ast.DictComp):
                    self.decide(values)
        if isinstance(item, ast.DictComp):
            return self._value(item.value, inner)
        values = self._value(item.elt, inner)
        # A list made of the inputs is the inputs again.
        return values

    def _items(self, item: ast.expr, scope: Scope) -> Values:
        """Return what the items of an iterable may be."""
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name):
            name = item.func.id
            if name in ("enumerate", "zip", "reversed"):
                parts = [self._each(self._value(part, scope)) for part in item.args]
                parts = [NOTHING, *parts] if name == "enumerate" else parts
                return parts[0] if name == "reversed" else frozenset({Several(tuple(parts))})
        return self._each(self._value(item, scope))

    def _each(self, values: Values) -> Values:
        found = NOTHING
        for value in values:
            match value:
                case Inputs(start=start, stop=stop):
                    found |= frozenset({Read(None, start, stop)})
                case Several(items=items):
                    found |= joined(items)
                case Items():
                    found |= frozenset({Several((NOTHING, frozenset({Attributes()})))})
                case Attributes() | Read():
                    found |= frozenset({value})
        return found

    def _attribute(self, values: Values, name: str) -> Values:
        found = NOTHING
        for value in values:
            match value:
                case Read():
                    found |= frozenset({value})
                case Attributes() if name in ("get", "pop"):
                    # The method, to be called by another name.
                    found |= frozenset({value})
                case Node() if name in _GIVES_ATTRIBUTES:
                    found |= frozenset({Attributes()})
                case Node() if name in ("args", "input"):
                    found |= frozenset({Inputs()})
                case Node() if name in ("proto", "node"):
                    found |= frozenset({Node()})
                case Known(value=instance) if inspect.ismodule(instance):
                    found |= known(getattr(instance, name, ...))
                case Known() | Node() | Super():
                    found |= self._member(value, name)
        return found

    def _member(self, value: Known | Node | Super, name: str) -> Values:
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
        is_class = isinstance(value, Known) and isinstance(value.value, type)
        found = member(kind, name, frozenset({value}), is_class)
        for item in found:
            if isinstance(item, Bound) and isinstance(item.function, property):
                getter = Bound(item.function.fget, item.instance, item.owner)
                return self._call(getter, [], {})
        return found

    def _subscript(self, values: Values, index: ast.expr, scope: Scope) -> Values:
        if isinstance(index, ast.Slice):
            bounds = [
                self._number(part, scope) if part else None for part in (index.lower, index.upper)
            ]
            return self._element(values, slice(*bounds))
        key = self._value(index, scope)
        number = only(key)
        found = NOTHING
        for value in values:
            match value:
                case Attributes():
                    found |= attributes_named(key)
                case Inputs() | Several() | Read():
                    whole = number if isinstance(number, int) else None
                    found |= self._element(frozenset({value}), whole)
                case Node():
                    for method in self._member(value, "__getitem__"):
                        found |= self._call(method, [key], {})
        if not found:
            # A table of results by node: what the node is, its result is.
            return frozenset(item for item in key if isinstance(item, Read))
        self.use(frozenset(item for item in key if isinstance(item, Read)))
        return found

    def _number(self, item: ast.expr, scope: Scope) -> int | None:
        number = only(self._value(item, scope))
        return number if isinstance(number, int) else None

    def _element(self, values: Values, place: int | slice | None) -> Values:
        """Return what stands at a place; None is an unknown one."""
        found = NOTHING
        for value in values:
            match value:
                case Inputs():
                    found |= frozenset({value.at(place)})
                case Several(items=items):
                    if isinstance(place, slice):
                        found |= frozenset({Several(items[place])})
                    elif place is not None and -len(items) <= place < len(items):
                        found |= items[place]
                    else:
                        found |= joined(items)
                case Read() | Attributes():
                    found |= frozenset({value})
        return found

    def _value_of_call(self, item: ast.Call, scope: Scope) -> Values:
        name = getattr(item.func, "attr", getattr(item.func, "id", ""))
        if name in _SILENT:
            return NOTHING
        if name == "super":
            kinds = [class_of(value) for value in scope.instance]
            return frozenset(
                Super(scope.owner or kind, kind, scope.instance) for kind in kinds if kind
            )
        given: list[Values] = []
        if name == "len":
            # How many are given is not what they are.
            self.use(reads(self._value(item.args[0], scope)))
            return NOTHING
        for part in item.args:
            values = self._value(part, scope)
            given += spread(values) if isinstance(part, ast.Starred) else [values]
        named = {each.arg: self._value(each.value, scope) for each in item.keywords if each.arg}
        for each in item.keywords:
            if each.arg is None:
                self.use(self._value(each.value, scope))
        if isinstance(item.func, ast.Attribute):
            found = self._method_of_given(item.func, name, given, named, scope)
            if found is not None:
                return found
        if (name in _PASSED and given) or (name in _SAME and isinstance(item.func, ast.Name)):
            for values in given[1:]:
                self.use(values)
            if name == "getattr" and len(given) > 1 and isinstance(only(given[1]), str):
                return self._attribute(given[0], str(only(given[1]))) | reads(given[0])
            return given[0] if given else NOTHING
        callees = self._value(item.func, scope)
        if given and any(isinstance(value, Attributes) for value in callees):
            return attributes_named(given[0]) | joined(given[1:])
        functions = [value for value in callees if isinstance(value, (Known, Bound, Local))]
        if not functions:
            self.use(callees)
            self._use_all(given, named)
        return joined([self._call(function, given, named) for function in functions])

    def _method_of_given(
        self,
        function: ast.Attribute,
        name: str,
        given: list[Values],
        named: dict[str, Values],
        scope: Scope,
    ) -> Values | None:
        """Return the result of a method of something that the model has given; None of others."""
        found: Values | None = None
        for value in self._value(function.value, scope):
            result: Values | None = None
            match value:
                case Attributes() if name in ("get", "pop", "setdefault"):
                    result = attributes_named(given[0]) | joined(given[1:])
                case Attributes() if name in ("items", "values"):
                    result = frozenset({Items() if name == "items" else Attributes()})
                case Attributes():
                    self._use_all(given, named)
                    result = frozenset({value}) if name == "copy" else NOTHING
                case Options(name=table):
                    field = name.removesuffix("AsNumpy").removesuffix("Length")
                    result = frozenset({Read(f"{table}.{field.removesuffix('IsNone')}")})
                case Read():
                    self._use_all(given, named)
                    result = frozenset({value})
                case Node() if name == "normalized_arguments":
                    both = (frozenset({Inputs()}), frozenset({Attributes()}))
                    result = frozenset({Several(both)})
                case Node() if name == "Inputs":
                    place = only(given[0])
                    result = frozenset({Inputs().at(place if isinstance(place, int) else None)})
                case _ if name in _GIVES_INPUTS and isinstance(value, (Node, Known)):
                    result = frozenset({Inputs()})
                case Inputs() if name in ("append", "extend", "insert", "copy", "index", "count"):
                    self._use_all(given, named)
                    result = frozenset({value})
            if result is not None:
                found = (found or NOTHING) | result
        return found
