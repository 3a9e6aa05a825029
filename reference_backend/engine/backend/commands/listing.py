# SPDX-License-Identifier: Apache-2.0
"""The commands that list: options, limits of ops, and what is in a library."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import loading
from ..loading import needs_compiler
from ..shared.backend import NOT_SELECTED, PACKAGE
from ..shared.messages import printable
from ..shared.problem import Problem, translated
from ..shared.terminal import say
from ..table.limits import WHERE, text_of

if TYPE_CHECKING:
    from ..compiling.artifacts import Artifact


def show_limits(ops: list[str], as_json: bool) -> None:
    """Print the lines of `vendor/capabilities.py` that record the engine's limits of ops.

    `ops`: their names; none: all ops that are not recorded yet.
    `as_json`: whether to print JSON: the lines by the names of the ops.
    """
    needs_compiler("The list of limits")
    from ..table.patterns import TABLE

    lines: dict[str, str] = {}
    for name in ops or TABLE.unrecorded:
        op = TABLE.engine_entry(name)
        if op is None:
            near = difflib.get_close_matches(name, [item.name for item in TABLE.ops], 1)
            where = f"Did you mean '{near[0]}'? " if near else ""
            if name in NOT_SELECTED.values():
                where = "The catalogue has it: select it by an update. "
            raise Problem(
                f"This backend has no op '{name}'. {where}'python -m {PACKAGE} check' lists all."
            )
        lines[name] = text_of(op)
    for text in [json.dumps(lines, indent=2)] if as_json else lines.values():
        say(text)
    if not ops and not TABLE.unrecorded:
        say(f"{WHERE} has limits for all ops.", file=sys.stderr)


def show_options(as_json: bool) -> None:
    """Print all options.

    `as_json`: whether to print JSON.
    """
    needs_compiler("The list of options")
    from ..settings.options import describe, described

    say(json.dumps(described(), indent=2) if as_json else describe())


def show_artifacts(path: str, region: str | None, as_json: bool, report: Path | None) -> None:
    """Print the artifacts of this backend in a library.

    `region`: the only region to print; none: all.
    `as_json`: whether to print JSON.
    `report`: the report of the library, for the author's names of ops.
    """
    if loading.failure is not None:
        raise Problem(f"The backend does not load: {loading.failure}")
    from ..compiling.artifacts import read_artifacts

    artifacts = translated(lambda: read_artifacts(path))
    chosen = [artifact for artifact in artifacts if region in (None, artifact.symbol)]
    if report is not None:
        chosen = _named(chosen, report)
    if not chosen:
        known = ", ".join(artifact.symbol for artifact in artifacts)
        raise Problem(printable(f"{path} has no region '{region}'; it has: {known}."))
    if as_json:
        say(json.dumps([artifact.to_dict() for artifact in chosen], indent=2))
    else:
        say("\n\n".join(map(str, chosen)))


def _named(artifacts: Sequence[Artifact], path: Path) -> list[Artifact]:
    """Return artifacts whose programs have the author's names of ops."""
    needs_compiler("--report")
    from ..report.names import Names
    from ..report.report import Report
    from .json_files import read_json

    report = read_json(path, Report.from_json, "a report", "compile --report")
    names = Names(report.ops)
    functions = {region.symbol: region.function for region in report.regions}
    return [
        replace(it, program=names.named(functions.get(it.symbol, ""), it.program))
        for it in artifacts
    ]
