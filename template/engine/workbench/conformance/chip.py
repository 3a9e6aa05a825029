# SPDX-License-Identifier: Apache-2.0
"""Fits the catalogue's cases to the limits of the chip.

A case is written for a chip that can do everything. Inputs that must be constants are bound as
constants, and a symbolic size becomes a number if the chip takes no symbols; such a case still
checks the values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tvm
from tvm import relax

from ...backend.api import TABLE, JsonObject, chains_of

_CHIP = getattr(TABLE, "chip", None)

SYMBOLS: bool = getattr(_CHIP, "symbols", True)
"""Whether sizes may be symbolic."""
HAS_NAN: bool = getattr(_CHIP, "nan", "kept") == "kept"
"""Whether results that depend on NaN are defined."""

ROUNDS_EVENLY: bool = getattr(_CHIP, "rounds", "half_even") == "half_even"
"""Whether its `quantize` rounds halves as frameworks and TVM's own kernels do."""

QUANTIZED = ("int8", "uint8", "int16")
"""The element types of quantized tensors."""

SIZES = (1, 3)
"""The values of the symbol "n", tried in turn."""


def host_agrees(op: str) -> bool:
    """Whether TVM's own kernel of an op rounds as the chip does."""
    return ROUNDS_EVENLY or op != "quantize"


def steps_beside_host(mod: tvm.IRModule) -> int:
    """Return how many steps a model's integers may be from those of a framework or of TVM.

    Each `quantize` may be off if the chip rounds halves in another way, or has no exact rule; as
    with real numbers, errors of several ops are assumed to add up.
    """
    off = max(TABLE.chip.requantize.steps, not ROUNDS_EVENLY)
    calls: list[relax.Expr] = []
    for function in mod.functions.values():
        if off and isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, calls.append)
    names = [getattr(getattr(call, "op", None), "name", "") for call in calls]
    return off * names.count("relax.quantize")


def fitted(op: str, entry: JsonObject) -> JsonObject:
    """Fit a case to this chip."""
    inputs, size = entry["inputs"], SIZES[-1]
    if not has_symbol(inputs) or (SYMBOLS and not _has_symbolic_constant(op, inputs)):
        return entry
    name = f"{entry['name']}, n={size}"
    return {**entry, **fixed(entry, size), "name": name}


def _has_symbolic_constant(op: str, inputs: Mapping[str, object]) -> bool:
    entry = TABLE.get(op)
    items = entry.inputs if entry else ()
    return any(spec.constant and has_symbol(inputs[spec.name]) for spec in items)


def fixed(entry: Mapping[str, object], size: int) -> JsonObject:
    """Replace the symbol by a number in the inputs and attributes of a case."""
    return {name: _fixed(entry.get(name, {}), size) for name in ("inputs", "attributes")}


def _fixed(value: object, size: int) -> object:
    if isinstance(value, Mapping):
        return {key: _fixed(item, size) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fixed(part, size) for part in value]
    return size if isinstance(value, str) and value == "n" else value


def has_symbol(value: object) -> bool:
    """Whether the symbol "n" is in a shape, or in a container of shapes."""
    if isinstance(value, Mapping):
        return any(map(has_symbol, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_symbol, value))
    return isinstance(value, str) and value == "n"


def lost_by_folding(op: str, constants: Collection[str]) -> set[str]:
    """Return the Relax ops that stay on the host where folding computes a part of a chain."""
    entry = TABLE.get(op)
    if entry is None or entry.relax:
        return set()
    if entry.emitted_by:
        left = {"relax.where", "relax.take"} if "positions" in constants else set()
    else:
        left = chains_of(entry)[0].ops_left_by_folding(constants)
    return {name for name in left if not TABLE.entries_of(name)}
