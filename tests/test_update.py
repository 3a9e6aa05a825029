"""'copier update': the template changes, the vendor's work stays."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import copier
import pytest
import yaml

import support

ANSWERS: dict[str, Any] = {
    "backend_name": "acme_npu",
    "op_preset": "custom",
    "ops": ["conv2d", "max_pool2d", "relu"],
}
# What a vendor writes into its own files, and into one of the template's.
YOURS = {
    "src/ops/conv2d.cc": "// Vendor: our own lowering.\n",
    "src/driver/acme_npu_driver.h": "// Vendor: our own driver.\n",
}
# What a vendor changes in files that an update merges.
EDITS = {
    "README.md": ("# tvm-acme-npu\n", "# The backend of Acme\n"),
    "pyproject.toml": ('version = "0.1.0"', 'version = "3.2.1"'),
    "python/tvm_acme_npu/capabilities.py": (
        '"groups": Range(min=1)',
        '"groups": Range(min=1, max=1)',
    ),
}


def _git(repository: Path, *arguments: str) -> str:
    return support.run("git", *arguments, cwd=repository)


def _release(repository: Path, tag: str) -> None:
    _git(repository, "add", "--all")
    _git(repository, "commit", "-q", "-m", tag)
    _git(repository, "tag", tag)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository of the template with one release."""
    repository = tmp_path / "origin"
    support.copy_template(repository)
    _git(repository, "init", "-q", "-b", "main")
    _release(repository, "v1.0.0")
    return repository


@pytest.fixture
def project(origin: Path, tmp_path: Path) -> Path:
    """A project that was made from the first release, and edited by its vendor."""
    tree = tmp_path / "project"
    _copy(origin, tree, "v1.0.0", ANSWERS)
    _git(tree, "init", "-q", "-b", "main")
    _git(tree, "add", "--all")
    _git(tree, "commit", "-q", "-m", "start")
    for name, text in YOURS.items():
        (tree / name).write_text((tree / name).read_text() + text)
    (tree / "tests/vendor").mkdir(exist_ok=True)
    (tree / "tests/vendor/test_board.py").write_text("# Vendor: tests on the board.\n")
    for name, (old, new) in EDITS.items():
        _edit(tree / name, old, new)
    _git(tree, "add", "--all")
    _git(tree, "commit", "-q", "-m", "our work")
    return tree


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _copy(origin: Path, tree: Path, tag: str, answers: dict[str, Any]) -> None:
    copier.run_copy(
        str(origin), str(tree), data=answers, defaults=True, quiet=True, unsafe=False, vcs_ref=tag
    )


