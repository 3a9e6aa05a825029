# SPDX-License-Identifier: Apache-2.0
"""Decides which ops of a model are quantized: those that the backend computes as integers.

An op that is quantized but not computed with integers is slower and less exact than a float one.
So the plan asks the backend: a few ops between dequantize and quantize are a small model, which
the partitioner takes as it would take the whole, with the table, the chip's limits and the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import tvm

from ...backend.passes.quantized_form import DEQUANTIZE, QUANTIZE
from ...backend.regions.partition import partition_for
from ...backend.report.report import offload_report
from ...backend.settings.options import Source
from ...backend.table.compositions import Composition, Kind
from ...backend.table.patterns import TABLE

COMPUTES, MOVES = "computes", "moves"
"""Whether an op computes with integers in a composite, or only moves them."""

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
Ask = Callable[[Group, Tensors], str | None]
"""Returns what the backend does with ops as integers, of which these tensors are int16: `COMPUTES`,
`MOVES`, or None."""
_Answer = Callable[[Group], str | None]


@dataclass(frozen=True)
class Plan:
    """What is quantized.

    `groups`: products, each with the ops of its composite, inside which all values are real.
    `singles`: single ops between tensors of integers.
    `tied`: tensors that share a scale, since an op only moves their elements.
    `wide`: tensors that are int16, whatever the type of the rest.
    """

    groups: tuple[Group, ...]
    singles: Group
    tied: tuple[tuple[str, ...], ...]
    wide: Tensors = frozenset()

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
        """The tensors that ops read as integers."""
        return {name for group in self.units for name in inputs_of(group)}


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
    """

    def __init__(self, nodes: Sequence[Node], results: Iterable[str], ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[tuple[tuple[int, ...], Tensors], str | None] = {}
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

    def _answer(self, group: Group, wide: Tensors) -> str | None:
        key = tuple(node.index for node in group), wide
        if key not in self._answers:
            self._answers[key] = self._ask(group, wide)
        return self._answers[key]

    def _plan(self, excluded: Collection[int], wide: Collection[int]) -> Plan:
        def answer(group: Group) -> str | None:
            indices = {node.index for node in group}
            if not indices.isdisjoint(excluded):
                return None
            return self._answer(group, frozenset() if indices.isdisjoint(wide) else edges_of(group))

        declined: set[int] = set()
        while True:
            groups = self._graph.groups(answer, declined)
            singles = self._graph.singles(groups, answer)
            quantized = {name for group in groups for name in group[-1].outputs}
            quantized |= {name for node in singles for name in node.outputs}
            # Do not quantize a tensor just for an addition.
            alone = {
                node.index
                for group in groups
                for node in group[1:]
                if not set(inputs_of(group)).intersection(node.inputs) <= quantized
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

    def singles(self, groups: tuple[Group, ...], ask: _Answer) -> Group:
        grouped = {node.index for group in groups for node in group}
        fixed = {name for group in groups for name in group[-1].outputs}
        integers = set(fixed)
        chosen: list[Node] = []
        for node in self.nodes:
            # Quantize a model output only if a product also reads it.
            reads_integers = node.inputs and (integers - self.results).issuperset(node.inputs)
            free = node.index not in grouped and node.is_real and not node.is_product
            if reads_integers and free and ask((node,)) is not None:
                chosen.append(node)
                integers.update(node.outputs)
        while True:
            read = {name for group in groups for name in inputs_of(group)}
            read |= {name for node in chosen for name in node.inputs}
            produced = fixed | {name for node in chosen for name in node.outputs}
            kept = [
                node
                for node in chosen
                if produced.issuperset(node.inputs) and read.intersection(node.outputs)
            ]
            if len(kept) == len(chosen):
                return tuple(kept)
            chosen = kept


# ---- Asking the backend -------------------------------------------------------------------------


class Backend:
    """Asks the backend what it does with a small quantized model."""

    def __init__(self, options: Source) -> None:
        self._options = options
        self.reasons: dict[str, None] = {}
        """The reasons of refusals, in the order of asking."""

    def answer(self, mod: tvm.IRModule, inputs: int, results: int) -> str | None:
        """Return what a model does between the quantize and dequantize at its edges."""
        partitioned = partition_for(
            mod,
            options=self._options,
            on_decline="host",
            strict=False,
            min_region_ops=1,
            max_regions=0,
        )
        rows = offload_report(partitioned).ops
        found = [TABLE.compositions.get(row.composite or "") for row in rows]
        edges = [
            row.op
            for row, composition in zip(rows, found, strict=True)
            if not _is_of_integers(composition)
        ]
        if "relax.concat" in edges and len(edges) < len(rows):
            return None  # Rescaled parts lose bits, so joined tensors get one scale instead.
        if any(item is not None and item.kind is Kind.TO_REAL for item in found):
            return None  # A real number leads from one composite to the next.
        if edges.count(QUANTIZE) > inputs or edges.count(DEQUANTIZE) > results:
            for row in rows:
                if row.reason:
                    self.reasons.setdefault(row.reason)
            return None
        return COMPUTES if len(edges) < len(rows) else MOVES


def _is_of_integers(composition: Composition | None) -> bool:
    # A softmax or norm computes with real numbers anyway, so real operands are more exact.
    if composition is None or composition.op.inside == "reals":
        return False
    return composition.kind.is_quantized
