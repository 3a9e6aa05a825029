# SPDX-License-Identifier: Apache-2.0
"""Chains in a model: their patterns, matching, and construction.

`chain_grammar` defines chains. An op that replaces a chain may align its operands differently from
the chain's broadcasts. So an attribute for `axis` matches only the last axes, along which a gamma
of their size broadcasts, and both sides of a matmul must have equal batches: no grouped-query
attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import attrgetter, or_
from typing import Any, TypeVar

import tvm_ffi
from tvm import relax
from tvm.relax.dpl import DFPattern, is_const, is_op

from ..ir.calls import Constant, Unknown, Values, attributes_of, items_of, resolve, tensor_type
from ..ir.updates import emit_update
from ..shared.aliases import Attributes
from .capability import Op
from .chain_grammar import (
    PRECISION,
    Chain,
    Either,
    Input,
    Node,
    Number,
    Step,
    count_steps,
    read_all,
    same_value,
)

_Value = TypeVar("_Value")

# The relative tolerance for a constant, by the dtype in which it is stored.
_PRECISION = {"float16": 1e-3}


def call_pattern(op: str, *arguments: DFPattern) -> DFPattern:
    """Return a pattern for a call of a Relax op."""
    # The constraints are for `PatternContext`, and take most of the time to make a pattern.
    return _op_pattern(op)(*arguments, varg_default_wildcard=True, add_constraint=False)


_op_pattern = cache(is_op)


def pattern(node: Node, inputs: Mapping[str, DFPattern]) -> DFPattern:
    """Return a TVM pattern for a chain; it matches any constant."""
    made: dict[Node, DFPattern] = {}

    def make(node: Node) -> DFPattern:
        if isinstance(node, Input):
            return inputs[node.name]
        if isinstance(node, Number):
            return is_const()
        if node not in made:
            if isinstance(node, Either):
                made[node] = reduce(or_, map(make, node.options))
            else:
                made[node] = call_pattern(node.op, *map(make, node.arguments))
        return made[node]

    return make(node)


# ---- Matching -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A match of a chain in a model.

    `inputs`: its tensors, by name.
    `attributes`: its numbers and other values, by name.
    `calls`: its calls, the last one first, by the variables that they are bound to.
    """

    inputs: dict[str, relax.Expr] = field(default_factory=dict)
    attributes: dict[str, object] = field(default_factory=dict)
    calls: dict[relax.Var, relax.Call] = field(default_factory=dict)


def find(chain: Chain, var: relax.Var, values: Values) -> Iterator[Found]:
    """Find the matches of a chain that end in a variable."""
    yield from _find(chain.node, var, values, Found(attributes=dict(chain.fixed)))


def _find(node: Node, expr: relax.Expr, values: Values, found: Found) -> Iterator[Found]:
    if isinstance(node, Either):
        for option in node.options:
            yield from _find(option, expr, values, found)
    elif isinstance(node, Input):
        before = found.inputs.get(node.name)
        if before is None:
            yield replace(found, inputs={**found.inputs, node.name: expr})
        elif before.same_as(expr) or _are_same_reals(before, expr, values):
            yield found
    elif isinstance(node, Number):
        constant = resolve(expr, values)
        if isinstance(constant, Constant) and math.prod(constant.value.shape) == 1:
            precision = _PRECISION.get(str(constant.value.dtype), PRECISION)
            yield from _bind(node, constant.value.numpy().item(), found, precision)
    else:
        call = values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != node.op:
            return
        wanted = [replace(found, calls={**found.calls, expr: call})]
        if node.attributes:
            given = attributes_of(call, values)
            for name, value in node.attributes:
                # The result's type shows whether the dtype is that of an input.
                if isinstance(value, Input):
                    continue
                value = in_rank(value, call.args[0].ty.ndim)
                if name == "axes":
                    given[name] = tuple(transposed_axes(call)) or given[name]
                number = value if isinstance(value, Number) else None
                if name == "axis" and isinstance(value, int | tuple):
                    rank = call.args[0].ty.ndim
                    if _from_start(given[name], rank) != _from_start(value, rank):
                        return
                elif number is None:
                    wanted = [match for match in wanted if same_value(given.get(name), value)]
                elif name == "axis" and not _are_last(given[name], call.args[0].ty.ndim):
                    return
                else:
                    wanted = [
                        bound for match in wanted for bound in _bind(number, given.get(name), match)
                    ]
        for argument, operand in zip(node.arguments, items_of(call.args), strict=False):
            wanted = [more for match in wanted for more in _find(argument, operand, values, match)]
        if wanted and node.op == "relax.matmul" and not _has_equal_batches(call):
            return
        yield from wanted


def _are_same_reals(left: relax.Expr, right: relax.Expr, values: Values) -> bool:
    """Whether two values are dequantized alike, each for a reader of its own."""
    calls = [values.get(side) if isinstance(side, relax.Var) else None for side in (left, right)]
    if any(getattr(getattr(call, "op", None), "name", "") != "relax.dequantize" for call in calls):
        return False
    return bool(tvm_ffi.structural_equal(*calls))


def transposed_axes(value: relax.Expr) -> list[int]:
    """Return the axes of a transposition, from the start; none if the value is something else."""
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.permute_dims":
        return []
    rank = value.ty.ndim
    axes = value.attrs.axes
    return [int(axis) % rank for axis in (range(rank)[::-1] if axes is None else axes)]


def in_rank(value: object, rank: int) -> Any:
    """Expand `...` in axes to the axes that stay; return other values unchanged."""
    if not isinstance(value, tuple) or ... not in value:
        return value
    moved = [axis for axis in value if axis is not ...]
    return (*range(rank - len(moved)), *(axis + rank for axis in moved))


