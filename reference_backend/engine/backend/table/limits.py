# SPDX-License-Identifier: Apache-2.0
"""Narrows an op to a chip: the intersection of the engine's entry and the vendor's limits.

An update of the engine never widens a vendor's limits, since everything here narrows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..shared.constraints import Anything, Constraint, OneOf, Range, listed
from ..shared.messages import did_you_mean
from .capability import Fuses, Input, Op, Quantized, Rule
from .chip import Chip, Limits, Takes

Item = TypeVar("Item", str, int)

WHERE = "vendor/capabilities.py"
"""The file of the chip's limits, for messages."""


CONVERSIONS = ("quantize", "dequantize")
"""The entries that composites of quantized tensors begin and end with."""


class Excluded(Exception):
    """The chip-wide limits exclude an op; the message says why."""


def narrow(op: Op, chip: Chip, limits: Limits) -> Op:
    """Narrow an op to a chip."""
    specs = {spec.name: spec for spec in op.inputs}
    for name in limits.inputs:
        if name not in specs:
            raise ValueError(_unknown(op, "input", name, specs))
    for name in limits.attributes:
        if name not in op.attributes:
            raise ValueError(_unknown(op, "attribute", name, op.attributes))
    attributes = {
        name: _both(op, name, constraint, limits.attributes[name])
        if name in limits.attributes
        else constraint
        for name, constraint in op.attributes.items()
    }
    quantized = _quantized(op, chip, limits)
    activation = op.activation and limits.activation
    # Between dequantize and quantize, real numbers stand for integers of the chip.
    is_inside = quantized is not None or activation or op.name in CONVERSIONS
    dtypes = chip.dtypes_inside if is_inside else chip.dtypes
    inputs = tuple(
        _input(op, spec, limits.inputs.get(spec.name, Takes()), dtypes, chip) for spec in op.inputs
    )
    outputs = _common(op.output_dtypes, limits.output_dtypes)
    if outputs is None:
        raise ValueError(_nothing(op, "output_dtypes", limits.output_dtypes, op.output_dtypes))
    on_chip = _common(outputs, dtypes if outputs else ())
    if on_chip is None:
        raise Excluded(_lacks(op, "the result", "element types", outputs, dtypes))
    return replace(
        op,
        inputs=inputs,
        attributes=attributes,
        rules=(*op.rules, *(rule for rule in limits.rules if rule not in op.rules)),
        output_dtypes=on_chip,
        fuses=_fuses(op, limits.fuses),
        activation=activation,
        quantized=quantized,
        tolerance=op.tolerance if limits.tolerance is None else limits.tolerance,
    )


def _input(op: Op, spec: Input, takes: Takes, dtypes: tuple[str, ...], chip: Chip) -> Input:
    left = _left(op, spec, "dtypes", "element types", spec.dtypes, takes.dtypes, dtypes)
    ranks = _left(op, spec, "ranks", "ranks", spec.ranks, takes.ranks, chip.ranks)
    constant = spec.constant or takes.constant or (spec.weight and chip.constant_weights)
    return replace(spec, dtypes=left, ranks=ranks, constant=constant)


def _left(
    op: Op,
    spec: Input,
    what: str,
    words: str,
    own: Collection[Item],
    limit: Collection[Item],
    all_ops: Collection[Item],
) -> tuple[Item, ...]:
    left = _common(own, limit)
    if left is None:
        raise ValueError(_nothing(op, f"the {what} of '{spec.name}'", limit, own))
    if spec.like and what == "dtypes":
        return left  # An input like another one has its dtypes, which are already narrowed.
    on_chip = _common(left, all_ops)
    if on_chip is None:
        raise Excluded(_lacks(op, f"'{spec.name}'", words, left, all_ops))
    return on_chip


def _common(own: Collection[Item], limit: Collection[Item]) -> tuple[Item, ...] | None:
    """Return the intersection, where empty means anything; None if it is empty."""
    if not own or not limit:
        return tuple(own or limit)
    return tuple(value for value in own if value in limit) or None


def _both(op: Op, name: str, own: Constraint, limit: Constraint) -> Constraint:
    """Return the intersection of two constraints of an attribute."""
    if isinstance(own, Anything) or isinstance(limit, Anything):
        return limit if isinstance(own, Anything) else own
    if isinstance(own, Range) and isinstance(limit, Range):
        low = [bound for bound in (own.min, limit.min) if bound is not None]
        high = [bound for bound in (own.max, limit.max) if bound is not None]
        exclude = tuple(dict.fromkeys((*own.exclude, *limit.exclude)))
        if low and high and max(low) > min(high):
            raise ValueError(_nothing(op, name, [str(limit)], [str(own)]))
        return Range(max(low, default=None), min(high, default=None), exclude)
    pairs = ((own, limit), (limit, own))
    values = [
        value
        for one, other in pairs
        if isinstance(one, OneOf)
        for value in one.values
        if other.accepts(value)
    ]
    if not values:
        raise ValueError(_nothing(op, name, [str(limit)], [str(own)]))
    return OneOf(*dict.fromkeys(values))


