# SPDX-License-Identifier: Apache-2.0
"""The command `profile`: where the time of a model goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..loading import needs_compiler
from ..models.compiled import LIBRARY, functions_of, load_machine
from ..models.files import require_writable
from ..profiling.profile_text import traffic_text
from ..shared.problem import Problem, sentence
from ..shared.terminal import say
from ..shared.whole_files import write_text
from .progress import steps_of
from .running import Loaded, load

if TYPE_CHECKING:
    from ..profiling.profiles import Profile
    from ..report.report import Report

MOST_OPS = 20
"""How many ops a table on the terminal has, unless all are asked for."""


def run_profile(arguments: argparse.Namespace) -> int:
    """Run the command `profile`."""
    from ..profiling.origin_names import mismatch

    for path in (arguments.output, arguments.trace):
        require_writable(path)
    if arguments.model.suffix == LIBRARY and arguments.function is None:
        functions = functions_of(load_machine(arguments.model))
        if len(functions) > 1:
            return _profile_each(arguments, functions)
    known = _report(arguments)
    with steps_of(arguments, own=2) as steps:
        loaded = load(arguments, steps)
        steps.begin("profiling")
        known = known or loaded.report
        found = _profiled(loaded, arguments.repeat, known)
    why = mismatch(found, known) if known is not None and arguments.report is not None else None
    if why is not None:
        raise Problem(
            f"{arguments.report} is not the report of {arguments.model}: {why}. Give the one that "
            "'compile --report FILE' has written with the library."
        )
    if arguments.output is not None:
        write_text(arguments.output, found.to_json())
    if arguments.trace is not None:
        write_text(arguments.trace, found.to_trace())
    if arguments.json:
        say(found.to_json())
    else:
        found.show(most=None if arguments.all else MOST_OPS)
    return 0


def _profiled(loaded: Loaded, calls: int, report: Report | None = None) -> Profile:
    from ..profiling import profile

    function = loaded.function
    try:
        return profile(
            loaded.machine, *loaded.inputs, function=function, calls=calls, report=report
        )
    except Exception as error:
        raise Problem(f"The model cannot be profiled: {sentence(error)}") from error


def _profile_each(arguments: argparse.Namespace, functions: Sequence[str]) -> int:
    """Print a line for each function of a library, such as those of a decoder."""
    for name in ("output", "trace", "report", "json", "all", "inputs"):
        if getattr(arguments, name):
            raise Problem(
                f"--{name} is of one function, and {arguments.model} has several: "
                f"{', '.join(functions)}; choose one with --function NAME."
            )
    kept: dict[str, int] = {}
    with steps_of(arguments, own=2 * len(functions)) as steps:
        lines = []
        for function in functions:
            arguments.function = function
            loaded = load(arguments, steps)
            steps.begin(f"profiling {function}")
            found = _profiled(loaded, arguments.repeat)
            traffic = traffic_text(found.traffic)
            lines.append(f"{function}: {found.summary}{traffic and f'; {traffic}'}")
            kept.update((state, value.nbytes) for state, value in loaded.signature.initial.items())
    for line in lines:
        say(line)
    say(f"a session keeps {sum(kept.values()):,} bytes")
    return 0


def _report(arguments: argparse.Namespace) -> Report | None:
    """Return the report of a library; one of a model file is made when it is compiled."""
    if arguments.report is None:
        return None
    if arguments.model.suffix != LIBRARY:
        raise Problem(
            f"--report goes with a library; {arguments.model} is compiled now, and its report is "
            "known."
        )
    needs_compiler("--report")
    from ..report.report import Report
    from .json_files import read_json

    return read_json(arguments.report, Report.from_json, "a report", "compile --report")