def _update(tree: Path, **answers: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copier.run_update(
            str(tree), data=answers, defaults=True, overwrite=True, quiet=True, unsafe=False
        )


def _second_release(origin: Path) -> None:
    """Change files of both kinds, and add an op with its two edits."""
    template = origin / "template"
    _edit(
        template / "README.md.jinja",
        "## Licence\n",
        "## New in this release\n\nMuch.\n\n## Licence\n",
    )
    _edit(template / "pyproject.toml.jinja", '  "numpy",\n', '  "numpy",\n  "packaging",\n')
    for name in ("_ops/conv2d.cc.jinja", "_ops/relu.cc.jinja"):
        (template / name).write_text((template / name).read_text() + "// Release 2.\n")
    driver = template / "src/driver/{{ backend_name }}_driver.h.jinja"
    driver.write_text(driver.read_text() + "// Release 2.\n")
    (template / "NOTES.md.jinja").write_text("New in release 2.\n")
    catalog = template / "_catalog/ops.yml"
    entry = yaml.safe_load(catalog.read_text())["sigmoid"]
    entry.update(relax="relax.negative", summary="minus x", numpy="-x")
    catalog.write_text(f"{catalog.read_text()}\n{yaml.safe_dump({'negative': entry})}")
    lowering = (template / "_ops/sigmoid.cc.jinja").read_text()
    (template / "_ops/negative.cc.jinja").write_text(lowering)
    _release(origin, "v2.0.0")


def _without_markers(tree: Path) -> None:
    for path in support.files(tree):
        assert not re.search(rb"^(<<<<<<<|>>>>>>>) ", path.read_bytes(), re.MULTILINE), path
        assert path.suffix != ".rej"
    assert _git(tree, "diff", "--name-only", "--diff-filter=U") == ""


def test_an_update_equals_a_fresh_render_with_the_edits_of_the_vendor(
    origin: Path, project: Path, tmp_path: Path
) -> None:
    before = support.contents(project)
    _second_release(origin)
    _update(project)
    _without_markers(project)

    fresh = tmp_path / "fresh"
    _copy(origin, fresh, "v2.0.0", ANSWERS)
    for name, (old, new) in EDITS.items():
        _edit(fresh / name, old, new)
    expected = support.contents(fresh)
    # All that is the vendor's is as it was, where it had edits and where it had none.
    mine = ("src/ops/", "src/driver/", "tests/vendor/")
    expected = {name: data for name, data in expected.items() if not name.startswith(mine)}
    expected |= {name: data for name, data in before.items() if name.startswith(mine)}
    assert support.contents(project) == expected
    assert b"New in this release" in expected["README.md"]
    assert b"Release 2" not in expected["src/ops/relu.cc"]


def test_an_op_is_added_by_an_update_and_edits_stay(origin: Path, project: Path) -> None:
    _second_release(origin)
    _update(project, ops=["conv2d", "max_pool2d", "relu", "negative"])
    _without_markers(project)
    assert (project / "src/ops/negative.cc").is_file()
    for name, text in YOURS.items():
        assert (project / name).read_text().endswith(text), name
    table = (project / "python/tvm_acme_npu/capabilities.py").read_text()
    assert 'name="negative"' in table
    for name, (_, new) in EDITS.items():
        assert new in (project / name).read_text(), name
    assert support.answers(project)["ops"] == ["conv2d", "max_pool2d", "relu", "negative"]


def test_deselecting_an_op_removes_its_files(origin: Path, project: Path, tmp_path: Path) -> None:
    _update(project, ops=["conv2d", "relu"])
    _without_markers(project)
    fresh = tmp_path / "fresh"
    _copy(origin, fresh, "v1.0.0", {**ANSWERS, "ops": ["conv2d", "relu"]})
    assert 'name="max_pool2d"' not in (project / "python/tvm_acme_npu/capabilities.py").read_text()
    assert {path.name for path in (project / "src/ops").iterdir()} == {
        path.name for path in (fresh / "src/ops").iterdir()
    }
    ours, theirs = support.contents(project), support.contents(fresh)
    theirs["tests/vendor/test_board.py"] = b""
    assert ours.keys() == theirs.keys()
    edited = {*YOURS, *EDITS, "tests/vendor/test_board.py"}
    different = {name for name in ours if ours[name] != theirs[name]}
    assert different <= edited, different - edited


def test_a_lost_answer_stops_the_update_instead_of_deleting_files(
    origin: Path, project: Path
) -> None:
    """An op that a later catalogue lacks is an error; nothing is replaced by a default."""
    catalog = origin / "template/_catalog/ops.yml"
    entries = yaml.safe_load(catalog.read_text())
    del entries["relu"]
    catalog.write_text(yaml.safe_dump(entries, sort_keys=False))
    _release(origin, "v2.0.0")
    before = support.contents(project)
    with pytest.raises(ValueError, match="ops"):
        _update(project)
    assert support.contents(project) == before


def test_a_deleted_file_of_the_vendor_comes_back_and_one_of_the_template_does_not(
    origin: Path, project: Path
) -> None:
    (project / "src/ops/relu.cc").unlink()
    (project / ".github/workflows/ci.yml").unlink()
    _git(project, "add", "--all")
    _git(project, "commit", "-q", "-m", "deleted")
    _second_release(origin)
    _update(project)
    assert (project / "src/ops/relu.cc").is_file()
    assert not (project / ".github/workflows/ci.yml").exists()


def test_an_update_without_changes_changes_nothing(origin: Path, project: Path) -> None:
    before = support.contents(project)
    _update(project)
    assert support.contents(project) == before


def test_a_clone_of_the_template_is_where_updates_come_from(
    origin: Path, tmp_path: Path, render: Callable[..., Path]
) -> None:
    """What users do: clone, copy from the clone, pull, update."""
    clone, tree = tmp_path / "clone", tmp_path / "tree"
    support.run("git", "clone", "-q", origin, clone)
    copier.run_copy(str(clone), str(tree), data=ANSWERS, defaults=True, quiet=True, unsafe=False)
    assert support.answers(tree)["_commit"] == "v1.0.0"
    shutil.rmtree(tree / ".git", ignore_errors=True)
    _git(tree, "init", "-q", "-b", "main")
    _git(tree, "add", "--all")
    _git(tree, "commit", "-q", "-m", "start")
    _second_release(origin)
    _git(clone, "pull", "-q", "--tags")
    _update(tree)
    _without_markers(tree)
    assert support.answers(tree)["_commit"] == "v2.0.0"
    assert (tree / "NOTES.md").is_file()
