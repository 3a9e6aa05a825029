# SPDX-License-Identifier: Apache-2.0
"""Forms the regions of a dataflow block, and rewrites it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import tvm
from tvm import relax

from ..ir.calls import Constant, resolve, with_arguments
from ..libraries.asking import Answer
from ..settings.options import Options
from ..settings.symbols import BOUNDS_ATTRIBUTE, symbol_bounds
from ..shared.backend import BACKEND, CHAINS_NOT_SELECTED
from ..shared.patience import each
from ..table.chains import wholes_of
from ..table.reasons import Code, Reason, alone_and_fused, nearest, of_driver
from . import ir
from .composites import Bindings, Composite, CompositeFinder, Target
from .phases import Unit, assign_phases
from .precision import Precision
from .real_forms import RealForms
from .records import Records, Where
from .updates import find_updates

MOST_CUTS = 32
"""How often the regions of a block are formed again without an op that the driver takes only alone;
each time it is asked about the whole region."""


class Recorder(Protocol):
    """Knows what values of the model are for a user's data."""

    def samples_of(self, values: Sequence[relax.Expr]) -> list[tvm.runtime.Tensor]:
        """Return the samples of each, in the first dimension."""


@dataclass(frozen=True, eq=False)
class Scope:
    """Data shared by the blocks of one function of the model."""

    name: str
    symbols: Iterator[str]
    """Unused names for regions."""
    values: MutableMapping[relax.Var, relax.Expr]
    """Values by variable."""
    bounds: Mapping[str, int]
    """The largest value of each symbol, by name."""
    computed: frozenset[str] = frozenset()
    """The symbols that only a run knows."""
    recorder: Recorder | None = None
    """For the values of the function, if a user gave data."""


@dataclass(eq=False)
class Region:
    """Composites that run in one call."""

    composites: list[Composite]
    outputs: list[relax.Var]
    function: relax.Function | None
    """None without outputs."""
    arguments: list[relax.Expr]
    calls: list[relax.Call]
    """The calls of Relax ops in it."""
    count_operations: Callable[[], int]
    symbol: str = ""
    reason: Reason | None = None
    """Why it goes back to the host."""
    declined: str = ""
    """The driver's reason, if the driver declined it."""
    warnings: tuple[str, ...] = ()
    """What the driver says of it, if it takes it."""


