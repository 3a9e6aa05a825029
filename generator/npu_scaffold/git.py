"""Runs Git, isolated from the caller's hooks and environment variables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .errors import ScaffoldError


def run_git(
    where: Path,
    *arguments: str,
    feed: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run Git; the caller checks its exit code.

    Parameters
    ----------
    where
        The directory to run in.
    *arguments
        The command line without the name of the program.
    feed
        The standard input.
    environment
        Variables besides those of this process.

    Returns
    -------
    subprocess.CompletedProcess of bytes
        The exit code and the output.

    Raises
    ------
    ScaffoldError
        Git is not installed.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_DIR")}
    for name in ("GIT_INDEX_FILE", "GIT_WORK_TREE"):
        clean.pop(name, None)
    try:
        return subprocess.run(
            ["git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.quotePath=false", *arguments],
            cwd=where,
            env={**clean, **(environment or {})},
            input=feed,
            capture_output=True,
            check=False,
            # Signals sent to us do not interrupt Git.
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ScaffoldError("This needs Git, but there is no command 'git'.") from None


def git_output(
    where: Path,
    *arguments: str,
    feed: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run Git and return what it prints.

    Parameters
    ----------
    where
        The directory to run in.
    *arguments
        The command line without the name of the program.
    feed
        The standard input.
    environment
        Variables besides those of this process.

    Returns
    -------
    str
        The standard output without leading and trailing line breaks.

    Raises
    ------
    ScaffoldError
        Git is not installed, or failed.
    """
    done = run_git(where, *arguments, feed=feed, environment=environment)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise ScaffoldError(f"'git {arguments[0]}' failed in {where}: {said}")
    return done.stdout.decode(errors="surrogateescape").strip("\n")
