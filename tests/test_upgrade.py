"""'npu-scaffold upgrade': what it shows, refuses and leaves alone, on a small template."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import copier
import pytest
import yaml

import support
from npu_scaffold.cli import main
from support import ROOT, commit, edit, git

COPIER = """\
_min_copier_version: "9.19.0"
_subdirectory: template
_envops: {undefined: jinja2.StrictUndefined}
_exclude:
  - /_catalog
  - "{% for name in unselected | default([]) %}/engine/lowerings/{{ name }}.cc\\n{% endfor %}"
  - "{% if _copier_operation == 'update' %}/vendor{% endif %}"
_skip_if_exists: [/vendor]
catalog_documents: {type: yaml, when: false, default: !include template/_catalog/ops.yml}
catalog: {type: json, when: false, default: "{{ catalog_documents[0] | to_json }}"}
backend_name: {type: str}
license: {type: str, default: MIT, choices: [Apache-2.0, MIT]}
op_preset:
  type: str
  ask: "{{ ops is undefined }}"
  choices: [everything, custom]
  default: "{{ 'everything' if ops is undefined else 'custom' }}"
ops:
  type: str
  multiselect: true
  ask: "{{ op_preset == 'custom' }}"
  choices: "{{ catalog | list | to_json }}"
  default: "{{ UNSET if op_preset == 'custom' else catalog | list | to_json }}"
unselected:
  {type: json, when: false, default: "{{ catalog | reject('in', ops) | list | to_json }}"}
"""
LINES = "".join(f"line {number}\n" for number in range(1, 31))
TEMPLATE = {
    "copier.yml": COPIER,
    "template/_catalog/ops.yml": "relu: {max: 4}\nconv2d: {max: 16}\nadd: {max: 6}\n",
    "template/{{ _copier_conf.answers_file }}.jinja": (
        "{% set known = dict(_copier_answers) -%}{% set _ = known.pop('op_preset', none) -%}\n"
        "{{ known | to_nice_yaml }}"
    ),
    "template/README.md.jinja": f"# {{{{ backend_name }}}}\n{LINES}",
    "template/notes/board.md": LINES,
    "template/python/tvm_{{ backend_name }}/patterns.py.jinja": (
        "OPS = {\n{% for op in ops %}    '{{ op }}': Pattern(),\n{% endfor %}}\n"
    ),
    "template/engine/backend/include/npu_driver.h": f"#define NPU_DRIVER_API_VERSION 1\n{LINES}",
    "template/engine/backend/codegen/core.cc": LINES,
    "template/engine/lowerings/relu.cc": "relu\n",
    "template/engine/lowerings/conv2d.cc": "conv2d\n",
    "template/engine/lowerings/add.cc": "add\n",
    "template/vendor/capabilities.py.jinja": (
        "RANKS = (4,)\nLIMITS = {\n{% for op in ops %}"
        "    '{{ op }}': Limits(x=Takes(RANKS), size=Range(min=1, max={{ catalog[op].max }})"
        "{{ ', symbols=True' if catalog[op].max > 20 }}),\n"
        "{% endfor %}}\n"
    ),
    "template/vendor/driver/driver.c": LINES,
    "template/vendor/tests/README.md": "Yours.\n",
}


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Release a small template, and make a backend from it."""
    root = tmp_path_factory.mktemp("first")
    for name, text in TEMPLATE.items():
        write(root / "template", name, text)
    git(root / "template", "init", "-q", "-b", "main")
    commit(root / "template", "first")
    git(root / "template", "tag", "v0.1.0")
    copier.run_copy(
        str(root / "template"),
        str(root / "project"),
        data={"backend_name": "acme_npu"},
        defaults=True,
        quiet=True,
    )
    git(root / "project", "init", "-q", "-b", "main")
    commit(root / "project", "start")
    return root


@pytest.fixture
def origin(first: Path, tmp_path: Path) -> Path:
    shutil.copytree(first / "template", tmp_path / "template")
    return tmp_path / "template"


@pytest.fixture
def project(first: Path, origin: Path, tmp_path: Path) -> Path:
    tree = tmp_path / "project"
    shutil.copytree(first / "project", tree)
    edit(tree / ".copier-answers.yml", str(first / "template"), str(origin))
    commit(tree, "the template is there")
    return tree


