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

from ...backend.passes.quantized import DEQUANTIZE, QUANTIZE
from ...backend.regions.partition import partition_for
from ...backend.report.report import offload_report
from ...backend.settings.options import Source
from ...backend.table.compositions import Composition, Kind
from ...backend.table.patterns import TABLE

COMPUTES, MOVES = "computes", "moves"
"""What an op does with integers: compute with them in a composite, or only move them."""

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
    `inputs`: the tensors of real numbers that it reads, without constants.
    `outputs`: its results.
    `is_product`: whether it is a convolution or a matrix product.
    `is_real`: whether its results are tensors of real numbers, so that they can be quantized.
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
"""What the backend does with these ops as integers: `COMPUTES`, `MOVES`, or None. Some of the
tensors that they read and return are int16."""
_Answer = Callable[[Group], str | None]


@dataclass(frozen=True)
class Plan:
    """What is quantized.

    `groups`: products, each with what is computed in the same composite. Inside a composite, all
    values are real.
    `others`: other ops between tensors of integers.
    `tied`: tensors that have one scale, since an op only moves their elements.
    `wide`: tensors that are int16, whatever the others are.
    """

    groups: tuple[Group, ...]
    others: Group
    tied: tuple[tuple[str, ...], ...]
    wide: Tensors = frozenset()

    @property
    def nodes(self) -> Group:
        """All ops that compute with integers, in the order of the model."""
        members = {node.index: node for group in self.units for node in group}
        return tuple(members[index] for index in sorted(members))

    @property
    def units(self) -> tuple[Group, ...]:
        """The groups, and the others as groups of one."""
        return (*self.groups, *((node,) for node in self.others))

    @property
    def quantized(self) -> set[str]:
        """The tensors that are integers: those that an op reads as such."""
        return {name for group in self.units for name in inputs_of(group)}


def inputs_of(group: Group) -> list[str]:
    """Return the tensors that a group reads from outside of it.

    Tensors of real numbers, without constants.
    """
    made = {name for node in group for name in node.outputs}
    return [
        name for name in dict.fromkeys(n for node in group for n in node.inputs) if name not in made
    ]


def edges_of(group: Group) -> Tensors:
    """Return the tensors that a group reads from outside of it, and its result."""
    return frozenset((*inputs_of(group), *group[-1].outputs))


class Planner:
    """Chooses the ops to quantize.

    Products are quantized if the backend computes them with integers, together with the ops that it
    fuses after them. Others are if all their operands are already integers and an integer op reads
    their result: a result for an op on real numbers is not rounded.

    `nodes`: the ops of the model, in its order.
    `results`: the results of the model.
    `ask`: asks the backend.
    """

    def __init__(self, nodes: Sequence[Node], results: Iterable[str], ask: Ask) -> None:
        self._ask = ask
        self._answers: dict[tuple[tuple[int, ...], Tensors], str | None] = {}
        self._graph = _Graph(nodes, results)

    def plan(self, excluded: Collection[int] = (), wide: Collection[int] = ()) -> Plan:
        """Return what is quantized.

        Without groups if the backend computes no product with integers.
        """
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

        unwanted: set[int] = set()
        while True:
            groups = self._graph.groups(answer, unwanted)
            others = self._graph.others(groups, answer)
            quantized = {name for group in groups for name in group[-1].outputs}
            quantized |= {name for node in others for name in node.outputs}
            # Do not quantize a tensor just for an addition.
            alone = {
                node.index
                for group in groups
                for node in group[1:]
                if not set(inputs_of(group)).intersection(node.inputs) <= quantized
            }
            if not alone:
                break
            unwanted |= alone
        tied = tuple((*node.inputs, *node.outputs) for node in others if answer((node,)) == MOVES)
        return Plan(groups, others, tied)


def _wide_tensors(plan: Plan, wide: Collection[int]) -> Tensors:
    """Return the tensors that ops of int16 read and write, and those that are tied to them."""
    found: set[str] = set()
    for group in plan.units:
        if not {node.index for node in group}.isdisjoint(wide):
            found |= edges_of(group)
    found &= plan.quantized
    size = -1
    while size != len(found):
        size = len(found)
        found.update(*(names for names in plan.tied if not found.isdisjoint(names)))
    return frozenset(found)


class _Graph:
    """The ops of a model and their readers."""

    def __init__(self, nodes: Sequence[Node], results: Iterable[str]) -> None:
        self.nodes = nodes
        self.results = set(results)
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)

    def groups(self, ask: _Answer, unwanted: set[int]) -> tuple[Group, ...]:
        taken: set[int] = set()
        groups: list[Group] = []
        for node in self.nodes:
            if not node.is_product or not node.is_real or ask((node,)) != COMPUTES:
                continue
            group: Group = (node,)
            longer, refusals = self._longer(group, taken | unwanted), 0
            while longer and refusals < _REFUSALS:
                if ask(longer) == COMPUTES:
                    group, refusals = longer, 0
                else:
                    refusals += 1
                longer = self._longer(longer, taken | unwanted)
            taken |= {member.index for member in group}
            groups.append(group)
        return tuple(groups)

    def _longer(self, group: Group, taken: set[int]) -> Group:
        """Extend the group by the following ops as long as it has one result; empty if none."""
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
            new = min(following, key=lambda node: node.index)
            if new.is_product or not new.is_real or new.index in taken:
                return ()
            members.append(new)
            if len(self._open(members)) == 1:
                return tuple(members)
        return ()

    def _open(self, members: Sequence[Node]) -> list[str]:
        """Return the results of ops that are read outside of them."""
        inside = {member.index for member in members}
        return [
            name
            for member in members
            for name in member.outputs
            if name in self.results
            or any(reader.index not in inside for reader in self.readers.get(name, ()))
        ]

    def others(self, groups: tuple[Group, ...], ask: _Answer) -> Group:
        grouped = {node.index for group in groups for node in group}
        fixed = {name for group in groups for name in group[-1].outputs}
        integers = set(fixed)
        chosen: list[Node] = []
        for node in self.nodes:
            # Quantize a model output only if a product also reads it.
            known = node.inputs and (integers - self.results).issuperset(node.inputs)
            free = node.index not in grouped and node.is_real and not node.is_product
            if known and free and ask((node,)) is not None:
                chosen.append(node)
                integers.update(node.outputs)
        while True:
            read = {name for group in groups for name in inputs_of(group)}
            read |= {name for node in chosen for name in node.inputs}
            made = fixed | {name for node in chosen for name in node.outputs}
            kept = [
                node
                for node in chosen
                if made.issuperset(node.inputs) and read.intersection(node.outputs)
            ]
            if len(kept) == len(chosen):
                return tuple(kept)
            chosen = kept


# ---- Asking the backend -------------------------------------------------------------------------


class Backend:
    """Asks the backend what it does with a small quantized model.

    `options`: as for the partitioning.
    """

    def __init__(self, options: Source) -> None:
        self._options = options
        self.reasons: dict[str, None] = {}
        """Why something was refused, in the order of asking."""

    def answer(self, mod: tvm.IRModule, inputs: int, results: int) -> str | None:
        """Return what a model does between quantize and dequantize at its edges."""
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
    # A softmax or a norm is more exact with real numbers, which it computes with anyway.
    if composition is None or composition.op.inside == "reals":
        return False
    return composition.kind.is_quantized
