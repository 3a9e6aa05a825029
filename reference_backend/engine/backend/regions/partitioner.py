# SPDX-License-Identifier: Apache-2.0
"""Partitions the functions of a module."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import count

import tvm
from tvm import relax

from ..ir.origins import is_named
from ..ir.run_time_sizes import computed_bounds
from ..passes import bound_values, drop_unused, is_opaque
from ..report import report
from ..report.report_text import advice
from ..settings.options import Options
from ..settings.symbols import known_bounds, symbol_bounds
from ..shared.backend import BACKEND
from ..table.reasons import Code, Reason
from ..table.table import Table
from . import ir
from .block import Block, Recorder, Scope
from .composites import Target
from .records import Records

_log = logging.getLogger(__name__)
_TOLD = f"{BACKEND}_unknown_bounds"
"""An attribute of a module: the unknown names in `symbol_bounds` that a warning has listed."""


class Partitioner:
    """Partitions one module, which is canonicalized."""

    def __init__(
        self, mod: tvm.IRModule, table: Table, options: Options, recorder: Recorder | None = None
    ) -> None:
        self._mod = mod
        self._options = options
        self._recorder = recorder
        self._target = Target(table, options)
        self._records = Records(mod)
        self._blocks: dict[int, Block] = {}
        self._regions: dict[relax.GlobalVar, relax.Function] = {}
        self._symbols: set[str] = set()
        self._bounds: dict[str, dict[str, int]] = {}  # By function.
        self._taken = {global_var.name_hint for global_var in mod.get_global_vars()}

    def run(self) -> tvm.IRModule:
        """Partition all functions that are not another backend's."""
        functions = dict(self._mod.functions_items())
        own = {var: function for var, function in functions.items() if not is_opaque(function)}
        recursive = _recursive_function(functions)
        if recursive is None:
            for global_var, function in own.items():
                self._plan_function(global_var.name_hint, function)
            self._limit_regions()
            self._check_bounds()
        for global_var, function in own.items():
            name = global_var.name_hint
            self._records.enter(name, function, self._bounds.get(name, {}))
            if recursive is None:
                functions[global_var] = self._rewrite_function(function)
            else:
                why = (
                    f"the function '{recursive}' is recursive, and TVM's RunCodegen cannot go on "
                    "from there"
                )
                self._records.add_body(function.body, Reason(Code.RECURSION, why))
        self._warn_of_unknown_names()
        self._raise_for_host()
        functions.update(self._regions)
        mod = tvm.IRModule(functions, attrs=self._mod.attrs, global_infos=self._mod.global_infos)
        mod = drop_unused(relax.transform.Normalize()(mod))
        return mod.with_attr(report.ATTRIBUTE, self._records.report().to_json())

    def _warn_of_unknown_names(self) -> None:
        """Warn about options that name no op, unless the model was partitioned before."""
        if report.ATTRIBUTE in dict(self._mod.attrs or {}):
            return
        ops = self._records.ops
        names = {op.title for op in ops} | {op.op.removeprefix("relax.") for op in ops}
        for option in ("keep_on_host", "strict_except"):
            for name in getattr(self._options, option):
                if any(is_named([name], op.op, op.name, op.origin) for op in ops):
                    continue
                close = get_close_matches(name, sorted(names))
                _log.warning(
                    "The option '%s' of %s names '%s', which no op of the model is called%s",
                    *(option, BACKEND, name),
                    f"; did you mean {' or '.join(map(repr, close))}?" if close else ".",
                )

    def _raise_for_host(self) -> None:
        declines = self._records.declines
        left = self._records.on_host(self._options.strict_except) if self._options.strict else []
        if declines and self._options.on_decline == "error":
            raise RuntimeError(
                f"The driver of {BACKEND} declines a part of the model, which on_decline='error' "
                "forbids. " + " ".join(declines)
            )
        if left:
            lines = [f"{op.op} ({op.title}): {op.reason} [{op.code}]" for op in left]
            count = f"{len(left)} does" if len(left) == 1 else f"{len(left)} do"
            lines += advice(left)
            raise RuntimeError(
                f"The option 'strict' of {BACKEND} forbids that ops stay on the host, where "
                f"{count}; 'strict_except' can name exceptions.\n  " + "\n  ".join(lines)
            )

    # ---- Planning ----

    def _plan_function(self, name: str, function: relax.Function) -> None:
        symbols = (f"{BACKEND}_{name}_{index}" for index in count())
        outer = known_bounds(function)
        bounds = symbol_bounds(function, self._options, outer)
        self._symbols.update(bounds)
        values = bound_values(function.body)
        computed = computed_bounds(function, values, bounds)
        for symbol in computed.keys() - {*outer, *self._options.symbol_bounds}:
            del bounds[symbol]
            most = computed[symbol]
            if most is not None:
                bounds[symbol] = most
        self._bounds[name] = bounds
        scope = Scope(
            name=name,
            symbols=(symbol for symbol in symbols if symbol not in self._taken),
            values=values,
            bounds=bounds,
            computed=frozenset(computed),
            recorder=self._recorder if name == "main" else None,
        )
        self._plan_body(function.body, scope)

    def _plan_body(self, body: relax.SeqExpr, scope: Scope) -> None:
        for block in body.blocks:
            if isinstance(block, relax.DataflowBlock):
                planned = Block(self._target, self._records, scope, list(block.bindings))
                planned.plan()
                self._blocks[ir.id_of(block)] = planned
                continue
            for binding in block.bindings:
                if isinstance(binding.value, relax.If):
                    self._plan_body(binding.value.true_branch, scope)
                    self._plan_body(binding.value.false_branch, scope)

    def _check_bounds(self) -> None:
        """Warn about bounds without a symbol; one set of options may serve several models.

        If the model was partitioned before, only warn about new ones.
        """
        unknown = [name for name in self._options.symbol_bounds if name not in self._symbols]
        told = ", ".join(unknown)
        attributes = dict(self._mod.attrs or {})
        if told and self._symbols and attributes.get(_TOLD) != told:
            self._mod = self._mod.with_attr(_TOLD, told)
            _log.warning(
                "The option 'symbol_bounds' of %s names %s, which the model does not have; it has: "
                "%s",
                *(BACKEND, told, ", ".join(sorted(self._symbols))),
            )

    def _limit_regions(self) -> None:
        """Send all but the largest `max_regions` regions back to the host."""
        limit = self._options.max_regions
        regions = [region for block in self._blocks.values() for region in block.regions]
        regions = [region for region in regions if region.symbol]
        if not limit or len(regions) <= limit:
            return
        regions.sort(key=lambda region: region.count_operations(), reverse=True)
        for region in regions[limit:]:
            count = region.count_operations()
            region.reason = Reason(
                Code.MAX_REGIONS,
                f"its region has {count:,} operations, and max_regions, which is {limit}, keeps "
                "the largest",
            )

    # ---- Rewriting ----

    def _rewrite_function(self, function: relax.Function) -> relax.Function:
        before = len(self._regions)
        body = self._rewrite_body(function.body)
        rewritten = relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
        )
        if len(self._regions) > before and "global_symbol" not in function.attrs:
            # RunCodegen visits public functions only.
            rewritten = rewritten.with_attr("global_symbol", self._records.function)
        return rewritten

    def _rewrite_body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        blocks = []
        for block in body.blocks:
            if isinstance(block, relax.DataflowBlock):
                planned = self._blocks[ir.id_of(block)]
                blocks.append(relax.DataflowBlock(planned.rewrite()))
                self._regions.update(planned.functions)
            else:
                blocks.append(relax.BindingBlock([self._visit(item) for item in block.bindings]))
        return relax.SeqExpr(blocks, body.body, body.span)

    def _visit(self, binding: relax.Binding) -> relax.Binding:
        """Rewrite a binding outside dataflow blocks: a branch, or a value with side effects."""
        value = binding.value
        if isinstance(value, relax.If):
            yes, no = self._rewrite_body(value.true_branch), self._rewrite_body(value.false_branch)
            self._records.add_branch(binding)
            return relax.VarBinding(binding.var, relax.If(value.cond, yes, no, value.span))
        if isinstance(value, relax.Function):
            self._records.add_local(value)
        if isinstance(value, relax.Call):
            reason = self._records.no_op(value) or Reason(
                Code.EFFECTS, f"{ir.callee(value)} may have effects beyond its result"
            )
            self._records.add(binding, {"reason": reason})
        return binding


def _recursive_function(functions: Mapping[relax.GlobalVar, tvm.ir.BaseFunc]) -> str | None:
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
