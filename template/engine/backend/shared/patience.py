# SPDX-License-Identifier: Apache-2.0
"""Calls that may take minutes, since an SDK's compiler works: told on the terminal, and at once."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from .console import Progress

SLOW = 1.0
"""Seconds after which the rest is called at once."""
TELL = 2.0
"""Seconds after which a line says what takes long."""
PAUSE = 0.5
"""Seconds after which it is written again."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(
    function: Callable[[Item], Result], items: Sequence[Item], title: Callable[[Item], str]
) -> list[Result]:
    """Call a function of each item; once a call is slow, calls of the rest overlap.

    Parameters
    ----------
    function
        The function; threads of this process may call it at once.
    items
        Its arguments.
    title
        Says what a call of an item does, for the terminal.

    Returns
    -------
    results
        In the order of the items.
    """
    results: list[Result] = []
    running: dict[int, str] = {}

    def call(item: Item) -> Result:
        here = threading.get_ident()
        running[here] = title(item)
        try:
            return function(item)
        finally:
            del running[here]

    with _told(lambda: ", ".join(list(running.values()))):
        begin = time.monotonic()
        while len(results) < len(items) and time.monotonic() - begin < SLOW:
            begin = time.monotonic()
            results.append(call(items[len(results)]))
        rest = items[len(results) :]
        if rest:
            with ThreadPoolExecutor(min(len(rest), os.cpu_count() or 1)) as pool:
                results += pool.map(call, rest)
    return results


@contextmanager
def _told(title: Callable[[], str]) -> Iterator[None]:
    """Say on the terminal what takes long, and since when."""
    progress = Progress()
    # A bar of a command, which also shows the time, has replaced the stream.
    if not progress.shows or sys.stderr is not sys.__stderr__:
        yield
        return
    begin, is_done = time.monotonic(), threading.Event()

    def tell() -> None:
        if is_done.wait(TELL):
            return
        while not is_done.wait(PAUSE):
            progress.show(f"{time.monotonic() - begin:.0f} s: {title()}")
        progress.show("")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_done.set()
        teller.join()