def release(origin: Path, version: str = "v0.2.0") -> None:
    """Release the current changes, together with a few typical ones."""
    edit(origin / "template/README.md.jinja", "line 3\n", "line 3 of release 2\n")
    edit(origin / "template/engine/backend/codegen/core.cc", "line 5\n", "line 5 of release 2\n")
    edit(origin / "template/engine/backend/include/npu_driver.h", "VERSION 1", "VERSION 2")
    edit(origin / "template/vendor/driver/driver.c", "line 7\n", "line 7 of release 2\n")
    write(origin, "template/vendor/passes.py", "PASSES = []\n")
    write(origin, "template/engine/backend/codegen/new.cc", "new\n")
    edit(origin / "template/vendor/capabilities.py.jinja", "(4,)", "(4, 5)")
    edit(origin / "template/_catalog/ops.yml", "conv2d: {max: 16}", "conv2d: {max: 64}")
    with (origin / "template/_catalog/ops.yml").open("a") as catalog:
        catalog.write("sub: {max: 6}\n")
    write(origin, "template/engine/lowerings/sub.cc", "sub\n")
    commit(origin, version)
    git(origin, "tag", version)


def upgrade(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["upgrade", *map(str, arguments)])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out + said.err


def work(project: Path, **files: str | None) -> None:
    """Commit edits of the vendor; in names, `__` stands for a slash and `_dot_` for a dot."""
    for key, text in files.items():
        path = project / key.replace("__", "/").replace("_dot_", ".")
        if text is None:
            path.unlink()
        else:
            write(project, str(path.relative_to(project)), text)
    commit(project, "our work")


def refused(capsys: pytest.CaptureFixture[str], project: Path, *arguments: str | Path) -> str:
    """Run an upgrade that must fail and change nothing."""
    before, status = support.contents(project), git(project, "status", "--porcelain")
    code, said = upgrade(capsys, *arguments, project)
    assert code == 1
    assert support.contents(project) == before
    assert git(project, "status", "--porcelain") == status
    return said


def test_an_upgrade_shows_what_it_changes_and_stages_it(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, tmp_path: Path
) -> None:
    before = support.contents(project)
    release(origin)
    shown = upgrade(capsys, "--dry-run", project)
    assert shown[0] == 0 and "nothing was changed" in shown[1]
    assert support.contents(project) == before

    code, said = upgrade(capsys, project)
    assert code == 0, said
    assert "project: v0.1.0 -> v0.2.0" in said
    assert "engine: 1 added, 2 changed, 0 removed\n  ~ engine/backend/codegen/core.cc\n  +" in said
    assert "rendered: 0 added, 1 changed, 0 removed\n  ~ README.md\n" in said
    assert "driver API version: 1 -> 2" in said
    assert "selected with -d ops=[...]: sub" in said
    assert "conv2d: size: Range(min=1, max=16) -> Range(min=1, max=64)" in said
    assert "  conv2d: symbols: True (new)\n" in said
    # The vendor's file may have no such constant, or another value for it.
    assert "  relu: x: (4,) -> (4, 5)\n" in said
    assert "~ vendor/driver/driver.c\n  + vendor/passes.py" in said
    assert shown[1].splitlines()[:-1] == said.splitlines()[:-1]

    copier.run_copy(
        str(origin),
        str(tmp_path / "fresh"),
        data={"backend_name": "acme_npu", "ops": ["relu", "conv2d", "add"]},
        defaults=True,
        quiet=True,
        vcs_ref="v0.2.0",
    )
    after = support.contents(project)
    assert after.keys() - before.keys() == {"engine/backend/codegen/new.cc"}
    fresh = support.contents(tmp_path / "fresh")
    for name, data in after.items():
        assert data == (before if name.startswith("vendor/") else fresh)[name], name
    assert git(project, "diff", "--name-only") == "", "all is staged"
    assert "A  engine/backend/codegen/new.cc" in git(project, "status", "--porcelain")


def test_it_does_what_copier_does(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, tmp_path: Path
) -> None:
    edit(project / "README.md", "line 25\n", "line 25 of Acme\n")
    edit(project / "vendor/driver/driver.c", "line 7\n", "line 7 of Acme\n")
    (project / "vendor/tests/README.md").unlink()
    write(project, "vendor/driver/sdk.c", "Acme\n")
    write(project, "extra/tool.py", "Acme\n")
    (project / "notes/board.md").unlink()
    commit(project, "our work")
    release(origin)
    plain = tmp_path / "plain"
    shutil.copytree(project, plain)
    support.run(sys.executable, "-m", "copier", "update", "--defaults", "-q", plain)
    assert upgrade(capsys, project)[0] == 0
    after = support.contents(project)
    assert after == support.contents(plain)
    assert b"line 25 of Acme" in after["README.md"]
    assert b"line 3 of release 2" in after["README.md"]
    assert b"line 7 of Acme" in after["vendor/driver/driver.c"]
    assert after["vendor/driver/sdk.c"] == after["extra/tool.py"] == b"Acme\n"
    assert {"vendor/tests/README.md", "vendor/passes.py", "notes/board.md"}.isdisjoint(after)


