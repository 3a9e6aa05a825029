# SPDX-License-Identifier: Apache-2.0
"""The command `tune`: sizes of tiles for the kernels of a model."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from ...backend.commands.preparing import compile_prepared, prepare
from ...backend.commands.progress import steps_of
from ...backend.isa.compiler.compile import KernelDeclined
from ...backend.isa.compiler.kernels import Plan, plan_of
from ...backend.isa.compiler.tool import settings
from ...backend.isa.tuning import FILE, Record, read, table_of
from ...backend.models.files import require_file, require_writable
from ...backend.sdk.npu_region.region import Declined, Region
from ...backend.shared.backend import VENDOR
from ...backend.shared.problem import Problem, translated
from ...backend.shared.terminal import say
from .emulator import EmulatorError, own
from .tuner import Tuner, WrongValuesError, distinct_kernels


def run_tune(arguments: argparse.Namespace) -> int:
    """Run the command `tune`."""
    require_file(arguments.model)
    path = arguments.records or VENDOR / FILE
    require_writable(path)
    try:
        emulator = own()
    except EmulatorError as error:
        raise Problem(str(error)) from None
    records = translated(lambda: read(path, table_of(emulator.machine)))
    try:
        with path.open("a", encoding="utf-8") as file:

            def keep(record: Record) -> None:
                file.write(record.line)
                file.flush()

            tuner = Tuner(emulator, settings(emulator.machine), records, keep)
            found = _tuned(tuner, _plans(arguments, tuner), arguments)
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error}") from None
    cycles = [sum(row[side] * row["count"] for row in found) for side in ("before", "cycles")]
    if arguments.json:
        whole = {"records": str(path), "before": cycles[0], "cycles": cycles[1], "kernels": found}
        say(json.dumps(whole, indent=2))
        return 0
    say(f"all: {cycles[0]:,} cycles, {cycles[1]:,} as tuned; the trials are in {path}")
    if path != VENDOR / FILE:
        say(f"The compiler uses them as vendor/{FILE}.")
    return 0


def _plans(arguments: argparse.Namespace, tuner: Tuner) -> list[Plan]:
    """Return what the regions of a model are as kernels."""
    with tempfile.TemporaryDirectory() as folder, steps_of(arguments, own=1) as steps:
        arguments.option = [*arguments.option, "driver=vendor", f"sdk_folder={folder}"]
        prepared = prepare(arguments, steps)
        steps.begin("compiling")
        compile_prepared(prepared, arguments.target)
        regions: dict[str, Plan] = {}
        for place in sorted(Path(folder).glob("compile-*/")):
            region = Region.read(place)
            if region.id not in regions:
                try:
                    regions[region.id] = plan_of(region, tuner.settings.disabled)
                except Declined:
                    continue
    if not regions:
        raise Problem(
            f"No part of {arguments.model} becomes instructions: 'report' says why, and the option "
            "cache_dir must not be set."
        )
    return [*regions.values()]


def _tuned(tuner: Tuner, plans: list[Plan], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    kernels = distinct_kernels(plans)
    found: list[dict[str, Any]] = []
    for number, alone in enumerate(kernels, 1):
        where = f"{number} of {len(kernels)}: {alone.name}"
        try:
            default, best = tuner.tune(alone, arguments.trials)
        except (EmulatorError, KernelDeclined) as error:
            say(f"{where} is not tuned: {error}")
            continue
        except WrongValuesError as error:
            raise Problem(str(error)) from None
        row = {"name": alone.name, "count": alone.count, "before": default.cycles}
        found.append({**row, "cycles": best.cycles, "sizes": dict(best.sizes)})
        if not arguments.json:
            sizes = ", ".join(f"{name}={size}" for name, size in best.sizes.items())
            say(f"{where}: {default.cycles:,} cycles, {best.cycles:,} with {sizes or 'the same'}")
    return found
