# SPDX-License-Identifier: Apache-2.0
"""Lists the cases of suites in a worker first, where a vendor's SDK may end the process.

A suite of workers, whose cases are the suites that ask the driver before they know their cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module

from ...backend.api import Options
from .outcomes import Outcome
from .suite import Settings
from .workers import Announce, in_workers

SUITE = "listing"
ASKING = ("composites", "contract", "quantized")
"""The suites that ask some drivers which ops they may use."""


def end_of(suite: str, jobs: int) -> str:
    """Return how a process ends that lists the cases of a suite, with what the driver was asked.

    Empty if it ends well, or if there is nothing to fear, or no other process may run.
    """
    fears = suite in ASKING and jobs and Options.load(None).driver != "emulator"
    return ended(suite) if fears else ""


@cache
def ended(suite: str) -> str:
    """Return how a process ends that lists the cases of a suite; empty if it ends well."""
    (found,) = in_workers(SUITE, [suite], 1)
    return "" if found.status == "passed" else found.reason


def run_batch(names: Sequence[str], announce: Announce) -> Iterator[Outcome]:
    """List the cases of suites."""
    for name in names:
        announce(name)
        module = import_module(name if "." in name else f"{__package__}.{name}")
        # Of all but its end, the other process finds out itself.
        with suppress(Exception):
            module.cases(Settings())
        yield Outcome(SUITE, name, "passed")
