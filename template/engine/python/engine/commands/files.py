# SPDX-License-Identifier: Apache-2.0
"""Files that commands read, and checks of those that they will write."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..aliases import Array
from .problem import Problem

Arrays = dict[str, Array]
"""Arrays by name."""

_WRITE = "an .npz file is written by numpy.savez('inputs.npz', name=array)"


def require_file(path: Path) -> None:
    """Refuse what is not a file.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    Problem
        It does not exist, is not a file, or cannot be read.
    """
    # Unlike those of pathlib, these do not fail for a name that is too long.
    if os.path.isdir(path):
        raise Problem(f"{path} is a folder; name a file.")
    if not os.path.exists(path):
        raise Problem(f"There is no file {path}.")
    if not os.path.isfile(path):
        raise Problem(f"{path} is a device or a pipe; name a regular file.")
    if not os.access(path, os.R_OK):
        raise Problem(f"{path} may not be read.")


def read_text(path: Path) -> str:
    """Read a file of text.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    text
        Its text.

    Raises
    ------
    Problem
        It cannot be read.
    """
    require_file(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise Problem(f"{path} is not a file of text.") from None


def read_arrays(path: Path) -> Arrays:
    """Read arrays from an .npz file, or one from an .npy file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    arrays
        Arrays by name; one without a name is `arr_0`, as `numpy.savez` calls it.

    Raises
    ------
    Problem
        It cannot be read, or has no arrays.
    """
    require_file(path)
    try:
        found = np.load(path, allow_pickle=False)
        arrays = {"arr_0": found} if isinstance(found, np.ndarray) else dict(found)
    except Exception:  # NumPy and the readers below it raise countless errors.
        raise Problem(f"{path} is no file of arrays of numbers; {_WRITE}.") from None
    if not arrays:
        raise Problem(f"{path} has no arrays; {_WRITE}.")
    return arrays


def require_writable(path: Path | None) -> None:
    """Refuse a place where no file can be written, before the work begins.

    Parameters
    ----------
    path
        The file to be written; none: nothing is to be done.

    Raises
    ------
    Problem
        Nothing can be written there.
    """
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
