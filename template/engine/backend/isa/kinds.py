# SPDX-License-Identifier: Apache-2.0
"""The kinds of fields that instructions have, and their values."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = {
    **{"f32": 4, "f16": 2, "f64": 8},
    **{"i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8, "bool": 1},
}
"""The element types that a choice may name, and their bytes."""


@dataclass(frozen=True)
class Number:
    """An integer of some bits, from `least` to `most`; by default all that the bits hold."""

    bits: int
    signed: bool = False
    least: int | None = None
    most: int | None = None

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest number."""
        half = 1 << max(self.bits - 1, 0)
        low, high = (-half, half - 1) if self.signed else (0, 2 * half - 1)
        return low if self.least is None else self.least, high if self.most is None else self.most


@dataclass(frozen=True, init=False)
class Choice:
    """One of some names; element types have a size."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    @property
    def bits(self) -> int:
        """The width."""
        return max(1, (len(self.names) - 1).bit_length())

    @property
    def are_types(self) -> bool:
        """Whether they are element types."""
        return all(name in ELEMENT_BYTES for name in self.names)


@dataclass(frozen=True)
class Float:
    """A number of float32."""

    bits: int = 32


@dataclass(frozen=True)
class Register:
    """The number of a register, of which each has 64 bits; register 0 is always 0."""


@dataclass(frozen=True, init=False)
class Address:
    """A place in one of some memories: a register and an offset in bytes, of 32 bits."""

    memories: tuple[str, ...]

    def __init__(self, *memories: str) -> None:
        object.__setattr__(self, "memories", memories)


Field = Number | Choice | Float | Register | Address


@dataclass(frozen=True)
class Place:
    """The value of an `Address`."""

    register: int
    offset: int = 0


FieldValue = int | float | str | Place
"""The value of a number or register, a float, the name of a choice, the value of an address."""
