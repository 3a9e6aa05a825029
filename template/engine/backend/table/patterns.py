# SPDX-License-Identifier: Apache-2.0
"""The composites of this backend, derived from its table.

Each op of the table is a composite on its own, and one with what it `fuses`: a scale, bias,
residual and activation after it, a transposed operand before it. There is one pattern per last op;
all parts before it are optional, which keeps the number of patterns small. They are ordinary TVM
patterns registered as `<backend>.<label>`, so TVM's own `FuseOpsByPattern` works with them too.
Labels are for people: the codegen reads the body of a composite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any

from tvm.relax.backend.pattern_registry import register_patterns
from tvm.relax.dpl import DFPattern, is_const, wildcard

from ..shared.backend import BACKEND, OPS, vendor
from .capability import Fuses, Op
from .chain_grammar import count_steps
from .chains import call_pattern, chains_of
from .chains import pattern as pattern_of
from .compositions import Composition, Kind
from .matches import (
    quantized_activations,
    refusal_of,
    refusal_of_chain_in,
    refusal_of_edges,
    refusal_of_ends,
)
from .table import Table

TABLE = Table(
    OPS,
    vendor("capabilities", "DECLINED_BY_SDK", None),
    chip=vendor("capabilities", "CHIP", None),
    limits=vendor("capabilities", "LIMITS", None),
    extra_ops=vendor("capabilities", "EXTRA_OPS", ()),
)
"""The ops of `patterns.py`, within the limits of `vendor/capabilities.py`."""

Pattern = tuple[str, DFPattern, dict[str, DFPattern], Callable[[Any], bool]]
"""Name, pattern, the parts that its check reads, and the check, as TVM takes them."""

_registered = False


def register() -> None:
    """Register the patterns with TVM, once in a process."""
    global _registered
    if not _registered:
        # As tuples: TVM releases those before the interpreter ends.
        register_patterns(make_patterns(TABLE))
        _registered = True


def make_patterns(table: Table) -> list[Pattern]:
    """Derive all patterns from a table."""
    composites = [composite for op in table.ops for composite in _composites(op, table)]
    composites += [composite for op in table.ops for composite in _chains(op, table)]
    composites += [composite for op in table.ops for composite in _weight_only(op, table)]
    if table.computes_quantized:
        composites += [composite for op in table.ops for composite in _quantized(op, table)]
        composites += [composite for op in table.ops for composite in _quantized_chains(op, table)]
    composites.sort(key=lambda composite: composite[0])
    return [pattern for _, pattern in composites]


Parts = dict[str, DFPattern]
Rank = tuple[int, ...]


# The rank of a chain without an op before it.
_CHAIN = 100
# Composites of weights that stay integers hold those of real numbers, as those of quantized tensors
# hold both.
_WEIGHT_ONLY = 200
_QUANTIZED = 300


def _chains(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composite of an entry that has only chains."""
    chains = chains_of(op) if not op.relax else ()
    inputs = {tensor.name: wildcard() for tensor in op.inputs}
    for chain in chains:
        last = pattern_of(chain.node, inputs)
        rank = (_CHAIN, count_steps(chain.node))
        yield rank, _pattern(table, Composition(op), last, {"chain": last})


