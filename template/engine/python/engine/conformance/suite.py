# SPDX-License-Identifier: Apache-2.0
"""What a suite is, and what it is asked for.

A suite is a module of this package, listed in `runner.SUITES`, with

- `cases(settings) -> list[str]`: the names of all its cases, cheaply; a suite that makes up its
  cases as it goes has none. What cannot run here raises `NotRun` with what to install.
- `outcomes(settings) -> Iterator[Outcome]`: what became of the cases that
  `settings.choose(...)` leaves. `ops.py` is the example.

Cases that compile and run models belong into processes of their own, `workers.in_workers`: such a
suite also has `run_batch(cases, announce) -> Iterator[Outcome]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class NotRun(Exception):
    """Why a suite cannot run here, and what to install."""


@dataclass(frozen=True)
class Settings:
    """What a run is asked for.

    Parameters
    ----------
    filters
        Texts one of which the id of a case, suite/case, must contain; none: all cases.
    jobs
        How many processes run cases; 0: this one.
    fuzz_seconds
        How long to look for failures at random.
    files
        Case files to run.
    output
        Where to save what failed; none: the current folder.
    strict
        Whether what the driver declines fails, unless the ledger has it.
    """

    filters: tuple[str, ...] = ()
    jobs: int = 2
    fuzz_seconds: float = 20.0
    files: tuple[Path, ...] = ()
    output: Path | None = None
    strict: bool = False

    def choose(self, suite: str, cases: Iterable[str]) -> list[str]:
        """Return the cases that are asked for."""
        return [
            case
            for case in cases
            if not self.filters or any(text in f"{suite}/{case}" for text in self.filters)
        ]
