# SPDX-License-Identifier: Apache-2.0
"""Finds the composites of a dataflow block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

import tvm_ffi
from tvm import relax
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix
from tvm.relax.dpl import CallPattern

from ..ir.calls import Values, items_of, with_arguments
from ..ir.origins import is_named, origin_of
from ..libraries.asking import Answer, answer_about
from ..settings.options import Options
from ..shared.backend import BACKEND
from ..table.capability import Op
from ..table.compositions import Composition
from ..table.matches import escapes
from ..table.reasons import Code, Reason, of_driver
from ..table.table import Table
from . import ir
from .entries import Entry, entry_of
from .size_limits import refusal_of_sizes


class Target:
    """What may go to the NPU: what the table, the options and the driver allow."""

    def __init__(self, table: Table, options: Options) -> None:
        self.table = table
        self.options = options
        self.patterns = [entry_of(pattern) for pattern in get_patterns_with_prefix(f"{BACKEND}.")]
        self._driver_options = tvm_ffi.convert(options.driver_options())
        self._rule = tvm_ffi.convert(table.chip.rule)

    def ask_driver(
        self, function: relax.Function, bounds: Mapping[str, int], finish: bool
    ) -> Answer:
        """Return why the driver declines a composite or, with `finish`, a whole region.

        A sentence; empty if the driver takes it. With a code if the driver was not asked.
        """
        reason = refusal_of_sizes(function, finish)
        if reason is not None:
            return Answer(reason)
        driver = self.options.driver
        return answer_about(function, driver, self._driver_options, bounds, finish, self._rule)


class Bindings(list[relax.Binding]):
    """The bindings of a dataflow block, their readers, and all values that it can read."""

    def __init__(
        self, bindings: Sequence[relax.Binding], values: MutableMapping[relax.Var, relax.Expr]
    ) -> None:
        super().__init__(bindings)
        self.values = values
        self.position = {binding.var: index for index, binding in enumerate(bindings)}
        self.users: dict[relax.Var, list[relax.Var]] = {}
        for binding in bindings:
            for var in items_of(relax.analysis.free_vars(binding.value)):
                self.users.setdefault(var, []).append(binding.var)

    def rebind(self, index: int, value: relax.Expr) -> None:
        """Give a binding another value of the same type."""
        var = self[index].var
        self[index] = relax.VarBinding(var, value)
        self.values[var] = value

    @cached_property
    def position_of_value(self) -> dict[int, int]:
        """The index of the binding of each value, by the value's identity."""
        return {ir.id_of(binding.value): index for index, binding in enumerate(self)}


@dataclass(frozen=True, eq=False)
class Composite:
    """Ops that the NPU runs as one."""

    members: list[int]
    """Their bindings, by index."""
    composition: Composition
    results: list[relax.Var]
    function: relax.Function
    arguments: list[relax.Expr]
    """The arguments of the function."""
    copies: Sequence[int] = ()
    """The bindings that it computes for itself, since others may read them too."""
    instead: Mapping[int, Composite] = field(default_factory=dict)
    """The composites that its members were, by member."""

    @property
    def label(self) -> str:
        """Its name, for people."""
        return self.composition.label


@dataclass(frozen=True)
class Update:
    """Calls that spell an update of slices.

    `members`: the calls that only it reads, by the index of their bindings, the selection last.
    `condition`: the calls that others may read too.
    `inputs`: the data, the new slices and their positions.
    """

    members: list[int]
    condition: list[int]
    inputs: tuple[relax.Expr, relax.Expr, relax.Expr]


