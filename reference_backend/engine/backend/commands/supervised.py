# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a child process where a vendor's driver is asked: its SDK may end a process."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable

from tvm import relax

from ..libraries.asking import listening, ops_of
from ..shared import interrupts
from ..shared.problem import Problem

_MOST = 512
_ON_DEATH_OF_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def supervised(command: Callable[[], int]) -> int:
    """Run a command in a child process."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with mmap.mmap(-1, _MOST) as board:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_ON_DEATH_OF_PARENT, signal.SIGTERM)
            if os.getppid() != parent:
                sys.exit(1)

            asked_by: dict[int, str] = {}

            def note(function: relax.Function, answer: str | None) -> None:
                # Threads ask at once where the SDK takes its time.
                asked_by[threading.get_ident()] = "" if answer is not None else ops_of(function)
                text = " or ".join(filter(None, list(asked_by.values())))
                board[:] = text.encode()[: _MOST - 1].ljust(_MOST, b"\0")

            with listening(note):
                return command()
        status = _wait(child)
        asked = board[:].rstrip(b"\0").decode(errors="replace")
    if not os.WIFSIGNALED(status):
        # The child has said all that there is to say.
        os._exit(os.waitstatus_to_exitcode(status))
    name = interrupts.signal_name(os.WTERMSIG(status))
    when = f" when it was asked about {asked}" if asked else ""
    raise Problem(
        f"The driver's SDK ended the process with {name}{when}; what it said is above. Keep such "
        "ops from it in LIMITS of vendor/capabilities.py, or in the driver's Reason."
    )


def _wait(child: int) -> int:
    while True:
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            # A terminal has told the child, too; others have not.
            os.kill(child, signal.SIGINT)