def _composites(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites around one op; of two that match, the one of higher rank wins."""
    if not op.relax:
        return
    for count in range(len(op.absorbs_transpose) + 1):
        for absorbed in combinations(op.absorbs_transpose, count):
            arguments = [
                call_pattern("relax.permute_dims", wildcard()) if index in absorbed else wildcard()
                for index in range(len(op.inputs))
            ]
            anchor = call_pattern(op.relax, *arguments)
            parts = {"anchor": anchor}
            parts |= {f"transpose{index}": arguments[index] for index in absorbed}
            composition = Composition(op, absorbed=absorbed)
            for rank, pattern in _around(composition, table, anchor, parts):
                yield (*rank, count), pattern


def _around(
    alone: Composition, table: Table, anchor: DFPattern, parts: Parts
) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of an op with all that it fuses."""
    yield (0,), _pattern(table, alone, anchor, parts)
    for rank, (roles, pattern, inside) in enumerate(_tails(alone.op, table, anchor, parts), 1):
        yield (rank,), _pattern(table, replace(alone, roles=roles), pattern, inside)
    for size, entry, pattern, inside in _chain_tails(alone.op, table, anchor, parts):
        yield (_CHAIN + 1, size), _pattern(table, replace(alone, last=entry), pattern, inside)


def _weight_only(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of real numbers and of weights that stay integers."""
    if not op.takes_integer_weights or not table.takes_integer_weights(op.relax):
        return
    weight = _dequantized()
    # Blocks are rows of a matrix, which are put back into the shape of the weight.
    blocks = call_pattern("relax.reshape", weight)
    turned = call_pattern("relax.permute_dims", blocks | weight)
    anchor = call_pattern(op.relax, wildcard(), turned | blocks | weight)
    parts = {"anchor": anchor, "weight": weight, "transpose1": turned}
    for rank, pattern in _around(Composition(op, Kind.WEIGHT_ONLY), table, anchor, parts):
        yield (_WEIGHT_ONLY, *rank), pattern


def _quantized(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of an op that compute with quantized tensors."""
    if op.quantized is None or not op.relax:
        return
    op, matrix = op.with_integers, op.is_product
    requantize = op.relax == "relax.quantize"
    # Scales, and the factors of norms, are real.
    data = [index for index, operand in enumerate(op.inputs) if matrix or not operand.weight]
    places = range(len(op.inputs))
    # Products take only integers; element-wise ops may read real numbers as well.
    for count in [len(data)] if matrix else [index + 1 for index, _ in enumerate(data)]:
        for chosen in combinations(data, count):
            arguments = [_dequantized() if index in chosen else wildcard() for index in places]
            anchor = call_pattern(op.relax, *arguments)
            parts = {"anchor": anchor}
            parts |= {f"dequantize{index}": arguments[index] for index in chosen}
            if requantize:
                inside = {**parts, "quantize": anchor}
                composite = _pattern(table, Composition(op, Kind.RESCALES), anchor, inside)
                yield (_QUANTIZED, count), composite
                continue
            tails = [((), anchor, parts), *_tails(op, table, anchor, parts, _dequantized())]
            ends = dict.fromkeys(entry.relax for entry in quantized_activations(table))
            if ends and not matrix:
                last = reduce(or_, (call_pattern(name, anchor) for name in ends))
                tails.append((("activation",), last, {**parts, "activation": last}))
            for rank, (roles, last, inside) in enumerate(tails):
                composition = Composition(op, Kind.INTEGERS, roles=roles)
                if matrix:
                    to_real = _pattern(table, replace(composition, kind=Kind.TO_REAL), last, inside)
                    yield (_QUANTIZED, count, rank, 0), to_real
                composite = _pattern(table, composition, *_with_quantize(last, inside))
                yield (_QUANTIZED, count, rank, 1), composite
            for size, entry, last, inside in _chain_tails(op, table, anchor, parts, _dequantized()):
                composition = Composition(op, Kind.INTEGERS, last=entry)
                composite = _pattern(table, composition, *_with_quantize(last, inside))
                yield (_QUANTIZED, count, _CHAIN, size), composite


def _quantized_chains(op: Op, table: Table) -> Iterator[tuple[Rank, Pattern]]:
    """Generate the composites of an entry that has only chains, which read one quantized tensor."""
    if op.quantized is None or op.relax or len(op.inputs) != 1:
        return
    for chain in chains_of(op):
        source = _Dequantized()
        last = pattern_of(chain.node, source)
        parts = {f"dequantize{index}": dequantize for index, dequantize in enumerate(source.made)}
        quantize, parts = _with_quantize(last, {"chain": last, **parts})
        rank = (_QUANTIZED, _CHAIN, count_steps(chain.node))
        yield rank, _pattern(table, Composition(op, Kind.INTEGERS), quantize, parts)


def _with_quantize(last: DFPattern, parts: Parts) -> tuple[DFPattern, Parts]:
    """Return a pattern with a quantize behind it."""
    quantize = call_pattern("relax.quantize", last, wildcard(), wildcard())
    return quantize, {**parts, "quantize": quantize}


class _Dequantized(Mapping[str, DFPattern]):
    """The input of a chain: each op that reads it has a dequantize of its own."""

    def __init__(self) -> None:
        self._data = wildcard()
        self.made: list[DFPattern] = []

    def __getitem__(self, name: str) -> DFPattern:
        self.made.append(call_pattern("relax.dequantize", self._data, wildcard(), wildcard()))
        return self.made[-1]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _dequantized() -> DFPattern:
    return call_pattern("relax.dequantize", wildcard(), wildcard(), wildcard())


def _tails(
    op: Op,
    table: Table,
    pattern: DFPattern,
    parts: Parts,
    residual: DFPattern | None = None,
) -> Iterator[tuple[tuple[str, ...], DFPattern, Parts]]:
    """Generate the patterns of an op with an epilogue, one for each last op, by their roles."""
    for role, last, inside in _sums(op, pattern, parts, residual):
        yield (role,), last, inside
    relax_ops = dict.fromkeys(entry.relax for entry in table.activations_of(op) if entry.relax)
    for roles, before, inside in _ends(op, pattern, parts, residual) if relax_ops else []:
        last = reduce(or_, (call_pattern(name, before) for name in relax_ops))
        yield (*roles, "activation"), last, {**inside, "activation": last}


def _chain_tails(
    op: Op, table: Table, pattern: DFPattern, parts: Parts, residual: DFPattern | None = None
) -> Iterator[tuple[int, Op, DFPattern, Parts]]:
    """Generate the patterns that end in a chain, one each: a chain is not optional."""
    for entry in table.activations_of(op):
        for chain in chains_of(entry) if not entry.relax else ():
            for _, before, inside in _ends(op, pattern, parts, residual):
                last = pattern_of(chain.node, {entry.inputs[0].name: before})
                yield count_steps(chain.node), entry, last, {**inside, "chain": last}


def _sums(
    op: Op, pattern: DFPattern, parts: Parts, residual: DFPattern | None = None
) -> Iterator[tuple[str, DFPattern, Parts]]:
    """Generate the sums after an op; a residual may also be what `residual` matches."""
    fuses = op.fuses or Fuses()
    for role, wanted in (
        ("scale", fuses.scale),
        ("bias", fuses.bias is not None),
        ("residual", fuses.residual),
    ):
        if wanted:
            operand = is_const() if role == "scale" else wildcard()
            if role == "residual" and residual is not None:
                operand = residual | operand
            last = _scaled(pattern, operand) if role == "scale" else _either(pattern, operand)
            parts = {**parts, role: operand, f"{role} call": last}
            yield role, last, parts
            pattern = last | pattern


def _ends(
    op: Op, pattern: DFPattern, parts: Parts, operand: DFPattern | None = None
) -> list[tuple[tuple[str, ...], DFPattern, Parts]]:
    """Return the pattern of everything before an activation.

    An add could be the bias or the residual, so the residual is not just optional.
    """
    before, inside = pattern, parts
    residual = []
    for role, last, more in _sums(op, pattern, parts, operand):
        if role == "residual":
            residual = [((role,), last, more)]
        else:
            before, inside = last | before, more
    return [((), before, inside), *residual]


def _either(pattern: DFPattern, operand: DFPattern, op: str = "relax.add") -> DFPattern:
    return call_pattern(op, pattern, operand) | call_pattern(op, operand, pattern)


def _scaled(pattern: DFPattern, factor: DFPattern) -> DFPattern:
    return _either(pattern, factor, "relax.multiply") | call_pattern(
        "relax.divide", pattern, factor
    )


def _pattern(table: Table, composition: Composition, pattern: DFPattern, parts: Parts) -> Pattern:
    op = composition.op
    chain = (composition.last or op) if "chain" in parts else None

    def check(match: object) -> bool:
        reason = refusal_of_chain_in(table, chain, match) if chain is not None else None
        if reason is None and op is not chain:
            reason = refusal_of(table, op, match)
        elif reason is None and "quantize" in parts:
            reason = refusal_of_edges(op, match)
        if reason is None and not hasattr(match, "values"):
            # The partitioner asks by itself, since such a product may compute with real numbers.
            reason = composition.refusal or refusal_of_ends(table, op, match)
        if reason is None:
            return True
        # The partitioner collects reasons; TVM's own pass ignores them.
        reasons = getattr(match, "reasons", None)
        if reason and reasons is not None:
            reasons.append(reason)
        return False

    return f"{BACKEND}.{table.name(composition)}", pattern, parts, check
