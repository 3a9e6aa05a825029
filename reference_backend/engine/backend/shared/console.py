# SPDX-License-Identifier: Apache-2.0
"""The output that users see during long work, and do not see of tools."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from .messages import printable


class Progress:
    """A line on the terminal that says what is done; nothing where there is no terminal."""

    def __init__(self) -> None:
        self._stream = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None

    @property
    def shows(self) -> bool:
        """Whether there is a terminal."""
        return self._stream is not None

    def __enter__(self) -> Progress:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the line."""
        self.show("")

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._stream is not None:
            print(f"\r\033[K{printable(text)[:100]}", end="", file=self._stream, flush=True)

    def tell(self, text: str) -> None:
        """Print a line that stays."""
        if self._stream is not None:
            print(f"\r\033[K{printable(text)}", file=self._stream, flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings and logs of the tools away."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