def _fuses(op: Op, limit: Fuses | None) -> Fuses | None:
    own = op.fuses
    if own is None or limit is None:
        return own
    if own.bias is not None and limit.bias is not None and own.bias != limit.bias:
        raise ValueError(
            f"{WHERE}: {op.name}: the bias is along axis {own.bias}, not {limit.bias}."
        )
    activations = [fuses.activations for fuses in (own, limit) if fuses.activations is not None]
    return Fuses(
        scale=own.scale and limit.scale,
        bias=own.bias if limit.bias is not None else None,
        residual=own.residual and limit.residual,
        activations=tuple(
            name for name in activations[0] if all(name in other for other in activations)
        )
        if activations
        else None,
    )


def _quantized(op: Op, chip: Chip, limits: Limits) -> Quantized | None:
    if op.quantized is None or not limits.quantized:
        return None
    left = _common(op.quantized.dtypes, limits.quantized)
    if left is None:
        raise ValueError(_nothing(op, "quantized", limits.quantized, op.quantized.dtypes))
    dtypes = _common(left, chip.dtypes)
    fuses = None if limits.quantized_fuses is None else _fuses(op, limits.quantized_fuses)
    if not dtypes:
        return None
    reals = chip.has_reals
    to_real = limits.to_real and reals
    return replace(op.quantized, dtypes=dtypes, fuses=fuses, to_real=to_real, reals=reals)


def _unknown(op: Op, what: str, name: str, names: Iterable[str]) -> str:
    names = list(names)
    has = f"it has {', '.join(names)}" if names else "it has none"
    return f"{WHERE}: {op.name} has no {what} '{name}'{did_you_mean(name, names)}; {has}."


def _nothing(op: Op, what: str, limit: Iterable[object], own: Iterable[object]) -> str:
    return (
        f"{WHERE}: {op.name}: the limits leave nothing of {what}: they say {listed(limit)}, and "
        f"the engine can {listed(own)}. To leave the op to the host, write '{op.name}': None."
    )


def _lacks(op: Op, what: str, words: str, own: Iterable[object], has: Iterable[object]) -> str:
    return (
        f"{op.name}: {what} can have the {words} {listed(own)}, and the chip has {listed(has)} "
        "(a limit of this chip)"
    )


def text_of(op: Op) -> str:
    """Return the line of `vendor/capabilities.py` that records the limits of an op."""
    fields: dict[str, str] = {}
    for spec in op.inputs:
        given = [repr(spec.dtypes)] if spec.dtypes else []
        given += [f"{'' if given else 'ranks='}{_ranks(tuple(spec.ranks))}"] if spec.ranks else []
        fields[spec.name] = f"Takes({', '.join(given)})"
    for name, constraint in op.attributes.items():
        if not isinstance(constraint, Anything):
            fields[name] = _constraint(constraint)
    if op.rules:
        fields["rules"] = f"({' '.join(f'{_rule(rule)},' for rule in op.rules)})"
    if op.output_dtypes:
        fields["output_dtypes"] = repr(op.output_dtypes)
    if op.fuses is not None:
        fields["fuses"] = _call("Fuses", op.fuses, Fuses())
    if op.quantized is not None:
        fields["quantized"] = repr(op.quantized.dtypes)
    body = ", ".join(f"{name}={value}" for name, value in fields.items())
    line = f"    {op.name!r}: Limits({body}),".replace("'", '"')
    if len(line) <= 100:
        return line
    lines = (f"        {name}={value},".replace("'", '"') for name, value in fields.items())
    return "\n".join([f'    "{op.name}": Limits(', *lines, "    ),"])


def _constraint(constraint: Constraint) -> str:
    if isinstance(constraint, OneOf):
        return f"OneOf({', '.join(map(repr, constraint.values))})"
    return _call("Range", constraint, Range()) if isinstance(constraint, Range) else "Anything()"


def _rule(rule: Rule) -> str:
    dtypes = f", {rule.dtypes!r}" if rule.dtypes else ""
    return f"{type(rule).__name__}({rule.left!r}, {rule.right!r}{dtypes})"


def _ranks(ranks: tuple[int, ...]) -> str:
    whole = range(ranks[0], ranks[-1] + 1)
    return repr(whole) if len(ranks) > 1 and ranks == tuple(whole) else repr(ranks)


def _call(name: str, value: Fuses | Range, default: Fuses | Range) -> str:
    """Return the call that constructs this, without default arguments."""
    fields: Mapping[str, object] = vars(value)
    given = [f"{key}={value!r}" for key, value in fields.items() if value != vars(default)[key]]
    return f"{name}({', '.join(given)})"
