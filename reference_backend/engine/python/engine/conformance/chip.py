# SPDX-License-Identifier: Apache-2.0
"""What the table says of the whole chip, and the cases of the catalogue as this chip takes them.

A case is written for a chip that can do everything. Inputs that must be constants are bound as
constants, and a symbolic size becomes a number where the chip takes no symbol there: such a case
still tells whether the values are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..patterns import TABLE

_CHIP = getattr(TABLE, "chip", None)

SYMBOLS: bool = getattr(_CHIP, "symbols", True)
"""Whether sizes may be known only at the call."""
HAS_NAN: bool = getattr(_CHIP, "nan", "kept") == "kept"
"""Whether anything is promised about results that NaN is part of."""

SIZES = (1, 3)
"""What the symbol "n" is in turn, where a shape has it."""


def fitted(op: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a case as this chip takes it.

    Parameters
    ----------
    op
        The name of the table's entry.
    entry
        The case, as the catalogue has it.

    Returns
    -------
    entry
        The same, or one in which the symbol is a number, which its name says.
    """
    inputs, size = entry["inputs"], SIZES[-1]
    if not has_symbol(inputs) or (SYMBOLS and not _has_symbolic_constant(op, inputs)):
        return entry
    name = f"{entry['name']}, n={size}"
    return {**entry, **fixed(entry, size), "name": name}


def _has_symbolic_constant(op: str, inputs: Mapping[str, Any]) -> bool:
    known = TABLE.get(op)
    items = known.inputs if known else ()
    return any(item.constant and has_symbol(inputs[item.name]) for item in items)


def fixed(entry: Mapping[str, Any], size: int) -> Mapping[str, Any]:
    """Return the inputs and attributes of a case with a number in the place of the symbol.

    Parameters
    ----------
    entry
        The case.
    size
        The number.

    Returns
    -------
    fields
        Those two of the case.
    """
    return {name: _fixed(entry.get(name, {}), size) for name in ("inputs", "attributes")}


def _fixed(value: Any, size: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _fixed(item, size) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fixed(item, size) for item in value]
    return size if isinstance(value, str) and value == "n" else value


def has_symbol(value: Any) -> bool:
    """Whether "n" is somewhere in a shape, or in what holds shapes.

    Parameters
    ----------
    value
        Inputs, as a case has them.

    Returns
    -------
    has
        Whether a size is a symbol.
    """
    if isinstance(value, Mapping):
        return any(map(has_symbol, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_symbol, value))
    return isinstance(value, str) and value == "n"
