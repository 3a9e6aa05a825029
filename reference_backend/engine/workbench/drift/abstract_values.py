# SPDX-License-Identifier: Apache-2.0
"""The possible values of names in a converter, as far as they tell what it reads of a node."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ...backend import importers

if TYPE_CHECKING:
    from .code_of import Function


FOLLOWED = ("tvm.relax.frontend.", importers.__name__)
"""The modules of importers: TVM's and ours."""


@dataclass(frozen=True)
class Constant:
    """A constant of Python, such as the name of an attribute."""

    value: object


@dataclass(frozen=True)
class Node:
    """A node of a model; `kind` is the class of its wrapper, whose methods are called."""

    kind: type | None = None


@dataclass(frozen=True)
class Attributes:
    """All attributes of a node by name; or its arguments by keyword."""


@dataclass(frozen=True)
class Items:
    """The items of all attributes."""


@dataclass(frozen=True)
class Options:
    """A table of options of TFLite."""

    name: str


@dataclass(frozen=True)
class Read:
    """The value of an attribute; or of inputs, from the first to before the last."""

    name: str | None
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Inputs:
    """The inputs of a node; or its arguments by position."""

    start: int = 0
    stop: int | None = None

    def at(self, place: int | slice | None) -> Value:
        """Return one input, a slice of them, or for an unknown place any."""
        if place is None or (isinstance(place, int) and place < 0):
            return Read(None, self.start, self.stop)
        if isinstance(place, int):
            return Read(None, self.start + place, self.start + place + 1)
        first = place.start or 0
        if first < 0:
            return self
        is_open = place.stop is None or place.stop < 0
        stop = self.stop if is_open else self.start + place.stop
        return Inputs(self.start + first, stop)


@dataclass(frozen=True)
class Several:
    """A tuple or list of values."""

    items: tuple[Values, ...]


@dataclass(frozen=True)
class Object:
    """An object of Python: a class, a module, or an instance of a class."""

    value: Any


@dataclass(frozen=True)
class Bound:
    """A method with its instance and class."""

    function: Any
    instance: Values
    owner: type | None


@dataclass(frozen=True)
class Local:
    """A function inside of another, and the names that it sees."""

    node: Function
    scope: Any


@dataclass(frozen=True)
class Super:
    """The value of `super()` in a method."""

    owner: type
    kind: type
    instance: Values


Value = (
    Constant | Node | Attributes | Items | Options | Read | Inputs | Several | Object | Bound
    | Local | Super
)  # fmt: skip
Values = frozenset[Any]
NOTHING: Values = frozenset()


@dataclass
class Reads:
    """The attributes and inputs that a converter reads."""

    attributes: set[str] = field(default_factory=set)
    ranges: set[tuple[int, int | None]] = field(default_factory=set)
    """The inputs: the first, and the one after the last."""
    passes: bool = False
    """Whether it hands on all attributes."""

    def note(self, value: Value) -> None:
        """Note that a value is used."""
        match value:
            case Read(name=None, start=start, stop=stop):
                self.ranges.add((start, stop))
            case Inputs(start=start, stop=stop):
                self.ranges.add((start, stop))
            case Read(name=str(name)):
                self.attributes.add(name)
            case Attributes() | Items() | Node():
                self.passes = True

    def add(self, reads: Reads) -> None:
        """Add all that another converter reads."""
        self.attributes |= reads.attributes
        self.ranges |= reads.ranges
        self.passes |= reads.passes

    def has_input(self, place: int) -> bool:
        """Return whether an input is read."""
        return any(start <= place and (stop is None or place < stop) for start, stop in self.ranges)


@dataclass(frozen=True)
class Instance:
    """An instance of a followed class; all instances of a class are one."""

    kind: type


def joined(parts: Iterable[Values]) -> Values:
    """Return the union of possible values."""
    return NOTHING.union(*parts)


def values_of_object(value: object) -> Values:
    """Return an object of Python as values; none if it cannot matter."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return frozenset({Constant(value)})
    is_code = isinstance(value, (FunctionType, type)) or inspect.ismethod(value)
    is_ours = type(value).__module__.startswith(FOLLOWED)
    if is_code or inspect.ismodule(value) or is_ours:
        return frozenset({Object(value)})
    return NOTHING


def only(values: Values) -> object:
    """Return the constant if it is the only possible value, else None."""
    value = next(iter(values)) if len(values) == 1 else None
    return value.value if isinstance(value, Constant) else None


def attributes_named(key: Values) -> Values:
    """Return the attributes of some names; all if a name is not known."""
    names = [constant.value for constant in key if isinstance(constant, Constant)]
    named = frozenset(Read(name) for name in names if isinstance(name, str))
    return named or frozenset({Attributes()})


def reads(values: Values) -> Values:
    """Return the values that are read of a node."""
    return frozenset(value for value in values if isinstance(value, Read))


def spread(values: Values) -> list[Values]:
    """Return the values at each place of a call with `*values`."""
    for value in values:
        if isinstance(value, Several):
            return list(value.items)
        if isinstance(value, Inputs):
            count = 8 if value.stop is None else value.stop - value.start
            places: list[Values] = [frozenset({value.at(place)}) for place in range(count)]
            remaining = Inputs(value.start + count).at(None)
            return [*places, frozenset({remaining})] if value.stop is None else places
    return [values]


def class_of(value: Value) -> type | None:
    """Return the class whose members a value has."""
    match value:
        case Object(value=type() as kind):
            return kind
        case Object(value=Instance() as instance):
            return instance.kind
        case Object(value=value):
            is_plain = isinstance(value, FunctionType) or inspect.ismodule(value)
            return None if is_plain or inspect.ismethod(value) else type(value)
        case Node(kind=kind) | Super(kind=kind):
            return kind
    return None


def member(kind: type, name: str, instance: Values, is_class: bool = False) -> Values:
    """Return a member of a class, as an instance sees it, or (`is_class`) the class itself."""
    owner = next((place for place in kind.__mro__ if name in vars(place)), None)
    if owner is None:
        return NOTHING
    attribute = vars(owner)[name]
    if isinstance(attribute, property):
        return frozenset({Bound(attribute, instance, owner)})
    if isinstance(attribute, staticmethod):
        return values_of_object(attribute.__func__)
    if isinstance(attribute, classmethod):
        of_class = instance if is_class else frozenset({Object(kind)})
        return frozenset({Bound(attribute.__func__, of_class, owner)})
    if isinstance(attribute, FunctionType) and not is_class:
        return frozenset({Bound(attribute, instance, owner)})
    return values_of_object(attribute)
