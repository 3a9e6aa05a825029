# SPDX-License-Identifier: Apache-2.0
"""Checks a call against an entry of the table; a mismatch is a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ..ir.calls import Constant, Size, Unknown, Values, resolve, tensor_type
from ..shared.aliases import Attributes
from ..shared.constraints import Constraint, OneOf, as_value, listed, text
from .capability import Equal, Op, Rule, reference
from .reasons import Code, Reason


def check(
    entry: Op,
    tensors: Sequence[relax.Expr],
    attributes: Mapping[str, object],
    ty: relax.Type,
    values: Values,
    *,
    bind_constants: bool = True,
    symbols: bool = True,
) -> tuple[int, Reason | None]:
    """Check a call against one entry.

    How far the call matches, from 0 to 4, and a sentence; none if it matches entirely.
    """

    def no(stage: int, code: Code, why: str) -> tuple[int, Reason]:
        return stage, Reason(code, f"{entry.name}: {why}")

    if len(tensors) != len(entry.inputs):
        why = f"has {len(tensors)} tensor arguments; supported: {len(entry.inputs)}"
        return no(0, Code.ARGUMENTS, why)

    shapes: dict[str, tuple[int | Size, ...]] = {}
    dtypes: dict[str, str] = {}
    for spec, argument in zip(entry.inputs, tensors, strict=True):
        fields = [argument]
        if isinstance(argument, relax.Tuple):
            if not spec.is_tuple:
                return no(0, Code.ARGUMENTS, f"'{spec.name}' is a tuple; supported: a tensor")
            fields = list(argument.fields)
        elif spec.is_tuple:
            why = f"'{spec.name}' is not a tuple whose tensors are known"
            return no(0, Code.ARGUMENTS, why)
        for tensor in fields:
            try:
                dtype, shape = tensor_type(tensor.ty)
            except Unknown as unknown:
                return no(0, Code.UNKNOWN_TYPE, f"{unknown} '{spec.name}'")
            if spec.like and dtype != dtypes[spec.like]:
                allowed = f"{dtypes[spec.like]}, as '{spec.like}'"
                return no(0, Code.DTYPE, f"'{spec.name}' is {dtype}; supported: {allowed}")
            if spec.dtypes and dtype not in spec.dtypes:
                why = f"'{spec.name}' is {dtype}; supported: {', '.join(spec.dtypes)}"
                return no(0, Code.DTYPE, why)
            if spec.ranks and len(shape) not in spec.ranks:
                why = f"'{spec.name}' has rank {len(shape)}; supported: {listed(spec.ranks)}"
                return no(0, Code.RANK, why)
            unknown_size = next((size for size in shape if isinstance(size, Size)), None)
            if unknown_size is not None and not symbols:
                why = f"'{spec.name}' has the size {unknown_size}; supported: sizes that are fixed"
                return no(0, Code.SYMBOLIC_SIZE, why)
            if spec.constant and not isinstance(resolve(tensor, values), Constant):
                why = f"'{spec.name}' is not a constant; it must be one"
                return no(0, Code.NOT_CONSTANT, why)
            if spec.constant and not bind_constants:
                why = f"'{spec.name}' must be a constant; bind_constants is off"
                return no(0, Code.OPTION, why)
            if dtypes.setdefault(spec.name, dtype) != dtype:
                return no(0, Code.DTYPE, f"the tensors of '{spec.name}' differ in dtype")
            shapes[spec.name] = shape

    rank = len(shapes[entry.inputs[0].name]) if entry.inputs else 0
    for name, value in attributes.items():
        constraint = entry.attributes.get(name)
        if constraint is None:
            why = f"the attribute '{name}' is not in the table; its value is {text(value)}"
            return no(1, Code.ATTRIBUTE, why)
        if not _accepts(constraint, value, rank if name in ("axis", "axes") else None):
            code = Code.LAYOUT if name.endswith("layout") else Code.ATTRIBUTE
            return no(1, code, f"{name} is {text(value)}; supported: {constraint}")

    for rule in entry.rules:
        if rule.dtypes and dtypes[entry.inputs[0].name] not in rule.dtypes:
            continue
        try:
            left, right = (
                _operand(side, attributes, shapes, dtypes) for side in (rule.left, rule.right)
            )
            fixed = not isinstance(left, Size) and not isinstance(right, Size)
            same = isinstance(rule, Equal) and left == right
            if not fixed and not same:
                symbol = left if isinstance(left, Size) else right
                why = f"{_relation(rule)}, but the symbol in {symbol} has no fixed value"
                return no(2, Code.SYMBOLIC_SIZE, why)
            if not rule.holds(left, right):
                return no(2, Code.RELATION, f"{_relation(rule)}; {_values(rule, left, right)}")
        except (IndexError, TypeError):
            why = f"{_relation(rule)}, which is unknown for this call"
            return no(2, Code.RELATION, why)

    try:
        outputs = [tensor_type(ty) for ty in (getattr(ty, "fields", None) or [ty])]
    except Unknown as unknown:
        return no(3, Code.UNKNOWN_TYPE, f"{unknown} the result")
    for index, (dtype, shape) in enumerate(outputs):
        supported = entry.output_dtypes or tuple(dtypes[spec.name] for spec in entry.inputs[:1])
        if index == 0 and supported and dtype not in supported:
            why = f"the result is {dtype}; supported: {', '.join(supported)}"
            return no(3, Code.DTYPE, why)
        if not symbols and any(isinstance(size, Size) for size in shape):
            why = "the result has a size that is known only at the call"
            return no(3, Code.SYMBOLIC_SIZE, why)
    return 4, None


def misfits(entry: Op, attributes: Mapping[str, object]) -> int:
    """Return how many attributes of a call do not suit an entry, whatever its tensors are."""
    return sum(
        name not in entry.attributes or not _accepts(entry.attributes[name], value, None)
        for name, value in attributes.items()
        if name not in ("axis", "axes")
    )


def _accepts(constraint: Constraint, value: object, rank: int | None) -> bool:
    """Whether the value is supported; axes may count from either end."""
    if constraint.accepts(value):
        return True
    if rank is None:
        return False
    wrapped = _wrap(value, rank)
    if isinstance(constraint, OneOf):
        constraint = OneOf(*(_wrap(axis, rank) for axis in constraint.values))
    return constraint.accepts(wrapped)


def _wrap(axis: object, rank: int) -> object:
    if isinstance(axis, tuple):
        return tuple(_wrap(part, rank) for part in axis)
    return axis + rank if isinstance(axis, int) and axis < 0 else axis


def _operand(
    operand: object,
    attributes: Attributes,
    shapes: Mapping[str, tuple[int | Size, ...]],
    dtypes: Mapping[str, str],
) -> Any:
    parts = reference(operand)
    if parts is None:
        return as_value(operand)
    owner, what, index = parts
    if owner == "attr":
        value = attributes.get(what, "")
        return value if index is None else value[index]
    if what == "shape":
        return shapes[owner][index if index is not None else 0]
    return len(shapes[owner]) if what == "rank" else dtypes[owner]


def _values(rule: Rule, left: object, right: object) -> str:
    """State the values of a rule's operands, without those of literals, which the rule states."""
    sides = ((rule.left, left), (rule.right, right))
    values = [text(value) for side, value in sides if reference(side) is not None]
    return f"it is {values[0]}" if len(values) == 1 else f"they are {' and '.join(values)}"


def _relation(rule: Rule) -> str:
    """Return the rule as part of a sentence."""
    left, right = (
        side.removeprefix("attr.") if isinstance(side, str) else text(as_value(side))
        for side in (rule.left, rule.right)
    )
    types = f" for {', '.join(rule.dtypes)}" if rule.dtypes else ""
    return f"{left} must {rule.relation} {right}{types}"
