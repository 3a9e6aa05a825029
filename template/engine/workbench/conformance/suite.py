# SPDX-License-Identifier: Apache-2.0
"""The interface of suites, and the settings of a run.

A suite is a module of this package, listed in `runner.SUITES`, with

- `cases(settings) -> list[str]`: the names of all its cases, cheaply; none for a suite that
  generates its cases. A suite that cannot run here raises `NotRun` with what to install.
- `run_batch(cases, announce) -> Iterator[Outcome]`: runs some of them, in a worker process, and
  calls `announce` with the name of a case before it runs that alone. `BATCH` is how many at once.
  `ops.py` is the example.
- or, if it does more than that, `outcomes(settings) -> Iterator[Outcome]`: the outcomes of the
  cases that `settings.choose(...)` selects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class NotRun(Exception):
    """Why a suite cannot run here, and what to install."""


class Crashed(NotRun):
    """How the driver's SDK ended the process that listed the cases."""


class Suite(Protocol):
    """The module of a suite."""

    def cases(self, settings: Settings) -> list[str]:
        """Return the names of all cases."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    `filters`: the id of a case, suite/case, must contain one of these texts; none: all cases.
    `jobs`: the number of worker processes; 0: run in this one.
    `fuzz_seconds`: the time for fuzzing.
    `files`: case files to run.
    `output`: where to save failures; none: the current folder.
    `strict`: whether declined cases fail, unless the ledger has them.
    """

    filters: tuple[str, ...] = ()
    jobs: int = 2
    fuzz_seconds: float = 20.0
    files: tuple[Path, ...] = ()
    output: Path | None = None
    strict: bool = False

    def choose(self, suite: str, cases: Iterable[str]) -> list[str]:
        """Return the selected cases."""
        return [
            case
            for case in cases
            if not self.filters or any(text in f"{suite}/{case}" for text in self.filters)
        ]
