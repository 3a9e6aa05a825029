# SPDX-License-Identifier: Apache-2.0
"""The command `compare`: two reports side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..accuracy import AccuracyReport
from ..comparison import compare
from ..models.files import read_text, require_writable
from ..problem import Problem, told
from ..report import Report
from ..terminal import say
from ..whole_files import write_text

_Read = TypeVar("_Read")


def run_compare(arguments: argparse.Namespace) -> int:
    """Run the command `compare`."""
    require_writable(arguments.output)
    before, after = (
        read_json(path, Report.from_json, "a report", "report --output")
        for path in (arguments.before, arguments.after)
    )
    profiles = accuracies = None
    if arguments.profiles is not None:
        from ..profiling import Profile

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
    found = told(lambda: compare(before, after, accuracies=accuracies, profiles=profiles))
    if arguments.output is not None:
        write_text(arguments.output, found.to_json())
    if arguments.json:
        say(found.to_json())
    else:
        found.show()
    return 1 if arguments.fail_if_worse and found.worse else 0


def read_json(path: Path, read: Callable[[str], _Read], what: str, command: str) -> _Read:
    """Read what a command has written.

    Parameters
    ----------
    path
        The file.
    read
        Reads its text.
    what
        What the file should be, with its article.
    command
        The command that writes it.

    Returns
    -------
    read
        What is in it.

    Raises
    ------
    Problem
        It is something else, or of another version.
    """
    text = read_text(path)
    other = _kind_of(text)
    if other not in ("", what):
        raise Problem(f"{path} is not {what} that '{command}' has written; it is {other}.")
    try:
        return read(text)
    except ValueError as error:
        # JSON's own errors name lines and columns.
        reason = str(error) if "version" in str(error) else ""
    except (AttributeError, KeyError, TypeError):
        reason = ""
    raise Problem(f"{path} is not {what} that '{command}' has written. {reason}".strip())


_FIELDS = {
    "events": "a profile",
    "layers": "an accuracy report",
    "changes": "a comparison",
    "regions": "a report",
}
"""A field that only JSON of this kind has, or none of those before it."""


def _kind_of(text: str) -> str:
    """Return what has been written as JSON; "" if that cannot be told."""
    try:
        data = json.loads(text)
    except ValueError:
        return ""
    found = (kind for name, kind in _FIELDS.items() if isinstance(data, dict) and name in data)
    return next(found, "")
