# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a command with a word and the code 130, wherever it comes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType

from .backend import PACKAGE

CODE = 130
"""The exit code of an interrupted command, as shells have it."""
_TOGETHER = 0.5


def quit_during_imports() -> None:
    """Make Ctrl-C end this process at once if it runs the package as a command.

    Python imports the package, and TVM with it, before the command could catch anything.
    """
    if is_command() and _is_ours_to_handle():
        signal.signal(signal.SIGINT, _quit)


def is_command() -> bool:
    """Whether this process runs the package as a command."""
    return ("-m", PACKAGE) in pairwise(sys.orig_argv)


def _is_ours_to_handle() -> bool:
    """Whether nobody else handles the signal, or ignores it, as nohup does."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _quit)


def _quit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(CODE)


@contextmanager
def noticed() -> Iterator[threading.Event]:
    """Raise KeyboardInterrupt at Ctrl-C, and remember it.

    TVM turns an exception in a function that it calls into an error of its own.
    """
    interrupted = threading.Event()
    first = 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first
        # Of one Ctrl-C, both the terminal and a parent process may tell.
        if interrupted.is_set() and time.monotonic() - first < _TOGETHER:
            return
        first = time.monotonic()
        interrupted.set()
        raise KeyboardInterrupt

    if not _is_ours_to_handle():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGABRT."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
