# SPDX-License-Identifier: Apache-2.0
"""Cuts the NPU's part out of a model: composites, and regions of composites.

The patterns and their precedence are those registered with TVM. Fusing and merging
are done here: TVM's passes fail at a cyclic dependency, a `match_cast`, a branch or a packed call,
sometimes make two regions wait for each other, and see only the function `main`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import count
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix
from tvm.relax.dpl import (
    CallPattern,
    ExprPattern,
    OrPattern,
    TupleGetItemPattern,
    TuplePattern,
)

from . import report
from .backend import BACKEND
from .calls import Constant, resolve
from .codegen import BOUNDS_ATTRIBUTE, known_bounds, symbol_bounds
from .options import Options
from .passes import bound_values, drop_unused, is_opaque
from .patterns import escapes, label_of
from .table import Table

_log = logging.getLogger(__name__)
_TOLD = f"{BACKEND}_unknown_bounds"
"""An attribute of a module: the unknown names in `symbol_bounds` that a warning has listed."""
MOST_CUTS = 32
"""How often the regions of a block are formed again without an op that the driver takes only alone;
each time it is asked about the whole region."""


class Partitioner:
    """Partitions one module.

    Parameters
    ----------
    mod
        The canonicalized module.
    table
        The capabilities, which give the reasons.
    options
        What may go to the NPU, and the driver's settings.
    """

    def __init__(self, mod: tvm.IRModule, table: Table, options: Options) -> None:
        self.mod = mod
        self.table = table
        self.options = options
        self.bind_constants = options.bind_constants
        self._decline_reason = tvm_ffi.get_global_func(f"{BACKEND}.codegen.decline_reason")
        self._driver_options = tvm_ffi.convert(options.driver_options())
        self._driver = options.driver
        self.patterns = [_entry_of(item) for item in get_patterns_with_prefix(f"{BACKEND}.")]
        self.depth = max((entry.depth for entry in self.patterns), default=0)
        self.regions: dict[Any, Any] = {}
        self.records: list[report.OpPlacement] = []
        self.declines: list[str] = []
        self.blocks: dict[int, _Block] = {}
        self.symbols: set[str] = set()
        self.function = ""  # The current one.

    def run(self) -> tvm.IRModule:
        """Partition all functions that are not another backend's.

        Returns
        -------
        mod
            The module with regions, and with the report among its attributes.
        """
        functions = dict(self.mod.functions_items())
        own = {var: item for var, item in functions.items() if not is_opaque(item)}
        recursive = _recursive_function(functions)
        if recursive is None:
            for global_var, function in own.items():
                self._plan_function(global_var.name_hint, function)
            self._limit_regions()
            self._check_bounds()
        for global_var, function in own.items():
            self.function = global_var.name_hint
            if recursive is None:
                functions[global_var] = self._rewrite_function(function)
            else:
                self._leave(
                    function.body,
                    f"the function '{recursive}' is recursive, and TVM's RunCodegen cannot go on "
                    "from there",
                )
        if self.declines and self.options.on_decline == "error":
            raise RuntimeError(
                f"The driver of {BACKEND} declines a part of the model, which on_decline='error' "
                "forbids. " + " ".join(self.declines)
            )
        left = [item for item in self.records if item.placement == "host" and not item.bookkeeping]
        if left and self.options.strict:
            raise RuntimeError(
                f"The option 'strict' of {BACKEND} forbids that ops stay on the host, where these "
                "do: " + "; ".join(f"{item.op} ({item.name}): {item.reason}" for item in left) + "."
            )
        mod = tvm.IRModule(
            {**functions, **self.regions},
            attrs=self.mod.attrs,
            global_infos=self.mod.global_infos,
        )
        mod = drop_unused(relax.transform.Normalize()(mod))
        records = report.Report((*self._earlier_records(), *self.records))
        return mod.with_attr(report.ATTRIBUTE, records.to_json())

    def _earlier_records(self) -> tuple[report.OpPlacement, ...]:
        """Return the ops that an earlier partitioning of the module put on the NPU."""
        if self.mod.attrs is None or report.ATTRIBUTE not in self.mod.attrs:
            return ()
        return report.offload_report(self.mod).offloaded

    def _plan_function(self, name: str, function: Any) -> None:
        taken = {global_var.name_hint for global_var in self.mod.get_global_vars()}
        symbols = (f"{BACKEND}_{name}_{index}" for index in count())
        bounds = symbol_bounds(function, self.options, known_bounds(function))
        self.symbols.update(bounds)
        scope = _Scope(
            name=name,
            symbols=(symbol for symbol in symbols if symbol not in taken),
            values=bound_values(function.body),
            bounds=bounds,
        )
        self._plan_body(function.body, scope)

    def _plan_body(self, body: Any, scope: _Scope) -> None:
        for block in body.blocks:
            if isinstance(block, relax.DataflowBlock):
                planned = _Block(self, scope, list(block.bindings))
                planned.plan()
                self.blocks[id_of(block)] = planned
                continue
            for binding in block.bindings:
                if isinstance(binding.value, relax.If):
                    self._plan_body(binding.value.true_branch, scope)
                    self._plan_body(binding.value.false_branch, scope)

    def _check_bounds(self) -> None:
        """Warn about bounds without a symbol; one set of options may serve several models.

        If the model was partitioned before, only warn about new ones.
        """
        unknown = [name for name in self.options.symbol_bounds if name not in self.symbols]
        told = ", ".join(unknown)
        attributes = dict(self.mod.attrs or {})
        if told and self.symbols and attributes.get(_TOLD) != told:
            self.mod = self.mod.with_attr(_TOLD, told)
            _log.warning(
                "The option 'symbol_bounds' of %s names %s, which the model does not have; it has: "
                "%s",
                *(BACKEND, told, ", ".join(sorted(self.symbols))),
            )

    def _limit_regions(self) -> None:
        """Send all but the largest `max_regions` regions back to the host."""
        limit = self.options.max_regions
        regions = [region for block in self.blocks.values() for region in block.regions]
        regions = [region for region in regions if region.symbol]
        if not limit or len(regions) <= limit:
            return
        regions.sort(key=lambda region: region.count_operations(), reverse=True)
        for region in regions[limit:]:
            region.reason = (
                f"its region has {region.count_operations():,} operations, and max_regions, which "
                f"is {limit}, keeps the largest"
            )

    def ask_driver(self, function: Any, bounds: Mapping[str, int], finish: bool) -> str:
        """Return why the driver declines a composite or, with `finish`, a region.

        Parameters
        ----------
        function
            The composite or the region.
        bounds
            The largest value of each symbol.
        finish
            Whether it is a whole region, which the driver compiles at once.

        Returns
        -------
        reason
            A sentence; empty if the driver takes it.
        """
        return str(
            self._decline_reason(function, self._driver, self._driver_options, bounds, finish)
        )

    def _rewrite_function(self, function: Any) -> Any:
        known = len(self.regions)
        body = self._rewrite_body(function.body)
        rewritten = relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
        )
        if len(self.regions) > known and "global_symbol" not in function.attrs:
            # RunCodegen visits public functions only.
            rewritten = rewritten.with_attr("global_symbol", self.function)
        return rewritten

    def _rewrite_body(self, body: Any) -> Any:
        blocks = []
        for block in body.blocks:
            if isinstance(block, relax.DataflowBlock):
                blocks.append(relax.DataflowBlock(self.blocks[id_of(block)].rewrite()))
            else:
                blocks.append(relax.BindingBlock([self._visit(item) for item in block.bindings]))
        return relax.SeqExpr(blocks, body.body, body.span)

    def _leave(self, body: Any, reason: str) -> None:
        """Record all calls of a body, which stays on the host as it is."""
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    self._leave(value.true_branch, reason)
                    self._leave(value.false_branch, reason)
                elif isinstance(value, relax.Function):
                    self._leave(value.body, reason)
                elif isinstance(value, relax.Call):
                    self.record(binding, reason=reason)

    def leave_local(self, function: Any) -> None:
        """Record the calls in a local function, which stays on the host.

        Parameters
        ----------
        function
            The function.
        """
        self._leave(function.body, "it is inside of a local function; run LambdaLift before")

    def _visit(self, binding: Any) -> Any:
        """Rewrite a binding outside dataflow blocks: a branch, or a value with side effects."""
        value = binding.value
        if isinstance(value, relax.If):
            yes, no = self._rewrite_body(value.true_branch), self._rewrite_body(value.false_branch)
            return relax.VarBinding(binding.var, relax.If(value.cond, yes, no, value.span))
        if isinstance(value, relax.Function):
            self.leave_local(value)
        if isinstance(value, relax.Call):
            self.record(binding, reason=f"{_callee(value)} may have effects beyond its result")
        return binding

    def codegen_of(self, call: Any) -> str | None:
        """Return the backend of the called region.

        Parameters
        ----------
        call
            A call.

        Returns
        -------
        backend
            Its name; none if the callee is no region.
        """
        if not isinstance(call.op, relax.GlobalVar):
            return None
        function = self.mod[call.op]
        attrs = function.attrs if isinstance(function, relax.Function) else {}
        return str(attrs["Codegen"]) if "Codegen" in attrs else None

    def record(self, binding: Any, **where: Any) -> None:
        """Add an op to the report.

        Parameters
        ----------
        binding
            The binding of a call.
        **where
            Region and composite, or the reason why it is on the host.
        """
        call = binding.value
        if self.codegen_of(call) == BACKEND:
            return  # A region of an earlier partitioning, which reported its ops.
        self.records.append(
            report.OpPlacement(
                function=self.function,
                name=str(binding.var.name),
                op=_callee(call),
                placement="npu" if "region" in where else "host",
                bookkeeping=self._is_bookkeeping(call),
                **where,
            )
        )

    def _is_bookkeeping(self, call: Any) -> bool:
        """Whether the call itself computes nothing."""
        if isinstance(call.op, relax.GlobalVar) and not is_opaque(self.mod[call.op]):
            return True  # The callee's calls are recorded.
        return not any(isinstance(ty, relax.TensorType) for ty in _fields(call.ty))


# ---- Composites ---------------------------------------------------------------------------------


class _Entry:
    """A registered pattern, with quick tests for whether it can match at a call."""

    def __init__(self, pattern: Any) -> None:
        self.pattern = pattern
        self.label = str(pattern.name).partition(".")[2]
        self.annotations = dict(pattern.annotation_patterns.items())
        self.depth, self.needed = _extent(pattern.pattern, {})
        self.heads: dict[str, list[frozenset[str]]] = {}
        for op, arguments in _heads(pattern.pattern):
            producers = frozenset(name for item in arguments for name, _ in _heads(item))
            self.heads.setdefault(op, []).append(producers)

    def may_match(self, op: str, producers: set[str]) -> bool:
        return any(not known or known & producers for known in self.heads.get(op, ()))


@cache
def _entry_of(pattern: Any) -> _Entry:
    return _Entry(pattern)


def _heads(pattern: Any) -> list[tuple[str, list[Any]]]:
    """Return the ops that a pattern may end in, each with the patterns of its arguments."""
    if isinstance(pattern, OrPattern):
        return _heads(pattern.left) + _heads(pattern.right)
    if isinstance(pattern, CallPattern) and isinstance(pattern.op, ExprPattern):
        return [(str(pattern.op.expr.name), list(pattern.args))]
    return []


def _extent(
    pattern: Any, known: dict[int, tuple[int, frozenset[str]]]
) -> tuple[int, frozenset[str]]:
    """Return the depth of a pattern in calls, and the ops that every match contains.

    `known` memoizes the results: a pattern is a DAG with too many paths to walk.
    """
    key = id_of(pattern)
    if key not in known:
        depth, needed = 0, frozenset[str]()
        if isinstance(pattern, OrPattern):
            left, right = _extent(pattern.left, known), _extent(pattern.right, known)
            depth, needed = max(left[0], right[0]), left[1] & right[1]
        elif isinstance(pattern, CallPattern | TuplePattern | TupleGetItemPattern):
            inside = (
                list(pattern.args)
                if isinstance(pattern, CallPattern)
                else list(pattern.fields)
                if isinstance(pattern, TuplePattern)
                else [pattern.tuple]
            )
            parts = [_extent(item, known) for item in inside]
            depth = 1 + max((part[0] for part in parts), default=0)
            needed = needed.union(*(part[1] for part in parts))
            if isinstance(pattern, CallPattern) and isinstance(pattern.op, ExprPattern):
                needed |= {str(pattern.op.expr.name)}
        known[key] = depth, needed
    return known[key]


@dataclass(eq=False)
class _Match:
    """The argument of a check: the fields of TVM's `PatternCheckContext`, and some more."""

    matched_expr: Any
    annotated_expr: dict[str, Any]
    matched_bindings: dict[Any, Any]
    var_usages: Mapping[Any, Sequence[Any]]
    values: Mapping[Any, Any]
    bind_constants: bool
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Scope:
    """Data shared by the blocks of one function of the model."""

    name: str
    symbols: Iterator[str]
    """Unused names for regions."""
    values: Mapping[Any, Any]
    """Values by variable."""
    bounds: Mapping[str, int]
    """The largest value of each symbol, by name."""


