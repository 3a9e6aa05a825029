# SPDX-License-Identifier: Apache-2.0
"""What stops a command: a sentence for the user, and never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .messages import last_line

_Result = TypeVar("_Result")

REBUILD = "run 'pip install .' in the source tree of the backend"
"""What installs the parts that are missing."""

WITHOUT_MEMORY = (
    "the memory of this machine does not suffice; use smaller sizes or a larger machine"
)
"""What to say of an error that only says that memory could not be had."""

_LONGEST = 1000


class Problem(Exception):
    """A command cannot go on; the message says what is wrong and what to do."""


def translated(read: Callable[[], _Result]) -> _Result:
    """Return what a function reads; an error in its input becomes a `Problem`."""
    try:
        return read()
    except ValueError as error:
        raise Problem(str(error)) from None


def sentence(error: Exception) -> str:
    """Return the message of a library's error, without locations in its sources.

    Its message, or its kind if it has none. Of many lines, the last says what is wrong.
    """
    if isinstance(error, MemoryError) or "std::bad_alloc" in str(error):
        return WITHOUT_MEMORY
    if isinstance(error, (ImportError, ValueError, RuntimeError)) and not _has_frames(error):
        text = str(error).strip()
    else:
        text = last_line(error)
    return (text or type(error).__name__)[:_LONGEST]


def _has_frames(error: Exception) -> bool:
    return 'File "' in str(error) or "Stack trace" in str(error)
