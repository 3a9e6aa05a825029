"""Makes a release of this repository: changelog, version, list of releases, tags."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path

from .errors import ScaffoldError
from .versions import RELEASES, read_releases

CHANGELOG = Path("CHANGELOG.md")
_VERSION_OF_ENGINE = Path("engine/version.py")
STATED = (
    Path("pyproject.toml"),
    "template" / _VERSION_OF_ENGINE,
    "reference_backend" / _VERSION_OF_ENGINE,
)
"""The files with a line that assigns the version to a name."""
UNRELEASED = "## Not released yet"

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_STATED_VERSION = re.compile(r'^(version|VERSION) = "[^"]*"$', re.MULTILINE)
_LISTED = re.compile(r"^  \d+\.\d+\.\d+: [0-9a-f]{40}\n", re.MULTILINE)


def release(root: Path, version: str, date: datetime.date | None = None) -> str:
    """Release the current commit.

    Makes two commits: one that names the version in changelog, project and engine, which gets the
    tag, and one that adds it to the list of releases, since a commit cannot contain its own hash,
    and names the version after it as one in development.

    Parameters
    ----------
    root
        A clone of npu-scaffold, on a branch, without uncommitted changes.
    version
        The new version, higher than all listed ones.
    date
        The day of the release; today by default.

    Returns
    -------
    str
        The hash of the commit that was tagged.

    Raises
    ------
    ScaffoldError
        Something is missing or inconsistent; nothing was changed.
    """
    _require_clean(root)
    listed = read_releases(_read(root, RELEASES))
    _require_next(version, listed)
    tag = f"v{version}"
    if _git(root, "tag", "--list", tag):
        raise ScaffoldError(f"There is a tag {tag} already.")
    changelog = _read(root, CHANGELOG)
    part = _unreleased(changelog)
    _require_honest(version, max(map(_key, listed), default=(0, 0, 0)), part)
    stated = {path: _read(root, path) for path in STATED}
    for path, text in stated.items():
        if len(_STATED_VERSION.findall(text)) != 1:
            raise ScaffoldError(f"{path} has not exactly one line 'version = \"...\"'.")
    releases = _read(root, RELEASES)
    lines = [*_LISTED.finditer(releases)]
    if not lines:
        raise ScaffoldError(f"{RELEASES} lists no release as '  <version>: <commit>'.")

    before = _git(root, "rev-parse", "HEAD")
    day = date or datetime.date.today()
    try:
        _write(root, CHANGELOG, changelog.replace(UNRELEASED, f"## {version} ({day})", 1))
        for path, text in stated.items():
            _write(root, path, _STATED_VERSION.sub(rf'\g<1> = "{version}"', text))
        changed = [str(path) for path in (CHANGELOG, *STATED)]
        _git(root, "commit", "-q", "-m", f"Release {version}", "--", *changed)
        commit = _git(root, "rev-parse", "HEAD")
        end = lines[-1].end()
        _write(root, RELEASES, f"{releases[:end]}  {version}: {commit}\n{releases[end:]}")
        major, minor, _ = _key(version)
        for path, text in stated.items():
            _write(root, path, _STATED_VERSION.sub(rf'\g<1> = "{major}.{minor + 1}.0.dev0"', text))
        changed = [str(path) for path in (RELEASES, *STATED)]
        _git(root, "commit", "-q", "-m", f"List release {version}", "--", *changed)
        _git(root, "tag", "-a", "-m", f"npu-scaffold {version}", tag, commit)
    except BaseException:
        # The tree was clean, so this only undoes our own changes.
        _git(root, "reset", "-q", "--hard", before)
        raise
    return commit


def set_tags(root: Path) -> list[str]:
    """Set the missing tags of listed releases, as in a clone without tags.

    Parameters
    ----------
    root
        A clone of npu-scaffold with its full history.

    Returns
    -------
    list of str
        The tags that were set.

    Raises
    ------
    ScaffoldError
        A tag names another commit, or a commit is missing; no tag was set.
    """
    missing, problems = {}, []
    for version, commit in read_releases(_read(root, RELEASES)).items():
        tag = f"v{version}"
        if not _git(root, "rev-parse", "-q", "--verify", f"{commit}^{{commit}}", missing=""):
            problems.append(f"{version} is the commit {commit}, which is not here: fetch it.")
            continue
        found = _git(root, "rev-parse", "-q", "--verify", f"refs/tags/{tag}^{{commit}}", missing="")
        if not found:
            missing[tag] = commit
        elif found != commit:
            problems.append(f"The tag {tag} is at {found}, and {RELEASES} lists {commit}.")
    if problems:
        raise ScaffoldError("\n".join(problems))
    for tag, commit in missing.items():
        _git(root, "tag", "-a", "-m", f"npu-scaffold {tag[1:]}", tag, commit)
    return [*missing]


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _require_clean(root: Path) -> None:
    if _git(root, "status", "--porcelain"):
        raise ScaffoldError(f"{root} has uncommitted changes: commit or remove them.")
    if not _git(root, "symbolic-ref", "-q", "HEAD", missing=""):
        raise ScaffoldError("No branch is checked out: 'git switch' to the one to release from.")


def _require_next(version: str, listed: dict[str, str]) -> None:
    if not _VERSION.fullmatch(version):
        raise ScaffoldError(f"'{version}' is not a version: write three numbers, such as 1.2.3.")
    highest = max(listed, key=_key, default="0.0.0")
    if _key(version) <= _key(highest):
        raise ScaffoldError(f"{version} is not higher than {highest}, the latest release.")


def _unreleased(changelog: str) -> str:
    """Return the section of the changelog that becomes the release's."""
    _, found, rest = changelog.partition(f"{UNRELEASED}\n")
    part = rest.partition("\n## ")[0].strip()
    if not found or not part:
        raise ScaffoldError(
            f"{CHANGELOG} has nothing under '{UNRELEASED}': write what the release brings."
        )
    return part


def _require_honest(version: str, highest: tuple[int, ...], part: str) -> None:
    """Refuse a version that hides from vendors what they must do, or what is new."""
    asks = re.search(r"^- \*\*You must\*\*: (?!nothing)", part, re.MULTILINE | re.IGNORECASE)
    # Before 1.0.0, a minor version may ask something of vendors.
    level = 0 if highest[0] else 1
    if asks and _key(version)[: level + 1] == highest[: level + 1]:
        kind = ("major", "minor")[level]
        raise ScaffoldError(
            f"{CHANGELOG} asks something of vendors ('You must'), so the {kind} version must "
            "increase."
        )
    parts = re.findall(r"^- \*\*([^*]+)\*\*:", part, re.MULTILINE)
    added = [name for name in parts if name.lower() not in ("engine", "you must")]
    if added and _key(version)[:2] == highest[:2]:
        raise ScaffoldError(
            f"{CHANGELOG} has the part '{added[0]}', and a patch only fixes ('Engine'): increase "
            "the minor version."
        )


def _read(root: Path, path: str | Path) -> str:
    return (root / path).read_text(encoding="utf-8")


def _write(root: Path, path: str | Path, text: str) -> None:
    (root / path).write_text(text, encoding="utf-8")


def _git(root: Path, *arguments: str, missing: str | None = None) -> str:
    """Run Git; if it fails, return `missing`, if given."""
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        if missing is not None:
            return missing
        said = (done.stderr or done.stdout).strip()
        raise ScaffoldError(f"git {arguments[0]} fails: {said}")
    return done.stdout.strip()