class CompositeFinder:
    """Finds the composites of a block, in the order of precedence of the patterns.

    `found`: the composite of each binding that is in one, by index.
    `declined`: what the driver says about composites that it does not take, by the index of the
    last op.
    `notes`: why patterns of several ops do not match, by the index of the last op.
    `kept`: why bindings stay on the host whatever matches them, by index.
    `refused`: the composites of integers that the driver declines, with its sentences, as they are
    found.
    `real`: why the driver declines products of integers that compute with real numbers, by index.
    """

    def __init__(self, target: Target, bindings: Bindings, bounds: Mapping[str, int]) -> None:
        self.found: dict[int, Composite] = {}
        self.declined: dict[int, str] = {}
        self.notes: dict[int, list[Reason]] = {}
        self.kept: dict[int, Reason] = {}
        self.refused: list[tuple[Composite, str]] = []
        self.real: dict[int, str] = {}
        self._lost: set[int] = set()
        self._answers: dict[tuple[str, tuple[int, ...]], str] = {}
        self._target = target
        self._bindings = bindings
        self._bounds = bounds
        self._surroundings_at: dict[tuple[int, int], tvm_ffi.Map] = {}

    def find(self) -> None:
        """Fill the attributes."""
        wanted = self._target.options.keep_on_host
        for index, binding in enumerate(self._bindings):
            value = binding.value
            if wanted and isinstance(value, relax.Call):
                own = ir.callee(value), str(binding.var.name), origin_of(value)
                if is_named(wanted, *own):
                    why = "the option keep_on_host names it"
                    self.kept[index] = Reason(Code.OPTION, why)
            if isinstance(value, relax.Call) and index not in self.kept:
                self._keep_unbounded(index, binding)
        self.find_at(range(len(self._bindings)))

    def find_again(self) -> None:
        """Find other composites of the ops that `refuse` took out."""
        lost, self._lost = self._lost, set()
        if lost:
            self.find_at(lost)

    def find_at(self, places: Collection[int]) -> None:
        """Find the composites that end at some bindings."""
        values = self._bindings.values
        by_op: dict[str, list[tuple[int, set[str]]]] = {}
        for index in places:
            value = self._bindings[index].value
            if isinstance(self._bindings[index], relax.VarBinding) and ir.is_op_call(value):
                sources = [values.get(source) for source in ir.operands(value)]
                names = {source.op.name for source in sources if ir.is_op_call(source)}
                by_op.setdefault(value.op.name, []).append((index, names))
        reach = _Reach(self._bindings)
        for entry in self._target.patterns:
            # The quickest test first: most patterns end in an op that the block does not have.
            if entry.heads.keys().isdisjoint(by_op) or not entry.needed <= reach.ops:
                continue
            near = reach.within(entry.depth)
            needed = reach.bits(entry.needed)
            for op in entry.heads:
                for index, producers in by_op.get(op, ()):
                    if (
                        near[index] & needed == needed
                        and index not in self.found
                        and entry.may_match(op, producers)
                    ):
                        self._try(entry, index)

    def _keep_unbounded(self, index: int, binding: relax.Binding) -> None:
        """Keep a call on the host if memory cannot be planned for one of its sizes."""
        types = [binding.var.ty, *(operand.ty for operand in ir.operands(binding.value))]
        symbols = [var for ty in types for var in relax.analysis.tir_vars_in_type(ty)]
        for name in (str(var.name) for var in symbols):
            if name not in self._bounds:
                why = f"the size '{name}' is known only when the model runs, and nothing bounds it"
                self.kept[index] = Reason(Code.RUN_TIME_SIZE, why)
                return

    def _try(self, entry: Entry, index: int) -> None:
        """Make a composite if the pattern matches at this binding."""
        bindings = self._bindings
        call = bindings[index].value
        surroundings = self._surroundings(index, entry.depth)
        matched = entry.pattern.pattern.extract_matched_expr(call, surroundings)
        if matched is None:
            return
        calls = set()
        for pattern, expr in matched.items():
            if isinstance(pattern, CallPattern):
                member = bindings.position_of_value.get(ir.id_of(expr))
                if member is None:
                    return
                if member in self.found or member in self.kept:
                    self._note_taken(entry, index, member)
                    return
                calls.add(member)
        members = sorted(calls)
        match = _Match(
            matched_expr=call,
            annotated_expr={
                name: matched[pattern]
                for name, pattern in entry.annotations.items()
                if pattern in matched
            },
            matched_bindings={bindings[member].var: bindings[member].value for member in members},
            var_usages=bindings.users,
            values=bindings.values,
            bind_constants=self._target.options.bind_constants,
        )
        check = entry.pattern.check
        refused = check is not None and not check(match)
        escaping = None if refused else escapes(match)
        if escaping is not None:
            why = f"{entry.label}: '{escaping.name}' inside of it is used elsewhere"
            match.reasons.append(Reason(Code.USED_ELSEWHERE, why))
        if refused or escaping is not None:
            if len(members) > 1:
                self.notes.setdefault(index, []).extend(match.reasons)
            return
        results = self._results(index)
        if results is None:
            reason = Reason(Code.TUPLE, "its results are used as a tuple")
            self.notes.setdefault(index, []).append(reason)
            return
        composition = self._target.table.composition_of(entry.label, match.annotated_expr)
        composite = self._make_composite(members, results, composition, match.annotated_expr)
        declined = self._ask(composite)
        if declined:
            self.declined[index] = declined
        else:
            self.found.update((member, composite) for member in composite.members)

    def take_update(self, op: Op, update: Update) -> bool:
        """Make a composite of an update if the table and the driver take it; return whether."""
        members, places = update.members, {*update.members, *update.condition}
        fused = (at in self.found and len(self.found[at].members) > 1 for at in places)
        if not places.isdisjoint(self.kept) or any(fused):
            return False
        inputs = {item.name: value for item, value in zip(op.inputs, update.inputs, strict=True)}
        composite = self._make_composite(
            members, members[-1:], Composition(op), inputs, update.condition
        )
        axis = tvm_ffi.get_global_func(f"{BACKEND}.codegen.update_axis")(composite.function)
        if axis < 0:
            return False
        reason = self._target.table.refusal_of_chain(
            op,
            inputs,
            {"axis": axis},
            self._bindings[members[-1]].value,
            self._bindings.values,
            bind_constants=self._target.options.bind_constants,
        )
        if reason is None and (declined := self._ask(composite)):
            reason = of_driver(declined, op.name)
        if reason is not None:
            self.notes.setdefault(members[-1], []).append(reason)
            return False
        instead = {member: self.found[member] for member in members if member in self.found}
        composite = replace(composite, instead=instead)
        for member in members:
            self.declined.pop(member, None)
            self.found[member] = composite
        return True

    def copied(self) -> dict[int, list[Composite]]:
        """Return the bindings that only composites with a copy read, each with those composites."""
        owners: dict[int, list[Composite]] = {}
        for composite in dict.fromkeys(self.found.values()):
            for at in composite.copies:
                owners.setdefault(at, []).append(composite)
        copied: dict[int, list[Composite]] = {}
        for at in sorted(owners, reverse=True):
            var, own = self._bindings[at].var, owners[at]
            readers = {self._bindings.position[user] for user in self._bindings.users.get(var, ())}
            inside = {member for composite in own for member in composite.members}
            inside |= {other for other, its in copied.items() if all(it in own for it in its)}
            if isinstance(var, relax.DataflowVar) and readers <= inside:
                copied[at] = own
        return copied

    def _ask(self, composite: Composite) -> str:
        """Return why the driver declines a composite, or "". Remember it if that has integers."""
        key = composite.label, tuple(composite.members)
        if key in self._answers:
            return self._answers[key]
        declined = (
            composite.composition.refusal
            or self._refusal_of_ends(composite)
            or self._target.ask_driver(composite.function, self._bounds, False).reason
        )
        if declined and composite.composition.kind.has_other_form:
            self._answers[key] = declined
            self.refused.append((composite, declined))
        return declined

    def _refusal_of_ends(self, composite: Composite) -> Reason | None:
        """Return why a chip of integers has no composite that reads and returns these values."""
        read = (param.ty for param in composite.function.params)
        returned = (var.ty for var in composite.results)
        return self._target.table.refusal_of_ends(composite.composition.op.name, read, returned)

    def refuse(self, composite: Composite, declined: str) -> None:
        """Take out a composite that the driver declines in a region, so that it is not found again.

        `find_again` finds others of its ops if they have another form.
        """
        self._answers[composite.label, tuple(composite.members)] = declined
        for member in composite.members:
            if member in composite.instead:
                self.found[member] = composite.instead[member]
            else:
                self.declined[member] = declined
                del self.found[member]
        if composite.composition.kind.has_other_form:
            self.refused.append((composite, declined))
            self._lost.update(composite.members)

    def release(self, places: Collection[int]) -> set[int]:
        """Take out the composites of real numbers at some bindings; return all bindings of both."""
        at = [self.found[index] for index in places if index in self.found]
        real = [composite for composite in at if not composite.composition.kind.has_other_form]
        members = {member for composite in real for member in composite.members}
        for member in members:
            del self.found[member]
        self._surroundings_at.clear()
        return members.union(places)

    def _note_taken(self, entry: Entry, index: int, member: int) -> None:
        """Note that a pattern matches except for an op that is not available."""
        if index == member:
            return
        name = f"{entry.label}: '{self._bindings[member].var.name}' inside of it is"
        kept = self.kept.get(member)
        if kept is not None:
            by = "by the option keep_on_host" if kept.code is Code.OPTION else f"because {kept}"
            reason = Reason(kept.code, f"{name} kept on the host {by}")
        else:
            label = self.found[member].label
            reason = Reason(Code.SHADOWED, f"{name} part of another composite, {label}")
        self.notes.setdefault(index, []).append(reason)

    def _surroundings(self, index: int, depth: int) -> tvm_ffi.Map:
        """Return the values that a pattern can reach from a binding, by variable.

        The matcher copies its map: with all bindings, matching would be quadratic.
        """
        if (index, depth) not in self._surroundings_at:
            bound = self._bindings.values
            reached: dict[relax.Var, relax.Expr] = {}
            values = [self._bindings[index].value]
            for _ in range(depth):
                variables = [var for value in values for var in ir.operands(value)]
                values = []
                for var in variables:
                    if var not in reached and var in bound:
                        reached[var] = bound[var]
                        values.append(reached[var])
            self._surroundings_at[index, depth] = tvm_ffi.Map(reached)
        return self._surroundings_at[index, depth]

    def _results(self, index: int) -> list[int] | None:
        """Return the bindings of the used results, which `SplitResults` puts right after it."""
        bindings = self._bindings
        binding = bindings[index]
        if not isinstance(binding.value.ty, relax.TupleType):
            return [index]
        results = [bindings.position[var] for var in bindings.users.get(binding.var, ())]
        apart = all(isinstance(bindings[at].value, relax.TupleGetItem) for at in results)
        behind = results == list(range(index + 1, index + 1 + len(results)))
        whole = not results or not isinstance(binding.var, relax.DataflowVar)
        return results if apart and behind and not whole else None

    def _make_composite(
        self,
        members: list[int],
        last: list[int],
        composition: Composition,
        parts: Mapping[str, relax.Expr],
        copies: Sequence[int] = (),
    ) -> Composite:
        results = [self._bindings[index].var for index in last]
        members = sorted({*members, *last})
        builder = ir.FunctionBuilder(self._bindings.values, self._target.options.bind_constants)

        def is_input(argument: relax.Expr) -> bool:
            spelled = bool(composition.op.emitted_by)
            return spelled and any(argument.same_as(part) for part in parts.values())

        for member in sorted([*members, *copies]):
            binding = self._bindings[member]
            value = binding.value
            if isinstance(value, relax.Call):
                first = _first_bound(value, composition, parts)
                arguments = [
                    builder.use(argument, bound=index >= first and not is_input(argument))
                    for index, argument in enumerate(items_of(value.args))
                ]
                value = with_arguments(value, arguments)
            else:
                value = relax.TupleGetItem(builder.use(value.tuple_value), value.index)
            builder.bind(binding.var, value)
        label = self._target.table.name(composition)
        function = builder.finish(results, {"Composite": f"{BACKEND}.{label}"})
        return Composite(members, composition, results, function, builder.arguments, copies)


