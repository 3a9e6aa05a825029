# SPDX-License-Identifier: Apache-2.0
"""Texts for users: what is safe to show, one line of many, and the essential line of an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

FIX_SIZES = (
    "fix the sizes of the model's inputs, with `--shape x=1,3,64,64` on the command line or with "
    "`shape_dict` in Python"
)
"""What to do about a size that only the run knows, as the end of a sentence."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the closest known word, in parentheses after a space; "" if none is close."""
    near = get_close_matches(word, list(known), 1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def printable(text: str) -> str:
    """Escape what a terminal would interpret: names from files may have anything in them.

    The text, with control characters, line breaks and marks of direction as Python writes them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Escape what a terminal would interpret, except for line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def last_line(error: Exception | str) -> str:
    """Return the last line of a message, which usually says what is wrong.

    The last line that is not empty; of an error without a message, its kind.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        return lines[-1]
    return "" if isinstance(error, str) else type(error).__name__


def refused_inputs(error: Exception, function: str, hidden: int = 0) -> ValueError | None:
    """Return an error of TVM's machine about the inputs of a function, as a sentence.

    None if it is about something else. `hidden`: how many of the last inputs are not the user's.
    """
    text = last_line(error)
    counted = re.search(r"expects \d+ arguments \((.*)\), but (\d+) arguments were", text)
    if counted is not None:
        names = list(filter(None, counted[1].split(", ")))
        names = names[: len(names) - hidden]
        inputs = "1 input" if len(names) == 1 else f"{len(names)} inputs"
        which = f": {', '.join(names)}" if names else ""
        return ValueError(f"'{function}' takes {inputs}, not {int(counted[2]) - hidden}{which}.")
    refused = re.search(
        r"ErrorContext\(fn=\w+, loc=param\[\d+\], param=(.*?), annotation=(.*)\)\s+"
        r"(?:expect (.*) but get (.*)|.*)",
        text,
    )
    if refused is None:
        return None
    name, annotation, expected, actual = refused.groups()
    why = "one of its axes has another size"
    if expected is not None:
        why = f"it expects {expected}, and {actual} was given"
    return ValueError(f"'{function}' takes {annotation} as '{name}': {why}.")


def one_line(text: str) -> str:
    """Return a text without line breaks, for a line of a table: an SDK may write a paragraph."""
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def size_text(size: object) -> str:
    """Return a size as its author would write it, such as "n // 2 + 1".

    `size`: A number or an expression of TVM, whose own text names the type of each number.
    """
    return _NUMBER.sub(r"\1", str(getattr(size, "value", size)))


_NUMBER = re.compile(r"T\.u?int\d+\((-?\d+)\)")
