# SPDX-License-Identifier: Apache-2.0
"""The command `profile`: where the time of a model goes."""

from __future__ import annotations

import argparse

from ..whole_files import write_text
from .files import require_writable
from .problem import Problem, sentence
from .progress import Steps
from .running import load


def run_profile(arguments: argparse.Namespace) -> int:
    """Run the command `profile`."""
    from ..profiling import profile

    for path in (arguments.output, arguments.trace):
        require_writable(path)
    with Steps(6) as steps:
        loaded = load(arguments, steps)
        steps.begin("profiling")
        try:
            found = profile(
                loaded.machine, *loaded.inputs, calls=arguments.repeat, report=loaded.report
            )
        except Exception as error:
            raise Problem(f"The model cannot be profiled: {sentence(error)}") from error
    if arguments.output is not None:
        write_text(arguments.output, found.to_json())
    if arguments.trace is not None:
        write_text(arguments.trace, found.to_trace())
    if arguments.json:
        print(found.to_json())
    else:
        found.show()
    return 0
