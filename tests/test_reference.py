"""The reference backend is the template, rendered."""

from __future__ import annotations

import shutil
from pathlib import Path

import support
from npu_scaffold.cli import main
from npu_scaffold.derived import CASES
from npu_scaffold.render import reference_differences, write_reference
from npu_scaffold.snippets import SNIPPETS
from support import ROOT


def _checkout(template: Path, destination: Path) -> Path:
    shutil.copytree(template, destination, dirs_exist_ok=True)
    shutil.copytree(ROOT / "generator", destination / "generator", dirs_exist_ok=True)
    return destination


def test_the_reference_backend_equals_a_fresh_render() -> None:
    assert reference_differences(ROOT) == []


def test_the_reference_backend_names_no_place_and_no_commit() -> None:
    answers = support.answers(ROOT / "reference_backend")
    assert answers["backend_name"] == "example_npu"
    assert not [key for key in answers if key.startswith("_")]


def test_what_was_written_has_no_differences_and_each_change_is_one(
    template: Path, tmp_path: Path, capsys: object
) -> None:
    checkout = _checkout(template, tmp_path / "checkout")
    reference = checkout / "reference_backend"
    write_reference(checkout)
    assert reference_differences(checkout) == []

    readme = (reference / "README.md").read_text().splitlines(keepends=True)
    readme[2] = "changed\n"
    (reference / "README.md").write_text("".join(readme))
    (reference / "LICENSE").unlink()
    (reference / "extra.txt").write_text("")
    (reference / "pyproject.toml").write_text((reference / "pyproject.toml").read_text() + "\n")
    lines = (reference / "pyproject.toml").read_text().count("\n")
    (checkout / SNIPPETS).write_text((checkout / SNIPPETS).read_text() + "\n")
    (checkout / CASES / "image.json").unlink()
    assert reference_differences(checkout) == [
        "reference_backend/LICENSE is missing.",
        "reference_backend/README.md differs from line 3 on.",
        f"reference_backend/{CASES.relative_to('template')}/image.json is not rendered by the "
        "template.",
        "reference_backend/extra.txt is not rendered by the template.",
        f"reference_backend/pyproject.toml differs from line {lines} on.",
        "template/_macros/ops.jinja differs from the catalogue.",
        f"{CASES}/image.json differs from the catalogue.",
    ]
    assert main(["reference", "--check", "--template", str(checkout)]) == 1
    assert main(["reference", "--write", "--template", str(checkout)]) == 0
    assert main(["reference", "--check", "--template", str(checkout)]) == 0


def test_what_git_ignores_is_neither_compared_nor_deleted(template: Path, tmp_path: Path) -> None:
    checkout = _checkout(template, tmp_path / "checkout")
    support.run("git", "init", "-q", cwd=checkout)
    write_reference(checkout)
    build = checkout / "reference_backend/build/a.o"
    build.parent.mkdir()
    build.write_text("object")
    assert reference_differences(checkout) == []
    write_reference(checkout)
    assert build.exists()
