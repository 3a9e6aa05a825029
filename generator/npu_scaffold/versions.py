"""A rendered backend and the versions of the template that it came from, for an upgrade."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from .errors import ScaffoldError, did_you_mean
from .git import git_output, run_git
from .render import read_answers

ANSWERS = ".copier-answers.yml"
RELEASES = "releases.yml"


def find_commit(repository: Path, name: str) -> str | None:
    """Return the hash of a commit, or None if there is none of that name."""
    done = run_git(
        repository, "rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{commit}}"
    )
    return done.stdout.decode().strip() if name and not done.returncode else None


@dataclass(frozen=True)
class Project:
    """A rendered backend in a Git work tree; it may be a folder of a larger repository."""

    root: Path
    top: Path
    answers: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Return the backend's folder within the repository."""
        return self.root.relative_to(self.top)

    @classmethod
    def open(cls, path: Path) -> Project:
        """Open a backend without uncommitted changes."""
        root = path.resolve()
        remembered = root / ANSWERS
        if not remembered.is_file():
            raise ScaffoldError(
                f"{path} has no {ANSWERS}, so it is not a backend that npu-scaffold made. "
                "Give the directory of one."
            )
        given = read_answers(remembered)
        raw = yaml.safe_load(remembered.read_text(encoding="utf-8"))
        if "backend_name" not in given:
            raise ScaffoldError(f"{remembered} has no backend_name: npu-scaffold did not make it.")
        if not isinstance(raw.get("_src_path"), str) or not isinstance(raw.get("_commit"), str):
            raise ScaffoldError(
                f"{remembered} does not say which version of the template it came from: it was "
                "made from a template outside Git. Put back the lines _src_path (a clone or URL of "
                "npu-scaffold) and _commit (the version), and commit them."
            )
        inside = run_git(root, "rev-parse", "--show-toplevel")
        if inside.returncode:
            raise ScaffoldError(
                f"{path} is not in a Git work tree, so an upgrade could not be undone. Run "
                "'git init && git add . && git commit -m Start' in it first."
            )
        top = Path(inside.stdout.decode(errors="surrogateescape").rstrip("\n")).resolve()
        if find_commit(root, "HEAD") is None:
            raise ScaffoldError(f"{path} has no commit yet. Commit it, then upgrade.")
        dirty = git_output(root, "status", "--porcelain", "--", ".").splitlines()
        if dirty:
            names = [line[3:] for line in dirty]
            raise ScaffoldError(
                f"{path} has uncommitted changes: {some_of(names)}. Commit them or put "
                "them away with 'git stash --include-untracked', then upgrade."
            )
        return cls(root, top, raw)


def some_of(names: Sequence[str], most: int = 8) -> str:
    """List the first names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def version_of(name: str) -> Version | None:
    """Read a tag or version; None if it is neither."""
    try:
        return Version(name) if re.match(r"v?\d", name) else None
    except InvalidVersion:
        return None


def read_releases(text: str) -> dict[str, str]:
    """Read the list of releases.

    Parameters
    ----------
    text
        The content of ``releases.yml``.

    Returns
    -------
    dict
        Version -> commit, in the order of the file.
    """
    releases = (yaml.safe_load(text) or {}).get("releases") or {}
    return {str(version): str(commit) for version, commit in releases.items()}


class Template:
    """A private clone of the template with all versions."""

    def __init__(self, source: str, clone: Path) -> None:
        self.source = source
        self.clone = clone
        url = re.sub(r"^git\+", "", source)
        for short, host in (("gh:", "https://github.com/"), ("gl:", "https://gitlab.com/")):
            if url.startswith(short):
                url = host + url.removeprefix(short).lstrip("/")
        local = "://" not in url and not re.match(r"[\w.-]+@[\w.-]+:", url)
        if local and not Path(url).expanduser().exists():
            raise ScaffoldError(
                f"The template was at {source}, and nothing is there now. Say where npu-scaffold "
                "is with --template, as a clone or a URL."
            )
        done = run_git(
            clone.parent,
            *("clone", "-q", "--", str(Path(url).expanduser().resolve()) if local else url),
            str(clone),
        )
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise ScaffoldError(
                f"The template at {source} cannot be cloned ({said}). Say where npu-scaffold is "
                "with --template, as a clone or a URL."
            )
        if not (clone / "copier.yml").is_file():
            raise ScaffoldError(f"{source} is not a clone of npu-scaffold: it has no copier.yml.")
        self.versions: dict[str, str] = {}
        listed = run_git(clone, "show", f"HEAD:{RELEASES}")
        if not listed.returncode:
            for version, commit in read_releases(listed.stdout.decode()).items():
                found = find_commit(clone, commit)
                if found:
                    self.versions[f"v{version}"] = found
        for tag in git_output(clone, "tag").splitlines():
            if version_of(tag):
                self.versions[tag] = find_commit(clone, f"refs/tags/{tag}") or ""

    def _known(self) -> str:
        names = sorted(self.versions, key=lambda name: version_of(name) or Version("0"))
        return f"it has {', '.join(names)}" if names else "it has no releases, only commits"

    def resolve(self, wanted: str | None) -> str:
        """Find the commit of a version; the default is the latest release."""
        if wanted is None:
            released = {
                version: commit
                for name, commit in self.versions.items()
                if (version := version_of(name)) and not version.is_prerelease
            }
            return released[max(released)] if released else find_commit(self.clone, "HEAD") or ""
        for name in (wanted, f"v{wanted}"):
            if name in self.versions:
                return self.versions[name]
        found = find_commit(self.clone, wanted) or find_commit(self.clone, f"origin/{wanted}")
        if found is None:
            raise ScaffoldError(
                f"The template at {self.source} has no version '{wanted}'"
                f"{did_you_mean(wanted, self.versions)}: {self._known()}."
            )
        return found

    def origin(self, name: str) -> str:
        """Return the commit that a project was rendered from."""
        found = find_commit(self.clone, name)
        if found is None:
            raise ScaffoldError(
                f"The template at {self.source} has no version '{name}', from which this backend "
                f"was made: {self._known()}. It may be another template, a clone without the whole "
                "history, or the backend was made from uncommitted work. Name the right one with "
                "--template."
            )
        return found

    def files(self, commit: str) -> Path:
        """Export the files of a version to a folder outside Git."""
        folder = self.clone.with_name(f"template-{commit}")
        if not folder.exists():
            packed = run_git(self.clone, "archive", "--format=tar", commit).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
        return folder

    def name(self, commit: str) -> str:
        """Return the version of a commit, or how Git describes it."""
        for name, listed in self.versions.items():
            if listed == commit:
                return name
        return git_output(self.clone, "describe", "--tags", "--always", commit)
