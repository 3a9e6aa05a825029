# SPDX-License-Identifier: Apache-2.0
"""The compile cache: a folder of artifacts shared by processes.

An entry is one file, which appears atomically, so no locks are needed: two processes that compile
the same region write the same file. Readers must check an entry's content.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from ..shared.whole_files import UNFINISHED, NotWritten, writing
from .artifacts import open_regular

Entry = TypeVar("Entry")

_SUFFIX = ".artifact"
_UNFINISHED_BEFORE = ".tmp"
"""How the names of unfinished files ended until release 0.2.0."""
_ABANDONED = 3600.0
"""Seconds after which the writer of an unfinished file is assumed dead."""

_log = logging.getLogger(__name__)


class Cache:
    """A folder of entries of at most `limit` bytes; the least recently used are dropped."""

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder = Path(folder).expanduser()
        self.limit = limit
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            os.scandir(self.folder).close()
        except OSError as error:
            raise ValueError(
                f"The compile cache '{self.folder}' cannot be used: {error.strerror}. Set the "
                "option 'cache_dir' to a folder that can be written, or to nothing."
            ) from None

    def get(self, key: str, read: Callable[[BufferedReader, int], Entry]) -> Entry | None:
        """Return what `read` makes of an entry's file and size, and mark it as used.

        None if the entry is missing or larger than the limit.
        """
        path = self._path(key)
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > self.limit:
                    return None
                entry = read(file, size)
        except OSError:
            return None
        with contextlib.suppress(OSError):  # Another process may have dropped it.
            os.utime(path)
        return entry

    def put(self, key: str, entry: bytes | memoryview) -> None:
        """Add an entry, and drop others over the limit; a failure is a warning."""
        if len(entry) > self.limit:
            return
        try:
            with writing(self._path(key)) as unfinished:
                unfinished.write_bytes(entry)
        except NotWritten as error:
            _log.warning("The compile cache '%s' keeps nothing. %s", self.folder, error)
            return
        self._shrink()

    def drop(self, key: str) -> None:
        """Remove an entry if it exists."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _shrink(self) -> None:
        """Drop the least recently used entries until the rest is within the limit."""
        total = 0
        for _, size, path in sorted(self._files(), reverse=True):
            total += size
            if total > self.limit:
                with contextlib.suppress(OSError):  # Another process may have dropped it.
                    os.unlink(path)

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Generate time of use, size and path of all entries; drop unfinished files."""
        with os.scandir(self.folder) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    status = file.stat()
                    if file.name.endswith(_SUFFIX):
                        yield status.st_mtime, status.st_size, file.path
                    elif status.st_mtime < time.time() - _ABANDONED:
                        if file.name.startswith(UNFINISHED):
                            shutil.rmtree(file.path, ignore_errors=True)
                        elif file.name.endswith(_UNFINISHED_BEFORE):
                            os.unlink(file.path)