def _from_start(axes: object, rank: int) -> list[int]:
    axes = (axes,) if isinstance(axes, int) else axes
    return [axis % rank for axis in axes] if isinstance(axes, tuple) else []


def _has_equal_batches(product: relax.Call) -> bool:
    """Whether both operands have the same batch, without broadcasting."""
    try:
        left, right = (tensor_type(operand.ty)[1][:-2] for operand in product.args)
    except Unknown:
        return False
    return left == right


def _are_last(axes: object, rank: int) -> bool:
    """Whether axes are the last ones, in order."""
    if not isinstance(axes, tuple):
        return False
    return _from_start(axes, rank) == [*range(rank - len(axes), rank)]


def _bind(
    number: Number, given: object, found: Found, precision: float = PRECISION
) -> Iterator[Found]:
    """Generate the match in which a number has this value, if it is possible."""
    if not number.attribute:
        if same_value(given, number.factor, precision):
            yield found
        return
    if isinstance(given, int | float) and not isinstance(given, bool):
        if not math.isfinite(given) or (number.power < 0 and given == 0):
            return
        given = (given / number.factor) ** number.power
    before = found.attributes.get(number.attribute)
    if before is None:
        yield replace(found, attributes={**found.attributes, number.attribute: given})
    elif same_value(given, before, precision):
        yield found


def chains_of(op: Op) -> tuple[Chain, ...]:
    """Return the chains of an entry, the longest first."""
    return _chains(op.chains, tuple(tensor.name for tensor in op.inputs))


def wholes_of(
    chains: Mapping[str, Any], ends: Sequence[relax.Var], values: Values
) -> dict[relax.Var, str]:
    """Return the ops whose chains are in a model, for the variables of all their calls."""
    every = [(chain, op) for op, given in chains.items() for chain in _chains(given[1], given[0])]
    wholes: dict[relax.Var, str] = {}
    for chain, op in sorted(every, key=lambda pair: count_steps(pair[0].node)):
        for end in ends:
            for found in find(chain, end, values):
                wholes.update(dict.fromkeys(found.calls, op))
    return wholes


@cache
def _chains(texts: tuple[str | tuple[str, ...], ...], inputs: tuple[str, ...]) -> tuple[Chain, ...]:
    chains = [chain for text in texts for chain in read_all(text, inputs)]
    return tuple(sorted(chains, key=lambda chain: count_steps(chain.node), reverse=True))


_EMITTERS: dict[str, Callable[..., relax.Expr]] = {"update": emit_update}
"""What emits all calls of an entry but the last, and returns that."""


def call_entry(
    entry: Op,
    tensors: Sequence[relax.Expr],
    attributes: Attributes,
    emit: Callable[[relax.Expr], relax.Var],
) -> relax.Expr:
    """Emit a call of an entry, or the calls of its shortest chain with these attributes."""
    if entry.relax:
        return emit(function_of(entry.relax)(*tensors, **attributes))
    if entry.emitted_by:
        return emit(_EMITTERS[entry.emitted_by](emit, *tensors, **attributes))
    inputs = {operand.name: tensor for operand, tensor in zip(entry.inputs, tensors, strict=True)}
    chain = next(chain for chain in chains_of(entry)[::-1] if chain.suits(attributes))
    return build(chain.node, inputs, attributes, str(tensors[0].ty.dtype), emit)


def build(
    node: Node,
    inputs: Mapping[str, relax.Expr],
    attributes: Attributes,
    dtype: str,
    emit: Callable[[relax.Expr], relax.Var],
    pick: Callable[[Sequence[Node]], Node] = lambda options: options[0],
) -> relax.Expr:
    """Build a chain in a model."""

    def call(op: str, operands: Sequence[relax.Expr | float], given: Attributes) -> relax.Expr:
        # A number takes the type of the other operand.
        beside = [operand for operand in operands if isinstance(operand, relax.Expr)][-1]
        tensors = [
            operand
            if isinstance(operand, relax.Expr)
            else relax.const(operand, tensor_type(beside.ty)[0])
            for operand in operands
        ]
        return emit(function_of(op)(*tensors, **given))

    return spell(node, inputs, attributes, dtype, call, lambda expr: expr.ty.ndim, pick)


def spell(
    node: Node,
    inputs: Mapping[str, _Value],
    attributes: Attributes,
    dtype: str,
    call: Callable[[str, Sequence[_Value | float], Attributes], _Value],
    rank_of: Callable[[_Value], int],
    pick: Callable[[Sequence[Node]], Node],
    vary: Callable[[Any], Any] = lambda number: number,
) -> _Value:
    """Compute a chain in the spelling that `pick` chooses; equal parts of it are one value."""
    made: dict[Node, _Value] = {}

    def plain(value: object, rank: int) -> Any:
        if isinstance(value, Number):
            return vary(value.value_in(attributes))
        return dtype if isinstance(value, Input) else in_rank(value, rank)

    def make(node: Node) -> _Value:
        if isinstance(node, Input):
            return inputs[node.name]
        assert not isinstance(node, Number)
        if isinstance(node, Either) and node not in made:
            made[node] = make(pick(node.options))
        elif isinstance(node, Step) and node not in made:
            parts = [part if isinstance(part, Number) else make(part) for part in node.arguments]
            operands = [plain(part, 0) if isinstance(part, Number) else part for part in parts]
            rank = 0 if isinstance(parts[0], Number) else rank_of(parts[0])
            given = {name: plain(value, rank) for name, value in node.attributes}
            made[node] = call(node.op, operands, given)
        return made[node]

    return make(node)


def function_of(op: str) -> Callable[..., relax.Call]:
    """Return the TVM function that builds a call."""
    return attrgetter(op.removeprefix("relax."))(relax.op)  # type: ignore[no-any-return]
