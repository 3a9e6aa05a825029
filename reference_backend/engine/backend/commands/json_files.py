# SPDX-License-Identifier: Apache-2.0
"""What commands have written as JSON, and other commands read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..models.files import read_text
from ..shared.problem import Problem

_Read = TypeVar("_Read")


def read_json(path: Path, read: Callable[[str], _Read], what: str, command: str) -> _Read:
    """Read what a command has written."""
    text = read_text(path)
    other = _kind_of(text)
    if other not in ("", what):
        raise Problem(f"{path} is not {what} that '{command}' has written; it is {other}.")
    try:
        return read(text)
    except ValueError as error:
        # JSON's own errors name lines and columns.
        reason = str(error) if "version" in str(error) else ""
    except (AttributeError, KeyError, TypeError):
        reason = ""
    raise Problem(f"{path} is not {what} that '{command}' has written. {reason}".strip())


_FIELDS = {
    "events": "a profile",
    "layers": "an accuracy report",
    "changes": "a comparison",
    "regions": "a report",
}
"""A field that only JSON of this kind has, or none of those before it."""


def _kind_of(text: str) -> str:
    """Return what has been written as JSON; "" if that cannot be told."""
    try:
        data = json.loads(text)
    except ValueError:
        return ""
    found = (kind for name, kind in _FIELDS.items() if isinstance(data, dict) and name in data)
    return next(found, "")
