# SPDX-License-Identifier: Apache-2.0
"""Constraints: the supported values of one attribute, or of one option."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, init=False)
class OneOf:
    """The attribute, or each element of a list, is one of these values.

    A list among the values stands for the whole attribute: `OneOf([2, 3])` is exactly the axes 2
    and 3. An absent value and an unset dtype are both written `""`.
    """

    values: tuple[object, ...]

    def __init__(self, *values: object) -> None:
        """Take the values that are supported."""
        object.__setattr__(self, "values", tuple(as_value(value) for value in values))

    def accepts(self, value: object) -> bool:
        """Whether the attribute may have this value."""
        if value in self.values:
            return True
        return isinstance(value, tuple) and all(item in self.values for item in value)

    def __str__(self) -> str:
        """Return what is supported."""
        return listed(self.values)


@dataclass(frozen=True)
class Range:
    """The attribute, or each element of a list, is a number in this range.

    Parameters
    ----------
    min, max
        The first and the last supported value; none: no limit.
    exclude
        Unsupported values in the range.
    """

    min: float | None = None
    max: float | None = None
    exclude: tuple[float, ...] = ()

    def accepts(self, value: object) -> bool:
        """Whether the attribute may have this value."""
        if isinstance(value, tuple):
            return all(self.accepts(item) for item in value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (
            (self.min is None or value >= self.min)
            and (self.max is None or value <= self.max)
            and value not in self.exclude
        )

    def __str__(self) -> str:
        """Return what is supported."""
        if self.min is None:
            text = "any number" if self.max is None else f"at most {self.max}"
        else:
            text = f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"
        return text + (f" without {listed(self.exclude)}" if self.exclude else "")


@dataclass(frozen=True, init=False)
class InOrder:
    """The option is one of these names, or several with commas between them, each once."""

    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        """Take the names that are supported."""
        object.__setattr__(self, "values", values)

    def accepts(self, value: object) -> bool:
        """Whether the option may have this value."""
        items = str(value).split(",")
        return all(item in self.values for item in items) and len(set(items)) == len(items)

    def __str__(self) -> str:
        """Return what is supported."""
        if len(self.values) == 1:
            return listed(self.values)
        return f"{listed(self.values)}, or several in order, as '{','.join(self.values)}'"


@dataclass(frozen=True)
class Anything:
    """The attribute may have any value."""

    def accepts(self, value: object) -> bool:
        """Whether the attribute may have this value."""
        return True

    def __str__(self) -> str:
        """Return what is supported."""
        return "anything"


Constraint = OneOf | Range | Anything


def anything(*names: str) -> dict[str, Constraint]:
    """Return attributes that may have any value.

    Parameters
    ----------
    *names
        Their names.

    Returns
    -------
    attributes
        What each may be.
    """
    return dict.fromkeys(names, Anything())


def only(**values: object) -> dict[str, Constraint]:
    """Return attributes that have one value each.

    Parameters
    ----------
    **values
        Their values, by name.

    Returns
    -------
    attributes
        What each may be.
    """
    return {name: OneOf(value) for name, value in values.items()}


def listed(values: Iterable[object]) -> str:
    """Format a list of values for a sentence."""
    return ", ".join(text(value) for value in values)


def text(value: object) -> str:
    """Format a value for a sentence."""
    if value == "":
        return "not set"
    if isinstance(value, tuple):
        return "[" + listed(value) + "]"
    return str(value)


def as_value(value: object) -> Any:
    """Return a table value as it reads from the IR: None is "", and a list is a tuple."""
    if value is None:
        return ""
    return tuple(map(as_value, value)) if isinstance(value, (list, tuple)) else value