@dataclass(eq=False)
class _Unit:
    """The unit of placement: a composite on the NPU, or one binding on the host."""

    members: list[int]
    label: str = ""
    results: list[Any] = field(default_factory=list)
    function: Any = None
    arguments: list[Any] = field(default_factory=list)
    phase: int = 0
    sources: list[_Unit] = field(default_factory=list)
    users: list[_Unit] = field(default_factory=list)
    region: _Unit | None = None

    @property
    def on_npu(self) -> bool:
        return self.function is not None

    def root(self) -> _Unit:
        """Return the representative of the unit's region (union-find)."""
        unit = self
        while unit.region is not None:
            if unit.region.region is not None:
                unit.region = unit.region.region
            unit = unit.region
        return unit

    def part(self) -> None:
        """Disconnect it from all units."""
        self.phase, self.sources, self.users, self.region = 0, [], [], None


@dataclass(eq=False)
class _Region:
    """NPU units that run in one call."""

    units: list[_Unit]
    outputs: list[Any]
    function: Any
    arguments: list[Any]
    calls: list[Any]
    """The calls of Relax ops in it."""
    count_operations: Callable[[], int]
    symbol: str = ""
    reason: str = ""
    """Why it goes back to the host."""
    declined: str = ""
    """The driver's reason, if the driver declined it."""