class Block:
    """Plans and rewrites one dataflow block.

    `regions`: the planned regions, also those that go back to the host.
    `functions`: the functions of the regions that `rewrite` calls.
    """

    def __init__(
        self, target: Target, records: Records, scope: Scope, bindings: list[relax.Binding]
    ) -> None:
        self.regions: list[Region] = []
        self.functions: dict[relax.GlobalVar, relax.Function] = {}
        self._target = target
        self._records = records
        self._scope = scope
        self._bindings = Bindings(bindings, scope.values)
        self._finder = CompositeFinder(target, self._bindings, scope.bounds)
        self._real_forms = RealForms(self._bindings, self._finder)
        self._unit_of: dict[int, Unit] = {}
        self._readers: dict[relax.Var, list[Unit]] = {}
        self._answers: dict[tuple[Composite, ...], Answer] = {}
        self._copied: dict[int, list[Composite]] = {}
        self._restored: set[int] = set()
        self._cuts = 0
        self._groups: list[list[Unit]] = []

    def plan(self) -> None:
        """Form regions, and decide which of them stay on the host."""
        self._finder.find()
        find_updates(self._finder, self._bindings, self._target.table)
        while True:
            self._real_forms.find()
            units = self._link_units()
            assign_phases(units, self._bindings, self._target.options.merge_regions)
            groups: dict[Unit, list[Unit]] = {}
            for unit in units:
                groups.setdefault(unit.root(), []).append(unit)
            self._groups = sorted(
                groups.values(), key=lambda group: (group[0].phase, group[0].members[-1])
            )
            self.regions = [self._make_region(group) for group in self._groups if group[0].on_npu]
            self._give_samples(self.regions)
            self._ask_each([region for region in self.regions if self._is_large(region)])
            # If the driver declines a region because of some composites, form regions without them,
            # or with other forms of their ops.
            if not any([self._part(region) for region in self.regions]):
                break
        for region in self.regions:
            if region.function is not None and not region.reason:
                region.symbol = next(self._scope.symbols)

    def _link_units(self) -> list[Unit]:
        """Return the units of the block in order, linked to the units they depend on."""
        units = []
        self._unit_of, self._readers = {}, {}
        self._copied = self._finder.copied()
        for composite in dict.fromkeys(self._finder.found.values()):
            unit = Unit(composite.members, composite)
            if not self._copied.keys() >= set(composite.members):
                self._unit_of.update((member, unit) for member in composite.members)
        for index in range(len(self._bindings)):
            unit = self._unit_of.setdefault(index, Unit([index]))
            if unit.members[-1] != index or index in self._copied or self._is_dead_tuple(index):
                continue
            units.append(unit)
            used = [var for value in self._inputs(unit) for var in relax.analysis.free_vars(value)]
            for var in used:
                self._readers.setdefault(var, []).append(unit)
            position = self._bindings.position
            producers = [self._unit_of[position[var]] for var in used if var in position]
            if unit.composite is not None:
                # One region may have it and what it copies.
                copied = (self._unit_of.get(at) for at in unit.composite.copies)
                producers += [source for source in copied if source and source.on_npu]
            unit.sources = list(dict.fromkeys(producers))
            for source in unit.sources:
                source.users.append(unit)
        return units

    def _inputs(self, unit: Unit) -> list[relax.Expr]:
        if unit.composite is not None:
            return unit.composite.arguments
        return [self._bindings[index].value for index in unit.members]

    def _is_dead_tuple(self, index: int) -> bool:
        """Whether only composites, which resolve it, read a tuple, constant or shape."""
        binding = self._bindings[index]
        if not isinstance(binding.var, relax.DataflowVar):
            return False
        if not isinstance(binding.value, (relax.Tuple, Constant, relax.ShapeExpr)):
            return False
        users = [self._bindings.position[it] for it in self._bindings.users.get(binding.var, [])]
        # Those that became constants, as weights do, read it no longer.
        users = [user for user in users if not isinstance(self._bindings[user].value, Constant)]
        return all(user in self._finder.found for user in users)

    def _make_region(self, group: list[Unit]) -> Region:
        root = group[0].root()
        composites = [unit.composite for unit in group if unit.composite is not None]
        outputs = [
            var
            for composite in composites
            for var in composite.results
            if any(reader.root() is not root for reader in self._readers.get(var, ()))
            or not isinstance(var, relax.DataflowVar)
        ]
        return self._region_of(composites, outputs)

    def _region_of(self, composites: list[Composite], outputs: list[relax.Var]) -> Region:
        values = self._scope.values
        builder = ir.FunctionBuilder(values, self._target.options.bind_constants)
        for number, composite in enumerate(composites):
            ret_ty = ir.tuple_type([var.ty for var in composite.results])
            callee = relax.Var(f"composite{number}", composite.function.ty)
            arguments = [builder.use(argument) for argument in composite.arguments]
            builder.bind(callee, composite.function)
            call = tvm.ir.Call(builder.use(callee), arguments, ret_ty=ret_ty)
            if len(composite.results) == 1:
                builder.bind(composite.results[0], call)
                continue
            fields = relax.Var(f"results{number}", ret_ty)
            builder.bind(fields, call)
            for index, var in enumerate(composite.results):
                builder.bind(var, relax.TupleGetItem(builder.use(fields), index))
        attributes = {"Codegen": BACKEND, "global_symbol": self._scope.name}
        function = builder.finish(outputs, attributes) if outputs else None
        inside = [
            self._bindings[at].value
            for unit in composites
            for at in (*self._own_copies(unit), *unit.members)
        ]
        calls = [value for value in inside if isinstance(value, relax.Call)]

        def count_operations() -> int:
            table, bounds = self._target.table, self._scope.bounds
            return sum(table.count_operations(call, values, bounds) for call in calls)

        return Region(composites, outputs, function, builder.arguments, calls, count_operations)

    def _own_copies(self, composite: Composite) -> list[int]:
        """Return the copies that count for a composite: each for the first one that has it."""
        return [at for at in composite.copies if composite in self._copied.get(at, [])[:1]]

    def _give_samples(self, regions: Sequence[Region]) -> None:
        """Let the driver see what enters regions for a user's data."""
        recorder = self._scope.recorder
        if recorder is None:
            return
        # All at once: the model runs for them.
        recorder.samples_of([value for region in regions for value in region.arguments])
        for region in regions:
            if region.function is not None:
                samples = recorder.samples_of(region.arguments)
                region.function = region.function.with_attr("samples", samples)

    # ---- Refused regions ----

    def _part(self, region: Region) -> bool:
        """Note why a region is refused; return whether it lost some of its composites."""
        if region.function is None:
            return False
        count, least = self._size_of(region), self._target.options.min_region_ops
        if not self._is_large(region):
            ops = "1 op" if count == 1 else f"{count} ops"
            why = f"its region has {ops}; min_region_ops is {least}"
            other = self._neighbour(region)
            region.reason = Reason(Code.TOO_SMALL, why)
            if other is not None:
                cycle = "would wait for each other if they were one"
                why = f"{why}, and it and the region of {ir.label(other)} {cycle}"
                region.reason = Reason(Code.CYCLE, why)
            return False
        declined, region.warnings = self._ask(region)
        if not declined:
            return False
        first, *others = region.composites
        causes: dict[Composite, str] = {}
        if others:
            causes = self._causes_of(declined, region.composites)
        elif first.instead or first.composition.kind.has_other_form:
            causes = {first: declined}
        for composite, reason in causes.items():
            self._finder.refuse(composite, reason)
        region.declined = declined
        region.reason = of_driver(declined, "the region", Code.DECLINED_REGION)
        return bool(causes)

    def _is_large(self, region: Region) -> bool:
        return self._size_of(region) >= self._target.options.min_region_ops

    def _size_of(self, region: Region) -> int:
        """Return how many ops it computes, also if other regions or the host compute them too."""
        copies = [at for composite in region.composites for at in composite.copies]
        return len(region.calls) + len({*copies} - self._copied.keys())

    def _neighbour(self, region: Region) -> relax.Binding | None:
        """Return an op of another region that this one reads or feeds, but cannot join."""
        bindings = self._bindings
        parted = any(isinstance(binding, relax.MatchCast) for binding in bindings)
        if parted or not self._target.options.merge_regions:
            return None
        for composite in region.composites:
            unit = self._unit_of[composite.members[-1]]
            for other in (*unit.sources, *unit.users):
                if other.on_npu and other.root() is not unit.root():
                    return bindings[other.members[-1]]
        return None

    def _causes_of(self, declined: str, composites: list[Composite]) -> dict[Composite, str]:
        """Return the composites for which the driver declines a region, with its reasons.

        They are those that it declines alone; if there are none, the one that its sentence names.
        """
        parts = [self._region_of([part], part.results) for part in composites]
        self._give_samples(parts)
        alone = self._ask_each(parts)
        causes = {part: why for part, why in zip(composites, alone, strict=True) if why}
        if causes or self._cuts == MOST_CUTS:
            return causes
        named: dict[int, Composite] = {}
        for composite in reversed(composites):
            for member in (*composite.members, *composite.copies):
                binding = self._bindings[member]
                if isinstance(binding.value, relax.Call) and ir.label(binding) in declined:
                    named[declined.index(ir.label(binding))] = composite
        if not named:
            return {}
        self._cuts += 1
        return {named[min(named)]: declined}

    def _ask_each(self, regions: Sequence[Region]) -> list[str]:
        """Return why the driver declines regions, as `_ask`; those without outputs it takes."""
        asked = [region for region in regions if region.function is not None]
        each(self._ask, asked, lambda region: f"the driver compiles {len(region.calls)} ops")
        return [
            self._ask(region).reason if region.function is not None else "" for region in regions
        ]

    def _ask(self, region: Region) -> Answer:
        """Return what the driver says of a region that has outputs."""
        key = tuple(region.composites)
        if key not in self._answers:
            answer = self._target.ask_driver(region.function, self._scope.bounds, True)
            if not isinstance(answer.reason, Reason):
                reason = answer.reason.removeprefix(f"the region {self._scope.name}: ")
                answer = answer._replace(reason=reason)
            self._answers[key] = answer
        return self._answers[key]

    # ---- Rewriting ----

    def rewrite(self) -> list[relax.Binding]:
        """Replace the regions by calls, and record where each op is."""
        result: list[relax.Binding] = []
        where: dict[int, Where] = {}
        regions = iter(self.regions)
        precision = Precision(self._bindings, self._finder, self._target.table)
        for group in self._groups:
            if not group[0].on_npu:
                index = group[0].members[0]
                value = self._bindings[index].value
                result.append(self._bindings[index])
                if isinstance(value, relax.Function):
                    self._records.add_local(value)
                if isinstance(value, relax.Call):
                    where[index] = {"reason": self._reason(index)}
                continue
            region = next(regions)
            members = {
                composite: self._real_forms.restore(composite)
                if region.reason
                else composite.members
                for composite in region.composites
            }
            result += self._call_region(region, members)
            for composite in region.composites:
                place: Where = {"region": region.symbol, "composite": composite.label}
                copies = self._own_copies(composite)
                if region.reason is not None:
                    place = {"reason": region.reason}
                    copies = [at for at in composite.copies if at in self._copied]
                # What is computed on the host as well counts there.
                for member in (*copies, *members[composite]):
                    if region.reason is not None or member not in where:
                        where[member] = place
                    if region.declined:
                        self._records.add_decline(self._bindings[member], region.declined)
        owners = {**self._finder.found, **{at: own[0] for at, own in self._copied.items()}}
        for index, binding in enumerate(self._bindings):
            if index in where and isinstance(binding.value, relax.Call):
                place = where[index]
                on_host = place.get("reason") or owners[index]
                self._records.add(binding, {**place, "types": precision.of(index, on_host)})
        return result

    def _call_region(
        self, region: Region, members: Mapping[Composite, list[int]]
    ) -> list[relax.Binding]:
        """Keep the function of a region, and return the bindings that call it.

        `members`: the bindings of each composite, for a region that goes back to the host.
        """
        if region.reason:
            return [binding for part in members.items() for binding in self._on_host(*part)]
        if region.function is None:
            return []
        function = self._records.with_states(region.function, region.arguments, region.outputs)
        function = function.with_attr("global_symbol", region.symbol)
        bounds = symbol_bounds(function, self._target.options, self._scope.bounds)
        # Leave default bounds open: RunCodegen's options may still set them.
        bounded = {
            name: bound
            for name, bound in bounds.items()
            if bound != Options.symbol_bound or name in self._scope.computed
        }
        if bounded:
            function = function.with_attr(BOUNDS_ATTRIBUTE, bounded)
        global_var = relax.GlobalVar(region.symbol)
        relax.expr._update_type(global_var, function.ty)
        self.functions[global_var] = function
        labels = [composite.label for composite in region.composites]
        self._records.add_region(
            region.symbol, labels, region.arguments, region.outputs, region.warnings
        )
        ret_ty = ir.tuple_type([var.ty for var in region.outputs])
        call = tvm.ir.Call(global_var, region.arguments, ret_ty=ret_ty)
        if len(region.outputs) == 1:
            return [relax.VarBinding(region.outputs[0], call)]
        results = relax.DataflowVar(region.symbol, ret_ty)
        fields = [
            relax.VarBinding(var, relax.TupleGetItem(results, index))
            for index, var in enumerate(region.outputs)
        ]
        return [relax.VarBinding(results, call), *fields]

    def _on_host(self, composite: Composite, members: list[int]) -> Iterator[relax.Binding]:
        """Generate the bindings of a composite that goes back to the host."""
        # Copies that only composites read are computed once. Others read the original, which may
        # come later or be inside a region: here it gets another name.
        is_shown = any(at not in self._copied for at in composite.copies)
        renamed: dict[relax.Expr, relax.Expr] = {}
        for member in sorted([*composite.copies, *members]):
            binding = self._bindings[member]
            var, value = binding.var, binding.value
            if isinstance(value, relax.Call):
                arguments = [resolve(argument, self._scope.values) for argument in value.args]
                value = with_arguments(value, [renamed.get(item, item) for item in arguments])
            if member in composite.copies and is_shown:
                renamed[var] = var = relax.DataflowVar(f"{var.name}_copy", var.ty)
            elif member in composite.copies and member in self._restored:
                continue
            self._restored.add(member)
            yield relax.VarBinding(var, value)

    @cached_property
    def _wholes(self) -> dict[relax.Var, str]:
        """The ops of the catalogue that calls form with others, if this backend lacks those."""
        ends = [binding.var for binding in self._bindings]
        return wholes_of(CHAINS_NOT_SELECTED, ends, self._scope.values)

    def _reason(self, index: int) -> Reason:
        """Return why a call is on the host."""
        binding = self._bindings[index]
        call = binding.value
        reason = self._records.no_op(call)
        if reason is not None:
            return reason
        kept = self._finder.kept.get(index)
        if kept is not None and kept.code is Code.OPTION:
            return kept
        if index in self._finder.declined:
            declined = self._finder.declined[index]
            self._records.add_decline(binding, declined)
            return of_driver(declined)
        reason = self._target.table.refusal(
            call,
            self._scope.values,
            bind_constants=self._target.options.bind_constants,
            asked_later=True,
        )
        whole = self._wholes.get(binding.var) if reason and reason.code is Code.NOT_SELECTED else ""
        if whole:
            why = f"{call.op.name} is not in the table of this backend; with other ops it is "
            why += f"{whole}, which the catalogue has: select that by an update"
            reason = Reason(Code.NOT_SELECTED, why)
        if kept is not None:
            return reason or kept
        notes = self._finder.notes.get(index)
        if not notes:
            return reason or Reason(Code.NO_PATTERN, "no pattern matches it")
        note = nearest(notes)
        if reason is None:
            return note
        # An op that the table has as a part of a chain only.
        code = note.code if reason.code is Code.NOT_IN_TABLE else reason.code
        return Reason(code, alone_and_fused(reason, note), reason.of_chip)