def _first_bound(
    call: relax.Call, composition: Composition, parts: Mapping[str, relax.Expr]
) -> int:
    """Return from which argument on the constants of a call are part of the program.

    Scales, zero points and biases of integers are: the code of an integer op consists of them.
    The weights of integers are arguments where `bind_constants` is off, as those of real numbers.
    So are the numbers that spell an op without being its inputs.
    """
    if composition.op.emitted_by:
        return 0
    if not composition.kind.is_quantized:
        return len(call.args)
    if call.op.name in ("relax.quantize", "relax.dequantize"):
        return 1
    behind = "anchor" in parts and not call.same_as(parts["anchor"])
    return 0 if behind else len(call.args)


class _Reach:
    """The ops that a pattern can reach from each binding, as bit sets."""

    def __init__(self, bindings: Bindings) -> None:
        self._bit: dict[str, int] = {}
        self._own: list[int] = []
        self._sources: list[list[int]] = []
        for binding in bindings:
            value = binding.value
            name = value.op.name if ir.is_op_call(value) else ""
            self._own.append(self._bit.setdefault(name, 1 << len(self._bit)))
            positions = [bindings.position.get(operand) for operand in ir.operands(value)]
            self._sources.append([position for position in positions if position is not None])
        self._levels = [[0] * len(self._own)]

    @property
    def ops(self) -> Set[str]:
        """The ops of the block."""
        return self._bit.keys()

    def bits(self, ops: Iterable[str]) -> int:
        """Return the set of some ops of the block."""
        return sum(self._bit[op] for op in ops)

    def within(self, depth: int) -> list[int]:
        """Return the ops within a depth, by the index of the binding."""
        while len(self._levels) <= depth:
            last = self._levels[-1]
            level = []
            for bits, producers in zip(self._own, self._sources, strict=True):
                for producer in producers:
                    bits |= last[producer]
                level.append(bits)
            self._levels.append(level)
        return self._levels[depth]


@dataclass(eq=False)
class _Match:
    """The argument of a check: the fields of TVM's `PatternCheckContext`, and some more."""

    matched_expr: relax.Expr
    annotated_expr: dict[str, relax.Expr]
    matched_bindings: dict[relax.Var, relax.Expr]
    var_usages: Mapping[relax.Var, Sequence[relax.Var]]
    values: Values
    bind_constants: bool
    reasons: list[Reason] = field(default_factory=list)