class _FunctionBuilder:
    """Builds a function from bindings; outer variables become parameters."""

    def __init__(self, values: Mapping[Any, Any], bind_constants: bool) -> None:
        self.arguments: list[Any] = []
        self._values = values
        self._bind_constants = bind_constants
        self._parameters: list[Any] = []
        self._inside: dict[int, Any] = {}
        self._bindings: list[Any] = []

    def use(self, expr: Any) -> Any:
        """Translate an outer expression for use in the function."""
        expr = resolve(expr, self._values)
        if id_of(expr) in self._inside:
            return self._inside[id_of(expr)]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.use(item) for item in expr.fields])
        is_argument = isinstance(expr, relax.Var) and not isinstance(expr.ty, tvm.ir.PrimType)
        if is_argument or (isinstance(expr, Constant) and not self._bind_constants):
            name = expr.name if is_argument else f"constant{len(self.arguments)}"
            inside = relax.Var(name, expr.ty)
            self._inside[id_of(expr)] = inside
            self._parameters.append(inside)
            self.arguments.append(expr)
            return inside
        return expr

    def bind(self, var: Any, value: Any) -> None:
        """Add a binding of a translated value."""
        inside = relax.Var(var.name, var.ty)
        self._inside[id_of(var)] = inside
        self._bindings.append(relax.VarBinding(inside, value))

    def finish(self, outputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Return the function; several outputs are returned as a tuple."""
        results = [self._inside[id_of(var)] for var in outputs]
        result = results[0] if len(results) == 1 else relax.Tuple(results)
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        ret_ty = _tuple_type([var.ty for var in outputs])
        attrs = tvm.ir.DictAttrs(dict(attributes))
        function = relax.Function(self._parameters, body, ret_ty, True, attrs)
        free = list(relax.analysis.free_symbolic_vars(function))
        if free:
            # Symbols that no parameter's shape defines are passed as a shape.
            self._parameters.append(relax.Var("symbols", relax.ShapeType(free)))
            self.arguments.append(relax.ShapeExpr(free))
            function = relax.Function(self._parameters, body, ret_ty, True, attrs)
        if any(relax.analysis.tir_vars_in_type(item.ty) for item in self._parameters):
            # Functions must not share symbols.
            function = relax.utils.copy_with_new_vars(function)
        return function


class _Block:
    """Plans and rewrites one dataflow block."""

    def __init__(self, owner: Partitioner, scope: _Scope, bindings: list[Any]) -> None:
        self.owner = owner
        self.scope = scope
        self.bindings = bindings
        self.values = scope.values
        self.position = {binding.var: index for index, binding in enumerate(bindings)}
        self.position_of_value = {
            id_of(binding.value): index for index, binding in enumerate(bindings)
        }
        self.users: dict[Any, list[Any]] = {}
        for binding in bindings:
            for var in relax.analysis.free_vars(binding.value):
                self.users.setdefault(var, []).append(binding.var)
        self.op_bits: dict[str, int] = {}
        self.unit_of: dict[int, _Unit] = {}
        self.readers: dict[Any, list[_Unit]] = {}
        self.declined: dict[int, str] = {}
        self.notes: dict[int, list[str]] = {}
        self.surroundings: dict[tuple[int, int], Any] = {}
        self.answers: dict[tuple[int, ...], str] = {}
        self.cuts = 0
        self.groups: list[list[_Unit]] = []
        self.regions: list[_Region] = []

    def plan(self) -> None:
        """Form regions, and decide which of them stay on the host."""
        self._select_composites()
        while True:
            units = self._link_units()
            _assign_phases(units, self.bindings, self.owner.options.merge_regions)
            groups: dict[_Unit, list[_Unit]] = {}
            for unit in units:
                groups.setdefault(unit.root(), []).append(unit)
            order = sorted(
                groups.values(), key=lambda group: (group[0].phase, group[0].members[-1])
            )
            self.groups = order
            self.regions = [self._make_region(group) for group in order if group[0].on_npu]
            # If the driver declines a region because of some composites, form regions without them.
            if not any([self._part(region) for region in self.regions]):
                break
        for region in self.regions:
            if region.function is not None and not region.reason:
                region.symbol = next(self.scope.symbols)

    def _select_composites(self) -> None:
        by_op: dict[str, list[tuple[int, set[str]]]] = {}
        for index, binding in enumerate(self.bindings):
            value = binding.value
            if isinstance(binding, relax.VarBinding) and _is_op_call(value):
                sources: list[Any] = [self.values.get(item) for item in _operands(value)]
                names = {item.op.name for item in sources if _is_op_call(item)}
                by_op.setdefault(value.op.name, []).append((index, names))
        within_reach = self._ops_within_reach()
        for entry in self.owner.patterns:
            if not entry.needed <= by_op.keys():
                continue
            near = within_reach[entry.depth]
            needed = sum(self.op_bits[op] for op in entry.needed)
            for op in entry.heads:
                for index, producers in by_op.get(op, ()):
                    if (
                        near[index] & needed == needed
                        and index not in self.unit_of
                        and entry.may_match(op, producers)
                    ):
                        self._try(entry, index)

    def _ops_within_reach(self) -> list[list[int]]:
        """Return the ops within each depth of each binding, as bit sets."""
        own, sources = [], []
        for binding in self.bindings:
            value = binding.value
            name = value.op.name if _is_op_call(value) else ""
            own.append(self.op_bits.setdefault(name, 1 << len(self.op_bits)))
            positions = [self.position.get(item) for item in _operands(value)]
            sources.append([item for item in positions if item is not None])
        levels = [[0] * len(own)]
        for _ in range(self.owner.depth):
            last = levels[-1]
            level = []
            for bits, producers in zip(own, sources, strict=True):
                for producer in producers:
                    bits |= last[producer]
                level.append(bits)
            levels.append(level)
        return levels

    def _try(self, entry: _Entry, index: int) -> None:
        """Make a composite if the pattern matches at this binding."""
        call = self.bindings[index].value
        surroundings = self._surroundings(index, entry.depth)
        matched = entry.pattern.pattern.extract_matched_expr(call, surroundings)
        if matched is None:
            return
        members = []
        for pattern, expr in matched.items():
            if isinstance(pattern, CallPattern):
                member = self.position_of_value.get(id_of(expr))
                if member is None or member in self.unit_of:
                    return
                members.append(member)
        members = sorted(set(members))
        match = _Match(
            matched_expr=call,
            annotated_expr={
                name: matched[pattern]
                for name, pattern in entry.annotations.items()
                if pattern in matched
            },
            matched_bindings={
                self.bindings[member].var: self.bindings[member].value for member in members
            },
            var_usages=self.users,
            values=self.values,
            bind_constants=self.owner.bind_constants,
        )
        check = entry.pattern.check
        if (check is not None and not check(match)) or escapes(match) is not None:
            if len(members) > 1:
                self.notes.setdefault(index, []).extend(match.reasons)
            return
        results = self._results(index)
        if results is None:
            self.notes.setdefault(index, []).append("its results are used as a tuple")
            return
        label = label_of(entry.label, match.annotated_expr, self.owner.table)
        unit = self._make_unit(members, results, label)
        reason = self.owner.ask_driver(unit.function, self.scope.bounds, False)
        if reason:
            self.declined[index] = reason
        else:
            self.unit_of.update((member, unit) for member in unit.members)

    def _surroundings(self, index: int, depth: int) -> Any:
        """Return the values that a pattern can reach from a binding, by variable.

        The matcher copies its map: with all bindings, matching would be quadratic.
        """
        if (index, depth) not in self.surroundings:
            reached: dict[Any, Any] = {}
            values = [self.bindings[index].value]
            for _ in range(depth):
                variables = [var for value in values for var in _operands(value)]
                values = []
                for var in variables:
                    if var not in reached and var in self.values:
                        reached[var] = self.values[var]
                        values.append(reached[var])
            self.surroundings[index, depth] = tvm_ffi.Map(reached)
        return self.surroundings[index, depth]

    def _results(self, index: int) -> list[int] | None:
        """Return the bindings of the used results, which `SplitResults` puts right behind."""
        binding = self.bindings[index]
        if not isinstance(binding.value.ty, relax.TupleType):
            return [index]
        results = [self.position[var] for var in self.users.get(binding.var, ())]
        apart = all(isinstance(self.bindings[at].value, relax.TupleGetItem) for at in results)
        behind = results == list(range(index + 1, index + 1 + len(results)))
        whole = not results or not isinstance(binding.var, relax.DataflowVar)
        return results if apart and behind and not whole else None

    def _make_unit(self, members: list[int], last: list[int], label: str) -> _Unit:
        results = [self.bindings[index].var for index in last]
        members = sorted({*members, *last})
        builder = _FunctionBuilder(self.values, self.owner.bind_constants)
        for member in members:
            binding = self.bindings[member]
            value = binding.value
            if isinstance(value, relax.Call):
                value = _with_arguments(value, [builder.use(item) for item in value.args])
            else:
                value = relax.TupleGetItem(builder.use(value.tuple_value), value.index)
            builder.bind(binding.var, value)
        function = builder.finish(results, {"Composite": f"{BACKEND}.{label}"})
        return _Unit(members, label, results, function, builder.arguments)

    # ---- Regions ----

    def _link_units(self) -> list[_Unit]:
        """Return the units of the block in order, linked to the units they depend on."""
        self.unit_of = {index: unit for index, unit in self.unit_of.items() if unit.on_npu}
        for unit in self.unit_of.values():
            unit.part()
        units = []
        self.readers = {}
        for index in range(len(self.bindings)):
            unit = self.unit_of.setdefault(index, _Unit([index]))
            if unit.members[-1] != index or self._is_dead_tuple(index):
                continue
            units.append(unit)
            if unit.on_npu:
                used = [var for item in unit.arguments for var in relax.analysis.free_vars(item)]
            else:
                used = list(relax.analysis.free_vars(self.bindings[index].value))
            for var in used:
                self.readers.setdefault(var, []).append(unit)
            producers = (self.unit_of[self.position[var]] for var in used if var in self.position)
            unit.sources = list(dict.fromkeys(producers))
            for source in unit.sources:
                source.users.append(unit)
        return units

    def _is_dead_tuple(self, index: int) -> bool:
        """Whether only NPU units, which resolve it, read a tuple, constant or shape."""
        binding = self.bindings[index]
        if not isinstance(binding.var, relax.DataflowVar):
            return False
        if not isinstance(binding.value, (relax.Tuple, Constant, relax.ShapeExpr)):
            return False
        users = self.users.get(binding.var, [])
        units = (self.unit_of.get(self.position[user]) for user in users)
        return all(unit is not None and unit.on_npu for unit in units)

    def _make_region(self, group: list[_Unit]) -> _Region:
        """Make a region of units; without outputs, it has no function."""
        root = group[0].root()
        outputs = [
            var
            for unit in group
            for var in unit.results
            if any(reader.root() is not root for reader in self.readers.get(var, ()))
            or not isinstance(var, relax.DataflowVar)
        ]
        return self._region_of(group, outputs)

    def _region_of(self, units: list[_Unit], outputs: list[Any]) -> _Region:
        builder = _FunctionBuilder(self.values, self.owner.bind_constants)
        for number, unit in enumerate(units):
            ret_ty = _tuple_type([var.ty for var in unit.results])
            callee = relax.Var(f"composite{number}", unit.function.ty)
            arguments = [builder.use(item) for item in unit.arguments]
            builder.bind(callee, unit.function)
            call = tvm.ir.Call(builder.use(callee), arguments, ret_ty=ret_ty)
            if len(unit.results) == 1:
                builder.bind(unit.results[0], call)
                continue
            fields = relax.Var(f"results{number}", ret_ty)
            builder.bind(fields, call)
            for index, var in enumerate(unit.results):
                builder.bind(var, relax.TupleGetItem(builder.use(fields), index))
        attributes = {"Codegen": BACKEND, "global_symbol": self.scope.name}
        function = builder.finish(outputs, attributes) if outputs else None
        values = [self.bindings[member].value for unit in units for member in unit.members]
        calls = [value for value in values if isinstance(value, relax.Call)]

        def count_operations() -> int:
            table, bounds = self.owner.table, self.scope.bounds
            return sum(table.count_operations(call, self.values, bounds) for call in calls)

        return _Region(units, outputs, function, builder.arguments, calls, count_operations)

    def _part(self, region: _Region) -> bool:
        """Note why a region is refused; return whether it lost some of its units."""
        if region.function is None:
            return False
        count, least = len(region.calls), self.owner.options.min_region_ops
        if count < least:
            ops = "1 op" if count == 1 else f"{count} ops"
            region.reason = f"its region has {ops}; min_region_ops is {least}"
            return False
        declined = self._ask(region)
        if not declined:
            return False
        causes = self._causes_of(declined, region.units) if len(region.units) > 1 else {}
        for unit, reason in causes.items():
            for member in unit.members:
                self.declined[member] = reason
                del self.unit_of[member]
        region.declined = declined
        region.reason = f"the driver declines the region: {declined}"
        return bool(causes)

    def _causes_of(self, declined: str, units: list[_Unit]) -> dict[_Unit, str]:
        """Return the units because of which the driver declines a region, each with its reason.

        They are those that it declines alone; if there are none, the one that its sentence names.
        """
        alone = {unit: self._ask(self._region_of([unit], unit.results)) for unit in units}
        causes = {unit: reason for unit, reason in alone.items() if reason}
        if causes or self.cuts == MOST_CUTS:
            return causes
        named: dict[int, _Unit] = {}
        for unit in reversed(units):
            for member in unit.members:
                binding = self.bindings[member]
                if isinstance(binding.value, relax.Call) and _label(binding) in declined:
                    named[declined.index(_label(binding))] = unit
        if not named:
            return {}
        self.cuts += 1
        return {named[min(named)]: declined}

    def _ask(self, region: _Region) -> str:
        key = tuple(member for unit in region.units for member in unit.members)
        if key not in self.answers:
            reason = self.owner.ask_driver(region.function, self.scope.bounds, True)
            self.answers[key] = reason.removeprefix(f"the region {self.scope.name}: ")
        return self.answers[key]

    def rewrite(self) -> list[Any]:
        """Return the bindings, with regions replaced by calls."""
        result: list[Any] = []
        where: dict[int, dict[str, Any]] = {}
        regions = iter(self.regions)
        for group in self.groups:
            if not group[0].on_npu:
                index = group[0].members[0]
                value = self.bindings[index].value
                result.append(self.bindings[index])
                if isinstance(value, relax.Function):
                    self.owner.leave_local(value)
                if isinstance(value, relax.Call):
                    where[index] = {"reason": self._reason(index)}
                continue
            region = next(regions)
            result += self._call_region(region)
            for unit in group:
                for member in unit.members:
                    if region.declined:
                        self._note_decline(member, region.declined)
                    if region.reason:
                        where[member] = {"reason": region.reason}
                    else:
                        where[member] = {"region": region.symbol, "composite": unit.label}
        for index, binding in enumerate(self.bindings):
            if index in where and isinstance(binding.value, relax.Call):
                self.owner.record(binding, **where[index])
        return result

    def _call_region(self, region: _Region) -> list[Any]:
        """Make a region a function of the module, and return the bindings that call it."""
        if region.reason:
            return [item for unit in region.units for item in self._on_host(unit)]
        if region.function is None:
            return []
        function = region.function.with_attr("global_symbol", region.symbol)
        bounds = symbol_bounds(function, self.owner.options, self.scope.bounds)
        # Leave default bounds open: RunCodegen's options may still set them.
        known = {name: bound for name, bound in bounds.items() if bound != Options.symbol_bound}
        if known:
            function = function.with_attr(BOUNDS_ATTRIBUTE, known)
        global_var = relax.GlobalVar(region.symbol)
        relax.expr._update_type(global_var, function.ty)
        self.owner.regions[global_var] = function
        ret_ty = _tuple_type([var.ty for var in region.outputs])
        call = tvm.ir.Call(global_var, region.arguments, ret_ty=ret_ty)
        if len(region.outputs) == 1:
            return [relax.VarBinding(region.outputs[0], call)]
        results = relax.DataflowVar(region.symbol, ret_ty)
        fields = [
            relax.VarBinding(var, relax.TupleGetItem(results, index))
            for index, var in enumerate(region.outputs)
        ]
        return [relax.VarBinding(results, call), *fields]

    def _on_host(self, unit: _Unit) -> Iterator[Any]:
        """Generate the bindings of a unit that stays on the host."""
        for member in unit.members:
            binding = self.bindings[member]
            value = binding.value
            if isinstance(value, relax.Call):
                value = _with_arguments(value, [resolve(item, self.values) for item in value.args])
            yield relax.VarBinding(binding.var, value)

    # ---- Reasons ----

    def _reason(self, index: int) -> str:
        """Return why a call is on the host."""
        call = self.bindings[index].value
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir":
            return f"it calls the kernel '{call.args[0].name_hint}': the importer has lowered it"
        if not _is_op_call(call):
            backend = self.owner.codegen_of(call)
            if backend is not None:
                return f"it is a region of {backend}"
            return f"it calls {_callee(call)}, which is no Relax op"
        if index in self.declined:
            self._note_decline(index, self.declined[index])
            return f"the driver declines it: {self.declined[index]}"
        reason = self.owner.table.refusal(
            call, self.values, bind_constants=self.owner.bind_constants, asked_later=True
        )
        notes = "; ".join(dict.fromkeys(self.notes.get(index, ())))
        if reason is None:
            return notes or "no pattern matches it"
        return f"{reason} (behind another op: {notes})" if notes else reason

    def _note_decline(self, index: int, reason: str) -> None:
        binding = self.bindings[index]
        if isinstance(binding.value, relax.Call):
            who = f"{_label(binding)}: "
            self.owner.declines.append(who + reason.removeprefix(who).rstrip(".") + ".")


def _assign_phases(units: list[_Unit], bindings: list[Any], merge: bool) -> None:
    """Assign a phase to each unit; connected NPU units of one phase become one region.

    Without `merge`, each is a region of its own.

    A host unit runs in a later phase than the NPU units that it reads, and vice versa, so that two
    regions never wait for each other. Linear in the size of the graph.
    """
    first = latest = 0
    for unit in units:
        unit.phase = first
        for source in unit.sources:
            unit.phase = max(unit.phase, source.phase + (source.on_npu != unit.on_npu))
        latest = max(latest, unit.phase)
        if isinstance(bindings[unit.members[0]], relax.MatchCast):
            # It defines symbols for the shapes that follow.
            unit.phase = latest + 1
            first = latest = unit.phase + 1
    for unit in reversed(units):
        # Delay a unit to the phase of its earliest users.
        if unit.on_npu and unit.users:
            last = min(user.phase - (not user.on_npu) for user in unit.users)
            if any(user.on_npu and user.phase == last for user in unit.users):
                unit.phase = max(unit.phase, last)
    for unit in units if merge else []:
        for source in unit.sources:
            if unit.on_npu and source.on_npu and unit.phase == source.phase:
                one, other = unit.root(), source.root()
                if one is not other:
                    one.region = other


# ---- Helpers ------------------------------------------------------------------------------------


def id_of(expr: Any) -> int:
    """Return the identity of an IR node.

    Parameters
    ----------
    expr
        A node; `==` on nodes would build a comparison.

    Returns
    -------
    identity
        A number.
    """
    return hash(expr)


def _operands(expr: Any) -> list[Any]:
    """Return the variables that an expression reads, except inside functions."""
    if isinstance(expr, relax.Call):
        return [var for item in expr.args for var in _operands(item)]
    if isinstance(expr, relax.Tuple):
        return [var for item in expr.fields for var in _operands(item)]
    if isinstance(expr, relax.TupleGetItem):
        return _operands(expr.tuple_value)
    return [expr] if isinstance(expr, relax.Var) else []


def _is_op_call(expr: Any) -> bool:
    return isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)


def _recursive_function(functions: Mapping[Any, Any]) -> str | None:
    """Return the name of a function that calls itself, directly or not."""
    calls = {
        global_var: [var for var in relax.analysis.all_global_vars(function) if var in functions]
        for global_var, function in functions.items()
        if isinstance(function, relax.Function)
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        return str(error.args[1][0].name_hint)
    return None


def _callee(call: Any) -> str:
    for name in ("name", "name_hint", "global_symbol"):
        if hasattr(call.op, name):
            return str(getattr(call.op, name))
    return "a function"


def _label(binding: Any) -> str:
    """Return what codegen and the driver call an op in their messages."""
    return f"{_callee(binding.value)} ({binding.var.name})"


def _with_arguments(call: Any, arguments: list[Any]) -> Any:
    return tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)


def _fields(ty: Any) -> list[Any]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _tuple_type(types: list[Any]) -> Any:
    return types[0] if len(types) == 1 else relax.TupleType(types)
