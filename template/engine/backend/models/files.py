# SPDX-License-Identifier: Apache-2.0
"""Files that commands read, and checks of files to be written."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from ..shared.aliases import Array
from ..shared.problem import Problem

Arrays = dict[str, Array]
"""Arrays by name."""


class Header(NamedTuple):
    """Element type and sizes of an array in a file."""

    dtype: str
    shape: tuple[int, ...]


_WRITE = "an .npz file is written by numpy.savez('inputs.npz', name=array)"


def require_file(path: Path) -> None:
    """Refuse a path that is no readable file."""
    # Unlike pathlib's functions, these do not fail for a name that is too long.
    if os.path.isdir(path):
        raise Problem(f"{path} is a folder; name a file.")
    if not os.path.exists(path):
        raise Problem(f"There is no file {path}.")
    if not os.path.isfile(path):
        raise Problem(f"{path} is a device or a pipe; name a regular file.")
    if not os.access(path, os.R_OK):
        raise Problem(f"{path} may not be read.")


def read_text(path: Path) -> str:
    """Read a file of text."""
    require_file(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise Problem(f"{path} is not a file of text.") from None


class NamedArrays:
    """Arrays by name; messages call them `path`."""

    def __init__(self, arrays: Mapping[str, Array], path: Path) -> None:
        self.path = path
        self.headers = {
            name: Header(str(array.dtype), array.shape) for name, array in arrays.items()
        }
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        """Return an array."""
        # `ascontiguousarray` would turn rank 0 into rank 1.
        return np.asarray(self._arrays[name], order="C")


class ArrayFile(NamedArrays):
    """Arrays of an .npz file, or `arr_0` of an .npy file; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__({}, path)
        require_file(path)
        try:
            self.headers = _headers(path)
        except Exception:  # NumPy and the readers below it raise countless errors.
            raise self._unreadable() from None
        if not self.headers:
            raise Problem(f"{path} has no arrays; {_WRITE}.")

    def __getitem__(self, name: str) -> Array:
        """Read an array."""
        try:
            content = np.load(self.path, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return np.asarray(content, order="C")
            with content:
                return np.asarray(content[name], order="C")
        except MemoryError:
            raise
        except Exception:
            raise self._unreadable() from None

    def _unreadable(self) -> Problem:
        return Problem(f"{self.path} is no file of arrays of numbers; {_WRITE}.")


def _headers(path: Path) -> dict[str, Header]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return {"arr_0": _header(file)}
    with zipfile.ZipFile(path) as archive:
        headers = {}
        for name in archive.namelist():
            with archive.open(name) as file:
                headers[name.removesuffix(".npy")] = _header(file)
        return headers


def _header(file: IO[bytes]) -> Header:
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = readers[npy.read_magic(file)](file)
    if dtype.hasobject or dtype.names:
        raise ValueError
    return Header(str(dtype), shape)


def require_writable(path: Path | None) -> None:
    """Refuse a path to which no file can be written, before the work begins."""
    if path is None:
        return
    if str(path) == "-":
        raise Problem("'-' is not a file: name one. --json prints on standard output.")
    folder = path.parent
    if path.is_dir():
        raise Problem(f"{path} is a folder; name a file to be written.")
    if not folder.is_dir():
        raise Problem(f"There is no folder {folder} for {path.name}; make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Problem(f"Nothing can be written to the folder {folder}.")
