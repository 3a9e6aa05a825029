# SPDX-License-Identifier: Apache-2.0
"""Decides which ops of a model are quantized: those that the backend computes as integers.

An op that is quantized but not computed with integers is slower and less exact than a float one.
So the plan asks the backend: a few ops between dequantize and quantize are a small model, which
the partitioner takes as it would take the whole, with the table, the chip's limits and the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import tvm

from ...backend.ir.amounts import is_product
from ...backend.passes.quantized_form import DEQUANTIZE, QUANTIZE
from ...backend.regions.partition import partition_for
from ...backend.report.report import OpPlacement, offload_report
from ...backend.settings.options import Source
from ...backend.table.compositions import Composition, Kind
from ...backend.table.patterns import TABLE

COMPUTES, INSIDE, MOVES = "computes", "inside", "moves"
"""Whether an op computes with integers in a composite, with real numbers between integers, or only
moves them."""


class Ends(Enum):
    """What the ops that the backend is asked about read and return."""

    INTEGERS = auto()
    """Integers: dequantize, ops, quantize."""
    REAL_RESULT = auto()
    """Integers, and a real result: dequantize, ops."""
    REALS = auto()
    """Real numbers, as in the float model."""


_LONGEST = 8
_REFUSALS = 2


@dataclass(frozen=True)
class Form:
    """How tensors are written as integers.

    `activations`: their element type.
    `symmetric`: whether the zero point of activations is in the middle of the range.
    `per_channel`: whether each channel of a product's weights has a scale.
    """

    activations: str
    symmetric: bool = False
    per_channel: bool = True


@dataclass(frozen=True)
class Node:
    """An op of the model that is planned.

    `index`: its place in the order of the model.
    `names`: the names that users may give: its own, and those of its results.
    `inputs`: the real tensors that it reads, without constants.
    `is_product`: whether it is a convolution or a matrix product.
    `is_real`: whether its results are real, so that they can be quantized.
    """

    index: int
    names: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_product: bool = False
    is_real: bool = True


Group = tuple[Node, ...]
Tensors = frozenset[str]
Ask = Callable[[Group, Tensors, Ends], str | None]
"""Returns what the backend does with ops, of which these tensors are int16: `COMPUTES`, `INSIDE`,
`MOVES`, or None. `COMPUTES` stands for all on the NPU if they are asked about with real numbers."""
_Answer = Callable[[Group], str | None]


@dataclass(frozen=True)
class Plan:
    """What is quantized.

    `groups`: products, each with the ops of its composite, inside which all values are real.
    `singles`: single ops between tensors of integers.
    `tied`: tensors that share a scale, since an op only moves their elements.
    `wide`: tensors that are int16, whatever the type of the rest.
    `rounded`: results that are quantized, though no op reads them as integers: the backend has no
    form of their ops with a real result.
    """

    groups: tuple[Group, ...]
    singles: Group
    tied: tuple[tuple[str, ...], ...]
    wide: Tensors = frozenset()
    rounded: Tensors = frozenset()

    @property
    def nodes(self) -> Group:
        """All ops that compute with integers, in the order of the model."""
        members = {node.index: node for group in self.units for node in group}
        return tuple(members[index] for index in sorted(members))

    @property
    def units(self) -> tuple[Group, ...]:
        """The groups, and the single ops as groups of one."""
        return (*self.groups, *((node,) for node in self.singles))

    @property
    def quantized(self) -> set[str]:
        """The tensors that are integers."""
        return {name for group in self.units for name in inputs_of(group)} | self.rounded


def inputs_of(group: Group) -> list[str]:
    """Return the real tensors from outside that a group reads, without constants."""
    produced = {name for node in group for name in node.outputs}
    return [
        name
        for name in dict.fromkeys(n for node in group for n in node.inputs)
        if name not in produced
    ]


def edges_of(group: Group) -> Tensors:
    """Return the inputs of a group, and its result."""
    return frozenset((*inputs_of(group), *group[-1].outputs))


class Planner:
    """Chooses the ops to quantize.

    Products are quantized if the backend computes them with integers, together with the ops that it
    fuses after them. Other ops are quantized if all their operands are integers already and an
    integer op reads their result: a result for an op on real numbers is not rounded.

    An op that the host would compute with real numbers is quantized wherever an integer op is
    before or after it.
    """

    def __init__(self, nodes: Sequence[Node], results: Iterable[str], ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[tuple[tuple[int, ...], Tensors, Ends], str | None] = {}
        self._graph = _Graph(nodes, results)

    def plan(self, excluded: Collection[int] = (), wide: Collection[int] = ()) -> Plan:
        """Return the plan, without groups if the backend computes no product with integers."""
        wide = set(wide)
        while True:
            chosen = self._plan(excluded, wide)
            tensors = _wide_tensors(chosen, wide)
            # Neighbours that cannot mix the two types become int16 as well.
            unfit = {
                node.index
                for group in chosen.units
                if self._answer(group, tensors & edges_of(group)) is None
                for node in group
            }
            if unfit <= wide:
                return replace(chosen, wide=tensors)
            wide |= unfit

    def computes_wide(self, group: Group) -> bool:
        """Whether the backend computes a group whose tensors are all int16."""
        return self._answer(group, edges_of(group)) == COMPUTES

    def _answer(self, group: Group, wide: Tensors, ends: Ends = Ends.INTEGERS) -> str | None:
        key = tuple(node.index for node in group), wide, ends
        if key not in self._answers:
            self._answers[key] = self._ask(group, wide, ends)
        return self._answers[key]

    def _is_for_host(self, node: Node) -> bool:
        """Whether the host computes an op of the float model."""
        return self._answer((node,), frozenset(), Ends.REALS) is None

    def _plan(self, excluded: Collection[int], wide: Collection[int]) -> Plan:
        """Choose ops whose results can be what their readers want."""
        left_out = set(excluded)
        integers: set[str] = set()
        plan = self._choose(left_out, wide)
        while True:
            unfit = [
                unit
                for unit in plan.units
                if plan.quantized.isdisjoint(unit[-1].outputs) and not self._may_be_real(unit, wide)
            ]
            integers |= plan.quantized
            # No result is rounded that is real in the model, unless the host would compute it.
            exact = {
                unit[0].index
                for unit in unfit
                if integers.isdisjoint(unit[-1].outputs) and not any(map(self._is_for_host, unit))
            }
            left_out |= exact
            without = self._choose(left_out, wide) if exact else plan
            if without is plan or not without.groups:
                rounded = (name for unit in unfit for name in unit[-1].outputs)
                return replace(plan, rounded=frozenset(rounded))
            plan = without

    def _may_be_real(self, unit: Group, wide: Collection[int]) -> bool:
        """Whether the backend computes ops with integers whose result is real."""
        is_wide = not {node.index for node in unit}.isdisjoint(wide)
        tensors = frozenset(inputs_of(unit)) if is_wide else frozenset()
        return unit[0].is_product and self._answer(unit, tensors, Ends.REAL_RESULT) is not None

    def _choose(self, excluded: Collection[int], wide: Collection[int]) -> Plan:
        def answer(group: Group) -> str | None:
            indices = {node.index for node in group}
            if not indices.isdisjoint(excluded):
                return None
            return self._answer(group, frozenset() if indices.isdisjoint(wide) else edges_of(group))

        declined: set[int] = set()
        while True:
            groups = self._graph.groups(answer, declined)
            singles = self._graph.singles(groups, answer, self._is_for_host)
            quantized = {name for group in groups for name in group[-1].outputs}
            quantized |= {name for node in singles for name in node.outputs}
            # Do not quantize a tensor just for an addition.
            alone = {
                node.index
                for group in groups
                for node in group[1:]
                if not set(inputs_of(group)).intersection(node.inputs) <= quantized
                and not self._is_for_host(node)
            }
            if not alone:
                break
            declined |= alone
        tied = tuple((*node.inputs, *node.outputs) for node in singles if answer((node,)) == MOVES)
        return Plan(groups, singles, tied)


def _wide_tensors(plan: Plan, wide: Collection[int]) -> Tensors:
    """Return the tensors that ops of int16 read and write, and all tied to these."""
    tensors: set[str] = set()
    for group in plan.units:
        if not {node.index for node in group}.isdisjoint(wide):
            tensors |= edges_of(group)
    tensors &= plan.quantized
    size = -1
    while size != len(tensors):
        size = len(tensors)
        tensors.update(*(names for names in plan.tied if not tensors.isdisjoint(names)))
    return frozenset(tensors)


class _Graph:
    """The ops of a model and their readers."""

    def __init__(self, nodes: Sequence[Node], results: Iterable[str]) -> None:
        self.nodes = nodes
        self.results = set(results)
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)

    def groups(self, ask: _Answer, declined: set[int]) -> tuple[Group, ...]:
        grouped: set[int] = set()
        groups: list[Group] = []
        for node in self.nodes:
            if not node.is_product or not node.is_real or ask((node,)) != COMPUTES:
                continue
            group: Group = (node,)
            longer, refusals = self._longer(group, grouped | declined), 0
            while longer and refusals < _REFUSALS:
                if ask(longer) == COMPUTES:
                    group, refusals = longer, 0
                else:
                    refusals += 1
                longer = self._longer(longer, grouped | declined)
            grouped |= {member.index for member in group}
            groups.append(group)
        return tuple(groups)

    def _longer(self, group: Group, grouped: set[int]) -> Group:
        """Return the group with the next ops until it has one result again, or ()."""
        members = list(group)
        while len(members) < _LONGEST:
            inside = {member.index for member in members}
            following = [
                reader
                for name in self._open(members)
                for reader in self.readers.get(name, ())
                if reader.index not in inside
            ]
            if not following or self.results.intersection(self._open(members)):
                return ()
            nearest = min(following, key=lambda node: node.index)
            if nearest.is_product or not nearest.is_real or nearest.index in grouped:
                return ()
            members.append(nearest)
            if len(self._open(members)) == 1:
                return tuple(members)
        return ()

    def _open(self, members: Sequence[Node]) -> list[str]:
        """Return the results that ops outside, or the model, read."""
        inside = {member.index for member in members}
        return [
            name
            for member in members
            for name in member.outputs
            if name in self.results
            or any(reader.index not in inside for reader in self.readers.get(name, ()))
        ]

    def singles(
        self, groups: tuple[Group, ...], ask: _Answer, is_for_host: Callable[[Node], bool]
    ) -> Group:
        grouped = {node.index for group in groups for node in group}
        free = [
            node
            for node in self.nodes
            if node.inputs and node.index not in grouped and node.is_real and not node.is_product
        ]
        # Ops that would be on the host in float.
        fixed: list[Node] = []
        while True:
            chosen = self._between((*groups, *((node,) for node in fixed)), free, ask)
            units = (*groups, *((node,) for node in (*fixed, *chosen)))
            read = {name for unit in units for name in inputs_of(unit)}
            made = {name for unit in units for name in unit[-1].outputs}
            added = [
                node
                for node in free
                if node not in fixed
                and (made.intersection(node.inputs) or read.intersection(node.outputs))
                and ask((node,)) is not None
                and is_for_host(node)
            ]
            if not added:
                return tuple(sorted((*fixed, *chosen), key=lambda node: node.index))
            fixed += added

    def _between(self, units: tuple[Group, ...], free: Sequence[Node], ask: _Answer) -> list[Node]:
        """Return the ops that read results of integers only, and whose own are read as integers."""
        taken = {node.index for unit in units for node in unit}
        fixed = {name for unit in units for name in unit[-1].outputs}
        integers = set(fixed)
        chosen: list[Node] = []
        for node in free:
            # Quantize a model output only if a product also reads it.
            reads_integers = (integers - self.results).issuperset(node.inputs)
            if reads_integers and node.index not in taken and ask((node,)) in (COMPUTES, MOVES):
                chosen.append(node)
                integers.update(node.outputs)
        while True:
            read = {name for unit in units for name in inputs_of(unit)}
            read |= {name for node in chosen for name in node.inputs}
            produced = fixed | {name for node in chosen for name in node.outputs}
            kept = [
                node
                for node in chosen
                if produced.issuperset(node.inputs) and read.intersection(node.outputs)
            ]
            if len(kept) == len(chosen):
                return kept
            chosen = kept


# ---- Asking the backend -------------------------------------------------------------------------


class Backend:
    """Asks the backend what it does with a small quantized model."""

    def __init__(self, options: Source) -> None:
        self._options = options
        self.reasons: dict[str, None] = {}
        """The reasons of refusals, in the order of asking."""

    def answer(
        self, mod: tvm.IRModule, inputs: int, results: int, ends: Ends = Ends.INTEGERS
    ) -> str | None:
        """Return what it does with a model, which has these ends.

        `inputs`, `results`: how many real numbers are quantized, and integers dequantized, there.
        """
        partitioned = partition_for(
            mod,
            options=self._options,
            on_decline="host",
            strict=False,
            min_region_ops=1,
            max_regions=0,
        )
        rows = offload_report(partitioned).ops
        found = _judged(rows, inputs, results, ends)
        if found is None and ends is not Ends.REALS:
            reasons = (row.reason or row.wider for row in rows)
            self.reasons.update(dict.fromkeys(filter(None, reasons)))
        return found


def _judged(rows: Sequence[OpPlacement], inputs: int, results: int, ends: Ends) -> str | None:
    """Return how a model is computed; `Backend.answer` has the arguments."""
    found = [TABLE.compositions.get(row.composite or "") for row in rows]
    pairs = list(zip(rows, found, strict=True))
    if ends is not Ends.INTEGERS:
        is_taken = all(
            _is_of_integers(item) if ends is Ends.REAL_RESULT and is_product(row.op) else item
            for row, item in pairs
            if row.op not in (QUANTIZE, DEQUANTIZE) and not row.bookkeeping
        )
        return COMPUTES if is_taken else None
    edges = [row.op for row, item in pairs if not _is_of_integers(item)]
    if "relax.concat" in edges and len(edges) < len(rows):
        return None  # Rescaled parts lose bits, so joined tensors get one scale instead.
    if any(item is not None and item.kind is Kind.TO_REAL for item in found):
        return None  # A real number leads from one composite to the next.
    if not _has_more(edges, inputs, results):
        return COMPUTES if len(edges) < len(rows) else MOVES
    outside = [row.op for row, item in pairs if item is None or not item.kind.is_quantized]
    return None if _has_more(outside, inputs, results) else INSIDE


def _has_more(ops: Sequence[str], inputs: int, results: int) -> bool:
    """Whether ops quantize or dequantize more than the edges of a model."""
    return ops.count(QUANTIZE) > inputs or ops.count(DEQUANTIZE) > results


def _is_of_integers(composition: Composition | None) -> bool:
    # A softmax or norm computes with real numbers anyway, so real operands are more exact.
    if composition is None or composition.op.inside == "reals":
        return False
    return composition.kind.is_quantized
