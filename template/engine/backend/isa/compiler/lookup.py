# SPDX-License-Identifier: Apache-2.0
"""Finds functions of a byte: the instruction `lut` looks up their results, which are known."""

from __future__ import annotations

import numpy as np

from ..kinds import ELEMENT_BYTES, Choice
from ..machine import Machine
from ..operations import FUNCTIONS, NUMPY_TYPES, OPERATIONS, Array, converted, has_operation
from .loops import Cast, Const, Expr, Fun, Load, Lookup, Op, Pick, children, loads_of

_LEAST = {"i8": -128, "u8": 0}
_QUICK = 4
"""Steps whose elements have so many bytes in all take no longer than looking one up."""


def with_lookup(value: Expr, machine: Machine) -> Expr:
    """Return an expression as `Lookup`, if it is a function of one byte and that is quicker."""
    known = machine.instructions.get("lut")
    if known is None or _bytes_of(value) <= _QUICK:
        return value
    load, *others = dict.fromkeys(loads_of(value)) or [None]
    sources, types = known.fields["source"], known.fields["type"]
    if load is None or others or not isinstance(sources, Choice) or not isinstance(types, Choice):
        return value
    if load.type not in sources.names or value.type not in types.names:
        return value
    numbers = np.arange(256) + _LEAST[load.type]
    with np.errstate(all="ignore"):
        results = _computed(value, load, numbers.astype(NUMPY_TYPES[load.type]))
    return value if results is None else Lookup(load, results.tobytes(), value.type)


def _bytes_of(value: Expr) -> int:
    """Return how many bytes the elements of all steps have."""
    if isinstance(value, Const | Load):
        return 0
    parts = children(value)
    size = max(ELEMENT_BYTES[part.type] for part in (value, *parts))
    return size + sum(map(_bytes_of, parts))


def _computed(value: Expr, load: Load, numbers: Array) -> Array | None:
    """Return all results of an expression; None if vectors would not compute it."""
    match value:
        case Load():
            return numbers
        case Const(value=number, type=kind):
            return np.full(numbers.shape, number, NUMPY_TYPES[kind])
    parts = [_computed(part, load, numbers) for part in children(value)]
    given = [part for part in parts if part is not None]
    if len(given) < len(parts) or "f16" in (value.type, *(it.type for it in children(value))):
        return None
    match value:
        case Op(op=op, a=a) if has_operation(op, a.type):
            return np.asarray(OPERATIONS[op](*given))
        case Fun(fun=fun, type="f32"):
            return np.asarray(FUNCTIONS[fun](*given))
        case Cast(type=kind):
            return converted(given[0], kind)
        case Pick():
            return np.where(given[0] != 0, given[1], given[2])
    return None
