# SPDX-License-Identifier: Apache-2.0
"""Files that appear as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished-"
"""The prefix of the folders in which files are written; a killed process may leave one."""


class NotWritten(ValueError):
    """A file cannot be written; the message names it, and says why."""


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file that appears when it is complete.

    `path`: the file; an existing one is replaced, and stays unchanged if that fails.
    """
    path = Path(path)
    folder = None
    try:
        folder = tempfile.mkdtemp(prefix=UNFINISHED, dir=path.parent)
        unfinished = Path(folder) / path.name
        yield unfinished
        os.replace(unfinished, path)
    except OSError as error:
        raise NotWritten(
            f"'{path}' cannot be written: {error.strerror or error}. Name a file in a folder that "
            "exists and can be written."
        ) from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file of text, as `writing` does.

    `text`: its text; a lone surrogate, which a name in a model may hold, is not UTF-8, and becomes
    "?".
    """
    with writing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="replace")
