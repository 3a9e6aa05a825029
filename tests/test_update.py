"""'copier update': the template changes, and the vendor's work stays."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import copier
import pytest

import support
from npu_scaffold.catalog import load_catalog
from npu_scaffold.derived import write_derived
from support import commit, git

ANSWERS: dict[str, Any] = {
    "backend_name": "acme_npu",
    "op_preset": "custom",
    "ops": ["conv2d", "max_pool2d", "relu"],
}
# The vendor's changes in vendor/: edited seeds, a deleted one, and new files.
APPENDED = {
    "vendor/vendor.cmake": 'set(NPU_VENDOR_LOWERINGS "${_vendor}/lowerings/conv2d.cc")\n',
    "vendor/capabilities.py": "# Vendor: our own limits.\n",
}
DELETED = "vendor/tests/README.md"
ADDED = {
    "vendor/lowerings/conv2d.cc": "// Vendor: our own lowering.\n",
    "vendor/tests/test_board.py": "# Vendor: tests on the board.\n",
}
# The vendor's edits of files that an update merges.
EDITS = {
    "README.md": ("# tvm-acme-npu\n", "# The backend of Acme\n"),
    "pyproject.toml": ('version = "0.1.0"', 'version = "3.2.1"'),
    "python/tvm_acme_npu/__init__.py": ('"""A backend for', '"""Acme\'s backend for'),
}


def _release(repository: Path, tag: str) -> None:
    commit(repository, tag)
    git(repository, "tag", tag)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Make a repository of the template with one release."""
    repository = tmp_path / "origin"
    support.copy_template(repository)
    git(repository, "init", "-q", "-b", "main")
    _release(repository, "v1.0.0")
    return repository


@pytest.fixture
def project(origin: Path, tmp_path: Path) -> Path:
    """Make a project from the first release, with the vendor's edits."""
    tree = tmp_path / "project"
    _copy(origin, tree, "v1.0.0", ANSWERS)
    git(tree, "init", "-q", "-b", "main")
    commit(tree, "start")
    for name, text in APPENDED.items():
        (tree / name).write_text((tree / name).read_text() + text)
    (tree / DELETED).unlink()
    for name, text in ADDED.items():
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(text)
    for name, (old, new) in EDITS.items():
        support.edit(tree / name, old, new)
    commit(tree, "our work")
    return tree


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


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _second_release(origin: Path) -> None:
    """Change files of all three owners, rename an engine file, and add an op in two edits."""
    template = origin / "template"
    support.edit(
        template / "README.md.jinja",
        "## Licence\n",
        "## New in this release\n\nMuch.\n\n## Licence\n",
    )
    support.edit(template / "pyproject.toml.jinja", '  "numpy",\n', '  "numpy",\n  "packaging",\n')
    (template / "NOTES.md.jinja").write_text("New in release 2.\n")

    engine = template / "engine"
    for name in ("backend/lowerings/convolution.cc", "backend/include/npu_driver.h"):
        _append(engine / name, "// Release 2.\n")
    (engine / "backend/runtime/execution.cc").rename(engine / "backend/runtime/run.cc")
    (engine / "backend/runtime/queues.cc").write_text("// New in release 2.\n")

    vendor = template / "vendor"
    for path in support.files(vendor):
        _append(path, "# Release 2.\n")
    (vendor / "capabilities.py.jinja").unlink()
    (vendor / "lowerings").mkdir(exist_ok=True)
    (vendor / "lowerings/README.md").write_text("New in release 2.\n")
    # In the place of a file that the vendor added.
    (vendor / "lowerings/conv2d.cc").write_text("// New in release 2.\n")

    catalog = load_catalog(origin)
    entry = {**catalog["sigmoid"], "id": len(catalog) + 1, "relax": "relax.sinh"}
    entry.update(summary="hyperbolic sine", numpy="np.sinh(x)")
    del entry["family"]
    support.write_family(template / "_catalog/hyperbolic.yml", {"sinh": entry})
    (engine / "backend/lowerings/hyperbolic.cc").write_text(
        'REGISTER_ELEMENTWISE("relax.sinh", Sinh);\n'
    )
    write_derived(origin)
    _release(origin, "v2.0.0")


def _below(folder: str, tree: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in tree.items() if name.startswith(f"{folder}/")}


def _without_markers(tree: Path) -> None:
    for path in support.files(tree):
        assert not re.search(rb"^(<<<<<<<|>>>>>>>) ", path.read_bytes(), re.MULTILINE), path
        assert path.suffix != ".rej"
    assert git(tree, "diff", "--name-only", "--diff-filter=U") == ""


def test_an_update_leaves_vendor_as_it_is_and_replaces_the_rest(
    origin: Path, project: Path, tmp_path: Path
) -> None:
    before = support.contents(project)
    _second_release(origin)
    _update(project)
    _without_markers(project)
    after = support.contents(project)
    assert _below("vendor", after) == _below("vendor", before)

    fresh = tmp_path / "fresh"
    _copy(origin, fresh, "v2.0.0", ANSWERS)
    for name, (old, new) in EDITS.items():
        support.edit(fresh / name, old, new)
    expected = support.contents(fresh)
    assert _below("engine", after) == _below("engine", expected)
    assert {"engine/backend/runtime/run.cc", "engine/backend/runtime/queues.cc"} <= after.keys()
    assert "engine/backend/runtime/execution.cc" not in after
    assert after["engine/backend/lowerings/convolution.cc"].endswith(b"// Release 2.\n")
    for tree in (after, expected):
        for name in _below("vendor", tree):
            del tree[name]
    assert after == expected
    assert b"New in this release" in after["README.md"]


