"""The one exception that users of the generator see."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ScaffoldError(Exception):
    """An error that the user can fix; each line of the message is one sentence."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Suggest the closest known word.

    Parameters
    ----------
    word
        The unknown word.
    known
        The known words.

    Returns
    -------
    str
        A hint in parentheses with a leading space, or an empty string.
    """
    near = get_close_matches(str(word), list(known), n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""
