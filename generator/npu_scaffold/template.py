"""Finds the template and its questions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from .errors import ScaffoldError, did_you_mean

CATALOG = Path("template/_catalog")


def find_template(given: str | Path | None = None) -> Path:
    """Find the directory that holds ``copier.yml``.

    Parameters
    ----------
    given
        The user's choice; by default the checkout in the current directory, or else the one that
        this package runs from.

    Returns
    -------
    Path
        The absolute path of the template.
    """
    own = [Path.cwd(), Path(__file__).parents[2]]
    candidates = own if given is None else [Path(given)]
    for candidate in candidates:
        if (candidate / "copier.yml").is_file() and (candidate / CATALOG).is_dir():
            return candidate.resolve()
    raise ScaffoldError(
        f"There is no copier.yml with {CATALOG} in {' or in '.join(map(str, candidates))}. "
        "Give a checkout of npu-scaffold with --template."
    )


def require_version(template: Path, version: str) -> None:
    """Raise an error for a version that the template does not have.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.
    version
        A tag, a branch or a commit.
    """
    if not (template / ".git").exists():
        raise ScaffoldError(
            f"{template} is not a Git repository, so it has no version '{version}'. Leave out "
            "--vcs-ref, or give a clone of npu-scaffold with --template."
        )

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=template, capture_output=True, text=True, check=False
        )

    commit = f"{version}^{{commit}}"
    if version and not git("rev-parse", "-q", "--verify", "--end-of-options", commit).returncode:
        return
    tags = git("tag", "--sort=-version:refname").stdout.split()
    known = f"; its tags are {', '.join(tags)}" if tags else ", and no tags"
    raise ScaffoldError(
        f"The template has no version '{version}'{did_you_mean(version, tags)}{known}. Give a tag, "
        "a branch or a commit of it."
    )


def read_questions(template: Path) -> dict[str, dict[str, object]]:
    """Read the questions that a user may answer.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.

    Returns
    -------
    dict
        The questions in order, without computed ones.
    """

    class Loader(yaml.SafeLoader):
        """Reads Copier's file without following its includes."""

    Loader.add_constructor("!include", lambda loader, node: None)
    config = yaml.load((template / "copier.yml").read_text(encoding="utf-8"), Loader)
    return {
        name: question
        for name, question in config.items()
        if not name.startswith("_") and question.get("when") is not False
    }