def test_vendor_files_survive_a_recopy(origin: Path, project: Path) -> None:
    before = support.contents(project)
    _second_release(origin)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copier.run_recopy(str(project), defaults=True, overwrite=True, quiet=True, unsafe=False)
    after = _below("vendor", support.contents(project))
    # A recopy may seed missing files, but overwrites none.
    assert {name: after[name] for name in _below("vendor", before)} == _below("vendor", before)


def test_an_op_is_added_by_an_update_and_edits_stay(origin: Path, project: Path) -> None:
    before = support.contents(project)
    _second_release(origin)
    _update(project, ops=["conv2d", "max_pool2d", "relu", "sinh"])
    _without_markers(project)
    assert (project / "engine/backend/lowerings/hyperbolic.cc").is_file()
    assert _below("vendor", support.contents(project)) == _below("vendor", before)
    assert '"sinh"' in (project / "python/tvm_acme_npu/patterns.py").read_text()
    for name, (_, new) in EDITS.items():
        assert new in (project / name).read_text(), name
    assert support.answers(project)["ops"] == ["conv2d", "max_pool2d", "relu", "sinh"]


def test_a_deselected_op_leaves_the_table(origin: Path, project: Path, tmp_path: Path) -> None:
    before = support.contents(project)
    _update(project, ops=["conv2d", "relu"])
    _without_markers(project)
    fresh = tmp_path / "fresh"
    _copy(origin, fresh, "v1.0.0", {**ANSWERS, "ops": ["conv2d", "relu"]})
    ours, theirs = support.contents(project), support.contents(fresh)
    assert b'"max_pool2d"' in before["python/tvm_acme_npu/patterns.py"]
    assert b'"max_pool2d"' not in ours["python/tvm_acme_npu/patterns.py"]
    assert _below("vendor", ours) == _below("vendor", before)
    different = {
        name
        for name in ours.keys() | theirs.keys()
        if ours.get(name) != theirs.get(name) and not name.startswith("vendor/")
    }
    assert different == EDITS.keys()


def test_a_lost_answer_stops_the_update_instead_of_deleting_files(
    origin: Path, project: Path
) -> None:
    """An op that a later catalogue lacks is an error; nothing is replaced by a default."""
    family = origin / "template/_catalog/activation.yml"
    family.write_text(re.sub(r"^relu:\n( .*\n)+", "", family.read_text(), flags=re.MULTILINE))
    support.write_snippets(origin)
    _release(origin, "v2.0.0")
    before = support.contents(project)
    with pytest.raises(ValueError, match="ops"):
        _update(project)
    assert support.contents(project) == before


def test_a_rendered_file_that_was_deleted_stays_deleted(origin: Path, project: Path) -> None:
    (project / ".github/workflows/ci.yml").unlink()
    commit(project, "deleted")
    _second_release(origin)
    _update(project)
    assert not (project / ".github/workflows/ci.yml").exists()


def test_an_update_without_changes_changes_nothing(origin: Path, project: Path) -> None:
    before = support.contents(project)
    _update(project)
    assert support.contents(project) == before


def test_a_clone_of_the_template_is_where_updates_come_from(
    origin: Path, tmp_path: Path, render: Callable[..., Path]
) -> None:
    """Do what users do: clone, copy from the clone, pull, update."""
    clone, tree = tmp_path / "clone", tmp_path / "tree"
    support.run("git", "clone", "-q", origin, clone)
    copier.run_copy(str(clone), str(tree), data=ANSWERS, defaults=True, quiet=True, unsafe=False)
    assert support.answers(tree)["_commit"] == "v1.0.0"
    shutil.rmtree(tree / ".git", ignore_errors=True)
    git(tree, "init", "-q", "-b", "main")
    commit(tree, "start")
    _second_release(origin)
    git(clone, "pull", "-q", "--tags")
    _update(tree)
    _without_markers(tree)
    assert support.answers(tree)["_commit"] == "v2.0.0"
    assert (tree / "NOTES.md").is_file()


@pytest.mark.parametrize("driver", [None, "graph", "commands", "model", "isa"])
def test_the_drivers_skeleton_is_seeded_once(
    origin: Path, tmp_path: Path, driver: str | None
) -> None:
    """None stands for a backend that is older than the question."""
    tree = tmp_path / "tree"
    _copy(origin, tree, "v1.0.0", {**ANSWERS, **({"driver": driver} if driver else {})})
    if driver is None:
        support.edit(tree / ".copier-answers.yml", "driver: emulator\n", "")
    else:
        _append(tree / "vendor/driver/build.cc", "// Vendor: a first op.\n")
        (tree / "vendor/driver/run.cc").unlink()
    git(tree, "init", "-q", "-b", "main")
    commit(tree, "start")
    before = _below("vendor", support.contents(tree))
    _second_release(origin)
    _update(tree)
    _without_markers(tree)
    assert _below("vendor", support.contents(tree)) == before
    assert support.answers(tree)["driver"] == (driver or "emulator")
    assert (tree / "engine/backend/isa").is_dir() == (driver == "isa")
