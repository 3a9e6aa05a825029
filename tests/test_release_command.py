"""'npu-scaffold release': what it commits, lists and tags, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_scaffold.cli import main
from support import git

CHANGELOG = """\
# Changes

## Not released yet

- **Engine**: faster.

## 0.1.0 (2026-01-01)

- **Engine**: first.
"""

ENGINES = [f"{tree}/engine/version.py" for tree in ("template", "reference_backend")]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a small repository with the files that a release needs, and one release."""
    root = tmp_path / "clone"
    for name, text in {
        "copier.yml": "",
        "template/_catalog/README.md": "",
        "pyproject.toml": '[project]\nname = "npu-scaffold"\nversion = "0.1.0"\n',
        **dict.fromkeys(ENGINES, '"""Its version."""\n\nVERSION = "0.1.0"\n'),
        "CHANGELOG.md": "# Changes\n\n## 0.1.0 (2026-01-01)\n\n- **Engine**: first.\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "Release 0.1.0")
    first = git(root, "rev-parse", "HEAD")
    (root / "releases.yml").write_text(f"# All.\nreleases:\n  0.1.0: {first}\n\ngone:\n")
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    git(root, "add", ".")
    git(root, "commit", "-qm", "Work")
    return root


def _state(root: Path) -> tuple[str, ...]:
    return tuple(git(root, *words) for words in (["rev-parse", "HEAD"], ["tag"], ["status", "-s"]))


def test_a_release_is_named_listed_and_tagged(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "0.2.0", "--template", str(clone)]) == 0
    assert "git push origin HEAD v0.2.0" in capsys.readouterr().out
    named, listed = git(clone, "log", "-2", "--reverse", "--format=%H").split()
    assert git(clone, "rev-parse", "v0.2.0^{commit}") == named
    assert 'version = "0.2.0"' in git(clone, "show", f"{named}:pyproject.toml")
    for engine in ENGINES:
        assert 'VERSION = "0.2.0"' in git(clone, "show", f"{named}:{engine}")
    text = git(clone, "show", f"{named}:CHANGELOG.md")
    assert "\n## 0.2.0 (2" in text and "Not released yet" not in text
    assert named not in git(clone, "show", f"{named}:releases.yml")
    assert f"\n  0.2.0: {named}\n\ngone:" in git(clone, "show", f"{listed}:releases.yml")
    # A backend of a later commit is not one of the release.
    assert 'version = "0.3.0.dev0"' in git(clone, "show", f"{listed}:pyproject.toml")
    for engine in ENGINES:
        assert 'VERSION = "0.3.0.dev0"' in git(clone, "show", f"{listed}:{engine}")
    assert git(clone, "status", "-s") == ""
    # A second release is refused: the changelog has nothing new.
    assert main(["release", "0.3.0", "--template", str(clone)]) == 1
    assert "nothing under '## Not released yet'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0.1.0", "0.1.0 is not higher than 0.1.0"),
        ("0.0.9", "0.0.9 is not higher than 0.1.0"),
        ("v0.2.0", "'v0.2.0' is not a version: write three numbers"),
        ("", "Give the version to release, or --tags alone."),
    ],
)
def test_a_version_that_does_not_fit_is_refused(
    clone: Path, capsys: pytest.CaptureFixture[str], version: str, sentence: str
) -> None:
    before = _state(clone)
    assert main(["release", version, "--template", str(clone)]) == 1
    assert sentence in capsys.readouterr().err
    assert _state(clone) == before


def test_a_tree_with_changes_and_a_tag_that_exists_are_refused(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["release", "0.2.0", "--template", str(clone)]
    (clone / "note.txt").write_text("")
    assert main(command) == 1
    assert "has uncommitted changes" in capsys.readouterr().err
    (clone / "note.txt").unlink()
    git(clone, "tag", "v0.2.0")
    assert main(command) == 1
    assert "There is a tag v0.2.0 already." in capsys.readouterr().err
    git(clone, "tag", "-d", "v0.2.0")
    git(clone, "switch", "-q", "--detach")
    assert main(command) == 1
    assert "No branch is checked out" in capsys.readouterr().err


def test_a_release_that_asks_something_of_vendors_is_not_minor(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = CHANGELOG.replace("- **Engine**: faster.", "- **You must**: rename a file.")
    (clone / "CHANGELOG.md").write_text(asking)
    git(clone, "commit", "-qam", "Ask")
    assert main(["release", "0.1.1", "--template", str(clone)]) == 1
    assert "so the minor version must increase" in capsys.readouterr().err
    assert main(["release", "1.0.0", "--template", str(clone)]) == 0
    (clone / "CHANGELOG.md").write_text(asking)
    git(clone, "commit", "-qam", "Ask again")
    assert main(["release", "1.1.0", "--template", str(clone)]) == 1
    assert "so the major version must increase" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["Ops", "Limits", "Driver interface", "Rendered files", "Seeds"])
def test_a_release_that_adds_something_is_not_a_patch(
    clone: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    adding = CHANGELOG.replace("faster.", f"faster.\n- **{part}**: more.\n- **You must**: nothing.")
    (clone / "CHANGELOG.md").write_text(adding)
    git(clone, "commit", "-qam", "Add")
    before = _state(clone)
    assert main(["release", "0.1.1", "--template", str(clone)]) == 1
    assert (
        f"CHANGELOG.md has the part '{part}', and a patch only fixes ('Engine'): increase the "
        "minor version."
    ) in capsys.readouterr().err
    assert _state(clone) == before
    assert main(["release", "0.2.0", "--template", str(clone)]) == 0


def test_a_patch_fixes(clone: Path) -> None:
    assert main(["release", "0.1.1", "--template", str(clone)]) == 0


def test_a_release_that_git_refuses_leaves_nothing(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = clone / ".git/hooks/commit-msg"
    # Fail at the second of the two commits.
    hook.write_text('#!/bin/sh\nif grep -q "^List" "$1"; then echo "not today" >&2; exit 1; fi\n')
    hook.chmod(0o755)
    before = _state(clone)
    assert main(["release", "0.2.0", "--template", str(clone)]) == 1
    assert "git commit fails: not today" in capsys.readouterr().err
    assert _state(clone) == before


def test_tags_are_set_from_the_list(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["release", "--tags", "--template", str(clone)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{clone}: set v0.1.0.\n"
    assert git(clone, "rev-parse", "v0.1.0^{commit}") in (clone / "releases.yml").read_text()
    assert main(command) == 0
    assert capsys.readouterr().out == f"{clone}: all releases have their tags.\n"
    git(clone, "tag", "-f", "v0.1.0", "HEAD")
    assert main(command) == 1
    assert "The tag v0.1.0 is at " in capsys.readouterr().err
    listed = git(clone, "rev-parse", "HEAD~")
    (clone / "releases.yml").write_text(
        f"releases:\n  0.1.0: {listed}\n  0.0.1: {listed}\n  0.0.2: {'f' * 40}\n"
    )
    assert main(command) == 1
    assert f"0.0.2 is the commit {'f' * 40}, which is not here" in capsys.readouterr().err
    assert git(clone, "tag") == "v0.1.0"