def test_a_preset_gains_no_op_unless_asked(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    assert support.answers(project)["ops"] == ["relu", "conv2d", "add"]
    assert "op_preset" not in support.answers(project)
    release(origin)
    assert upgrade(capsys, project)[0] == 0
    assert support.answers(project)["ops"] == ["relu", "conv2d", "add"]
    assert not (project / "engine/lowerings/sub.cc").exists()
    commit(project, "upgraded")
    code, said = upgrade(capsys, "-d", "ops=[relu, sub]", project)
    assert code == 0
    assert "ops added: sub\nops dropped: add, conv2d\n" in said
    assert {path.name for path in (project / "engine/lowerings").iterdir()} == {
        "relu.cc",
        "sub.cc",
    }
    assert "conv2d" in (project / "vendor/capabilities.py").read_text(), "vendor/ is the vendor's"


def test_nothing_to_do(capsys: pytest.CaptureFixture[str], origin: Path, project: Path) -> None:
    code, said = upgrade(capsys, project)
    assert (code, said) == (0, f"{project} has version v0.1.0 already.\n")


def test_conflicts_change_nothing_unless_kept(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    edit(project / "README.md", "line 3\n", "line 3 of Acme\n")
    commit(project, "our work")
    release(origin)
    said = refused(capsys, project)
    assert "conflict in:\n  README.md\nNothing was changed" in said
    code, said = upgrade(capsys, "--keep-conflicts", project)
    assert code == 1
    assert "Conflict markers are in:\n  README.md\n" in said
    assert "<<<<<<< before updating" in (project / "README.md").read_text()
    assert git(project, "diff", "--name-only", "--diff-filter=U").split() == ["README.md"]
    assert support.attempt("git", "commit", "-m", "too early", cwd=project).returncode != 0
    assert (project / "engine/backend/codegen/new.cc").exists()
    git(project, "reset", "-q", "--hard")
    assert not (project / "engine/backend/codegen/new.cc").exists()


def test_an_edited_file_that_is_renamed_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    edit(project / "notes/board.md", "line 9\n", "line 9 of Acme\n")
    commit(project, "our work")
    (origin / "template/notes/board.md").rename(origin / "template/notes/hardware.md")
    release(origin)
    said = refused(capsys, project)
    assert "notes/board.md was edited here" in said and "which is now notes/hardware.md" in said
    code, said = upgrade(capsys, "--drop", "notes/board.md", project)
    assert code == 0
    assert not (project / "notes/board.md").exists() and (project / "notes/hardware.md").exists()


def test_an_unedited_file_that_is_renamed_is_just_renamed(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    (origin / "template/notes/board.md").rename(origin / "template/notes/hardware.md")
    release(origin)
    code, said = upgrade(capsys, project)
    assert code == 0 and "  - notes/board.md" in said and "  + notes/hardware.md" in said
    assert {path.name for path in (project / "notes").iterdir()} == {"hardware.md"}


def test_an_edited_file_that_is_deleted_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    work(project, notes__board_dot_md="Acme\n")
    (origin / "template/notes/board.md").unlink()
    release(origin)
    said = refused(capsys, project)
    assert "notes/board.md was edited here, and the upgrade would delete it" in said
    assert "--drop notes/board.md" in said
    assert "--drop notes: there is no such file" in refused(capsys, project, "--drop", "notes")


def test_an_edited_file_that_is_gone_is_named_with_the_release_s_advice(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    work(project, python__tvm_acme_npu__patterns_dot_py="OPS = {}\n")
    (origin / "template/python/tvm_{{ backend_name }}/patterns.py.jinja").unlink()
    gone = {"python/tvm_example_npu/patterns.py": "List your ops in vendor/."}
    write(origin, "releases.yml", yaml.safe_dump({"gone": gone}))
    write(origin, "generator/reference_answers.yml", "{backend_name: example_npu, class_name: No}")
    release(origin)
    said = refused(capsys, project)
    assert "patterns.py was edited here, and the upgrade would delete it" in said
    assert "lost. List your ops in vendor/. To continue, pass --drop python/tvm_acme_npu/" in said


def test_a_header_that_vendor_includes_and_the_engine_lacks_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    """With the command that brings it back."""
    for name in ("pool", "common", "kept"):
        write(origin, f"template/engine/lowerings/{name}.h", f"{name}\n")
    release(origin)
    assert upgrade(capsys, project)[0] == 0
    work(
        project,
        vendor__lowerings__a_dot_cc='#include <vector>\n#include "pool.h"\n#include "own.h"\n',
        vendor__lowerings__b_dot_cc='#include "common.h"\n  #  include "lowerings/kept.h"\n',
        vendor__driver__include__common_dot_h="ours\n",
    )
    for name in ("pool", "common"):
        (origin / f"template/engine/lowerings/{name}.h").unlink()
    write(origin, "template/README.md.jinja", "Release 3.\n")
    commit(origin, "v0.3.0")
    git(origin, "tag", "v0.3.0")
    code, said = upgrade(capsys, project)
    assert code == 0 and "the new engine lacks" in said
    (line,) = [line.strip() for line in said.splitlines() if "git show" in line]
    user, _, command = line.partition(": ")
    assert user == "vendor/lowerings/a.cc"
    support.run("sh", "-c", command, cwd=project)
    assert (project / "vendor/lowerings/pool.h").read_text() == "pool\n"


def test_the_edited_lowering_of_an_op_that_is_dropped_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    work(project, engine__lowerings__add_dot_cc="add of Acme\n")
    said = refused(capsys, project, "-d", "ops=[relu]")
    assert "engine/lowerings/add.cc was edited here" in said


def test_a_new_file_where_the_vendor_has_one_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    work(project, notes__new_dot_md="Acme\n")
    write(origin, "template/notes/new.md", "new\n")
    release(origin)
    assert "notes/new.md is your file, and the new version adds one" in refused(capsys, project)


def test_a_new_file_where_an_ignored_one_lies_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    work(project, _dot_gitignore="/engine/backend/codegen/new.cc\n")
    write(project, "engine/backend/codegen/new.cc", "a build made it\n")
    release(origin)
    assert "engine/backend/codegen/new.cc is untracked and in the way" in refused(capsys, project)


def test_a_new_file_that_the_vendor_ignores_arrives(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    work(project, _dot_gitignore="new.cc\n")
    release(origin)
    assert upgrade(capsys, project)[0] == 0
    assert (project / "engine/backend/codegen/new.cc").read_text() == "new\n"
    assert "engine/backend/codegen/new.cc" in git(project, "ls-files")


@pytest.mark.parametrize("edited", [False, True])
def test_a_file_that_is_left_to_the_vendor_from_now_on_is_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, edited: bool
) -> None:
    if edited:
        edit(project / "notes/board.md", "line 20\n", "line 20 of Acme\n")
        commit(project, "our work")
    before = (project / "notes/board.md").read_text()
    edit(origin / "copier.yml", "[/vendor]", "[/vendor, /notes]")
    edit(origin / "template/notes/board.md", "line 2\n", "line 2 of release 2\n")
    release(origin)
    code, said = upgrade(capsys, project)
    assert code == 0
    after = (project / "notes/board.md").read_text()
    if edited:
        assert after == before
        assert "notes/board.md (your text, without the template's changes)" in said
    else:
        assert after == before.replace("line 2\n", "line 2 of release 2\n")
        assert "notes/board.md (updated for the last time)" in said


@pytest.mark.parametrize("whose", ["unedited", "edited"])
@pytest.mark.parametrize("what", ["file to folder", "folder to file"])
def test_a_file_that_becomes_a_folder_or_the_other_way(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, whose: str, what: str
) -> None:
    old, new = "engine/backend/codegen/core.cc", "engine/backend/codegen/core.cc/main.cc"
    if what == "folder to file":
        old, new = "notes/board.md", "notes"
    if whose == "edited":
        edit(project / old, "line 9\n", "line 9 of Acme\n")
        commit(project, "our work")
    release(origin)
    git(origin, "tag", "-d", "v0.2.0")
    (origin / "template" / old).unlink()
    if what == "folder to file":
        (origin / "template/notes").rmdir()
    write(origin, f"template/{new}", "new\n")
    commit(origin, "v0.2.0")
    git(origin, "tag", "v0.2.0")
    if whose == "edited":
        assert f"{old} is edited here, and the new version needs its place" in refused(
            capsys, project
        )
        return
    code, said = upgrade(capsys, project)
    assert code == 0, said
    assert (project / new).read_text() == "new\n"
    assert f"- {old}" in said and f"+ {new}" in said


def test_an_answer_that_is_lost_stops_the_upgrade(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    edit(origin / "copier.yml", "default: MIT, choices: [Apache-2.0, MIT]", "choices: [BSD]")
    release(origin)
    said = refused(capsys, project)
    assert "Version v0.2.0 does not take an answer: license: 'MIT' is not in ['BSD']" in said
    assert upgrade(capsys, "-d", "license=BSD", project)[0] == 0
    assert support.answers(project)["license"] == "BSD"


def test_the_name_of_a_backend_cannot_be_changed(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    release(origin)
    said = refused(capsys, project, "-d", "backend_name=bcme_npu")
    assert "-d backend_name: this backend is acme_npu, which cannot be changed" in said
    assert upgrade(capsys, "-d", "backend_name=acme_npu", project)[0] == 0


def test_an_answer_that_is_forgotten_stops_the_upgrade(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    edit(origin / "copier.yml", "license: {", "license: {when: '{{ false }}', ")
    release(origin)
    said = refused(capsys, project)
    assert "license: the new version does not keep your answer 'MIT'" in said


def test_a_question_that_is_gone_is_reported(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    edit(origin / "copier.yml", "license: {", "license: {when: false, ")
    release(origin)
    code, said = upgrade(capsys, project)
    assert code == 0 and "removed questions, whose answers are dropped: license" in said


def test_an_op_that_the_catalogue_lost_stops_the_upgrade(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    edit(origin / "template/_catalog/ops.yml", "relu: {max: 4}\n", "")
    release(origin)
    assert "ops: 'relu' is not in" in refused(capsys, project)


def test_places_and_versions_that_are_not_there_are_named(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, tmp_path: Path
) -> None:
    release(origin)
    said = refused(capsys, project, "--to", "v0.3")
    assert "has no version 'v0.3' (did you mean 'v0.2.0'?): it has v0.1.0, v0.2.0." in said
    assert "no such question (did you mean 'ops'?)" in refused(capsys, project, "-d", "opps=[relu]")
    assert "write it as key=value" in refused(capsys, project, "-d", "ops")

    moved = origin.rename(tmp_path / "moved")
    said = refused(capsys, project)
    assert f"The template was at {origin}, and nothing is there now" in said
    assert "cannot be cloned" in refused(capsys, project, "--template", tmp_path)
    code, said = upgrade(capsys, "--template", moved, "--to", "0.2.0", project)
    assert code == 0, said
    assert support.answers(project)["_src_path"] == str(moved)
    assert support.answers(project)["_commit"] == "v0.2.0"
    commit(project, "upgraded")
    assert "which is later than v0.1.0" in refused(capsys, project, "--to", "v0.1.0")

    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "other")
    write(other, "copier.yml", "")
    commit(other, "other")
    assert "has no version 'v0.2.0', from which" in refused(capsys, project, "--template", other)


def test_anything_but_a_clean_backend_is_refused(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        code, said = upgrade(capsys, path)
        assert code == 1 and "has no .copier-answers.yml, so it is not a backend" in said
    (project / "README.md").write_text("Acme\n")
    assert "uncommitted changes: README.md." in refused(capsys, project)
    git(project, "checkout", "-q", "README.md")
    write(project, "new.txt", "Acme\n")
    assert "uncommitted changes: new.txt." in refused(capsys, project)
    (project / "new.txt").unlink()

    answers = (project / ".copier-answers.yml").read_text()
    for text, sentence in (
        ("[", "is not YAML"),
        ("- a\n", "must hold answers as a mapping"),
        ("name: x\n", "has no backend_name"),
        ("backend_name: x\n", "does not say which version of the template"),
        (answers.replace("license: MIT", "license: GPL"), "cannot be rendered with the answers"),
    ):
        (project / ".copier-answers.yml").write_text(text)
        commit(project, "broken")
        assert sentence in refused(capsys, project, "-d", "license=MIT")
    (project / ".copier-answers.yml").write_text(answers)
    shutil.rmtree(project / ".git")
    code, said = upgrade(capsys, project)
    assert code == 1 and "is not in a Git work tree" in said
    git(project, "init", "-q")
    code, said = upgrade(capsys, project)
    assert code == 1 and "has no commit yet" in said


def test_releases_are_known_without_tags(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path
) -> None:
    release(origin)
    listed = {
        "0.1.0": git(origin, "rev-parse", "v0.1.0").strip(),
        "0.2.0": git(origin, "rev-parse", "v0.2.0").strip(),
    }
    write(origin, "releases.yml", yaml.safe_dump({"releases": listed}))
    edit(origin / "template/README.md.jinja", "line 30\n", "line 30 after release 2\n")
    commit(origin, "list of releases")
    git(origin, "tag", "-d", "v0.1.0", "v0.2.0")
    edit(project / ".copier-answers.yml", "v0.1.0", listed["0.1.0"])
    commit(project, "no tags")
    assert "it has v0.1.0, v0.2.0." in refused(capsys, project, "--to", "7")
    code, said = upgrade(capsys, project)
    assert code == 0 and "v0.1.0 -> v0.2.0" in said
    assert "after release 2" not in (project / "README.md").read_text()
    # Copier can upgrade from there: its answers file names a commit of the repository.
    git(origin, "cat-file", "-e", support.answers(project)["_commit"])


def test_a_backend_may_be_a_folder_and_have_submodules(
    capsys: pytest.CaptureFixture[str], origin: Path, project: Path, tmp_path: Path
) -> None:
    release(origin)
    top, sdk = tmp_path / "top", tmp_path / "sdk"
    git(tmp_path, "init", "-q", "sdk")
    write(sdk, "sdk.h", "Acme\n")
    commit(sdk, "sdk")
    git(tmp_path, "init", "-q", "top")
    shutil.copytree(project, top / "libs/npu", ignore=shutil.ignore_patterns(".git"))
    write(top, "other.txt", "Acme\n")
    git(
        *(top, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(sdk)),
        "libs/npu/vendor/sdk",
    )
    commit(top, "all")
    (top / "other.txt").write_text("at work\n")
    code, said = upgrade(capsys, top / "libs/npu")
    assert code == 0, said
    assert (top / "other.txt").read_text() == "at work\n"
    assert (top / "libs/npu/engine/backend/codegen/new.cc").exists()
    assert (top / "libs/npu/vendor/sdk/sdk.h").read_text() == "Acme\n"
    changed = git(top, "diff", "--staged", "--name-only").split()
    assert "libs/npu/README.md" in changed
    assert not any(name.startswith(("libs/npu/vendor", "other")) for name in changed)


def _start(project: Path, scratch: Path, path: str | None = None) -> subprocess.Popen[bytes]:
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT / "generator")}
    if path:
        environment["PATH"] = path + os.pathsep + environment["PATH"]
    return subprocess.Popen(
        [sys.executable, "-m", "npu_scaffold", "upgrade", str(project)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait(condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None or condition(), "the upgrade ended before that point"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("point", ["*/template/copier.yml", "*/old/*", "*/project/.git", "*/index"])
def test_a_killed_upgrade_leaves_the_backend_as_it_was(
    origin: Path, project: Path, tmp_path: Path, point: str
) -> None:
    release(origin)
    before = support.contents(project)
    process = _start(project, tmp_path / "scratch")
    try:
        _wait(lambda: next((tmp_path / "scratch").glob(point), None), process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    if point != "*/index":
        assert support.contents(project) == before
        assert git(project, "status", "--porcelain") == ""
        return
    # Killed this late, the upgrade has changed either nothing or everything.
    time.sleep(2)
    after = support.contents(project)
    assert after == before or b"release 2" in after["engine/backend/codegen/core.cc"]


def test_git_finishes_its_step_when_the_upgrade_is_killed(
    origin: Path, project: Path, tmp_path: Path
) -> None:
    """Kill the upgrade while Git replaces the files: Git itself keeps running, and finishes."""
    release(origin)
    begun = tmp_path / "begun"
    shim = tmp_path / "bin/git"
    write(
        tmp_path,
        "bin/git",
        f'#!/bin/sh\ncase "$*" in *"read-tree -m"*) touch {begun}; sleep 1;; esac\n'
        f'exec {shutil.which("git")} "$@"\n',
    )
    shim.chmod(0o755)
    process = _start(project, tmp_path / "scratch", str(shim.parent))
    try:
        _wait(begun.exists, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 60
    while "A  engine/backend/codegen/new.cc" not in git(project, "status", "--porcelain"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    after = support.contents(project)
    assert b"release 2" in after["engine/backend/codegen/core.cc"]
    assert b"release 2" in after["README.md"]
