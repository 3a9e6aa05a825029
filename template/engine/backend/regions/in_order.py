# SPDX-License-Identifier: Apache-2.0
"""Partitions a module for several drivers: each takes what those before it leave."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import tvm

from ..report.report import ATTRIBUTE, OpPlacement, Report, offload_report
from ..settings.driver_options import ATTRIBUTE as DRIVER
from ..settings.driver_options import DRIVERS
from ..settings.options import Options
from ..table.table import Table
from .block import Recorder
from .partitioner import Partitioner


def partition_in_order(
    mod: tvm.IRModule, table: Table, options: Options, recorder: Recorder | None = None
) -> tvm.IRModule:
    """Partition a canonicalized module for the drivers in the options."""
    if len(options.drivers) == 1:
        return Partitioner(mod, table, options, recorder).run()
    before, earlier = Report(()), ""
    for driver in options.drivers:
        turn = options.for_driver(driver)
        if driver != options.drivers[-1]:
            # The next driver may take what this one leaves.
            turn = replace(turn, strict=False, on_decline="host")
        known = {var.name_hint for var in mod.get_global_vars()}
        takes_samples = DRIVERS[driver]["takes_samples"]
        mod = Partitioner(mod, table, turn, recorder if takes_samples else None).run()
        before = _joined(before, earlier, offload_report(mod), driver, known)
        mod = _with_driver(mod, driver, known).with_attr(ATTRIBUTE, before.to_json())
        earlier = driver
    return mod


def _with_driver(mod: tvm.IRModule, driver: str, known: Set[str]) -> tvm.IRModule:
    """Let new regions name their driver."""
    functions = dict(mod.functions_items())
    for var, function in functions.items():
        if var.name_hint not in known and "Codegen" in (function.attrs or {}):
            functions[var] = function.with_attr(DRIVER, driver)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _joined(before: Report, earlier: str, now: Report, driver: str, known: Set[str]) -> Report:
    """Return a report that tells the drivers of new regions, and why earlier drivers left ops.

    `before`: the report of the turn of the driver `earlier`.
    """
    places = {(op.function, op.name): place for place, op in enumerate(before.ops)}
    at = [places.get((op.function, op.name), len(places)) for op in now.ops]
    order = sorted(range(len(at)), key=at.__getitem__)  # That of the model.
    moved = {place: new for new, place in enumerate(order)}
    ops = [
        replace(
            _left(op, before.ops[at[place]], earlier) if at[place] < len(places) else op,
            reads=tuple(moved[read] for read in op.reads),
        )
        for place, op in ((place, now.ops[place]) for place in order)
    ]
    first: dict[str | None, int] = {}
    for place, op in enumerate(ops):
        first.setdefault(op.region, place)
    regions = [
        region if region.symbol in known else replace(region, driver=driver)
        for region in now.regions
    ]
    regions.sort(key=lambda region: first.get(region.symbol, len(ops)))
    return replace(now, ops=tuple(ops), regions=tuple(regions))


def _left(op: OpPlacement, before: OpPlacement, earlier: str) -> OpPlacement:
    """Return an op with the reason for which the earlier driver left it."""
    left_by = dict(before.left_by)
    if before.reason and not before.bookkeeping and before.reason != op.reason:
        left_by[earlier] = f"[{before.code}] {before.reason}"
    return replace(op, left_by=left_by)
