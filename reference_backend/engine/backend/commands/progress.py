# SPDX-License-Identifier: Apache-2.0
"""The bar that says what a command is doing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..models.compiled import LIBRARY
from ..shared.messages import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Steps:
    """A bar on the terminal of standard error; nothing where there is no terminal or no rich.

    `count`: how many steps there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._begun = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Steps:
        """Begin."""
        if sys.stderr is None or not sys.stderr.isatty():
            return self
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:  # A board has the runtime alone.
            return self
        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=self.count)
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.stop()

    def begin(self, text: str, own_line: bool = False) -> None:
        """Say which step begins; the one before is done.

        `own_line`: whether what runs then has a line of its own on the terminal.
        """
        if self._bar is None:
            return
        self._bar.start()
        self._bar.update(self._task, description=printable(text), completed=self._begun)
        self._begun += 1
        if own_line:
            self._bar.stop()


def steps_of(arguments: argparse.Namespace, own: int) -> Steps:
    """Make the bar of a command that takes a model.

    `own`: how many steps the command has after the model is read and partitioned, which a library
    is not, and without its verification.
    """
    count = own + bool(getattr(arguments, "verify", False))
    if arguments.model.suffix != LIBRARY:
        # Reading, quantizing and partitioning.
        count += 2 + (arguments.quantize is not None)
    return Steps(count)
