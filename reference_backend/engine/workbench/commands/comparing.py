# SPDX-License-Identifier: Apache-2.0
"""The command `compare`: two reports side by side."""

from __future__ import annotations

import argparse

from ...backend.commands.json_files import read_json
from ...backend.models.files import require_writable
from ...backend.profiling import Profile
from ...backend.report.report import Report
from ...backend.shared.problem import translated
from ...backend.shared.terminal import say
from ...backend.shared.whole_files import write_text
from ..accuracy import AccuracyReport
from ..comparison.comparison import compare


def run_compare(arguments: argparse.Namespace) -> int:
    """Run the command `compare`."""
    require_writable(arguments.output)
    before, after = (
        read_json(path, Report.from_json, "a report", "report --output")
        for path in (arguments.before, arguments.after)
    )
    profiles = accuracies = None
    if arguments.profiles is not None:
        one, two = (
            read_json(path, Profile.from_json, "a profile", "profile --output")
            for path in arguments.profiles
        )
        profiles = (one, two)
    if arguments.accuracy is not None:
        first, second = (
            read_json(path, AccuracyReport.from_json, "an accuracy report", "report --accuracy")
            for path in arguments.accuracy
        )
        accuracies = (first, second)
    comparison = translated(
        lambda: compare(before, after, accuracies=accuracies, profiles=profiles)
    )
    if arguments.output is not None:
        write_text(arguments.output, comparison.to_json())
    if arguments.json:
        say(comparison.to_json())
    else:
        comparison.show()
    return 1 if arguments.fail_if_worse and comparison.worse else 0
