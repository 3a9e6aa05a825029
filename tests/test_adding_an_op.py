"""The page about adding an op: its entry and its lowering make an op that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_scaffold.catalog import CASES, LOWERINGS, load_catalog
from support import ROOT, Workshop, copy_template, render, run

PAGE = ROOT / "docs/adding-an-op.md"


def block(language: str) -> str:
    """Return the page's only block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return str(found)


OP = block("yaml").partition(":")[0]
FAMILY = "unary"


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the template, and follow the page."""
    copy = tmp_path_factory.mktemp("extended")
    copy_template(copy)
    with (copy / f"template/_catalog/{FAMILY}.yml").open("a") as catalog:
        catalog.write("\n" + block("yaml"))
    cases = copy / CASES / f"{FAMILY}.json"
    cases.write_text(f"{cases.read_text().rstrip()[:-1].rstrip()},\n\n{block('json')}}}\n")
    (copy / LOWERINGS / f"{OP}.cc").write_text(block("cpp"))
    return copy


def test_the_op_is_new_and_its_entry_is_right(extended: Path) -> None:
    assert OP not in load_catalog(ROOT)
    assert OP in load_catalog(extended)
    assert f"ops=[{OP}, relu]" in PAGE.read_text(), "the command of the page renders the op"


def test_the_commit_of_the_page_has_the_new_files(tmp_path: Path) -> None:
    """Copier renders commits, so a lowering that Git does not track is missing."""
    (line,) = re.findall(r"^    (git add -A && git commit -m .*)$", PAGE.read_text(), re.MULTILINE)
    run("git", "init", "-q", cwd=tmp_path)
    (tmp_path / LOWERINGS).mkdir(parents=True)
    (tmp_path / LOWERINGS / f"{OP}.cc").write_text(block("cpp"))
    run("bash", "-c", line, cwd=tmp_path)
    assert run("git", "ls-tree", "-r", "--name-only", "HEAD", cwd=tmp_path).endswith(f"{OP}.cc\n")


@pytest.mark.slow
def test_the_new_op_passes_the_conformance_kit(
    extended: Path, workshop: Workshop, tmp_path: Path
) -> None:
    project = render(
        extended, tmp_path / "backend", backend_name="try_npu", op_preset="custom", ops=[OP, "relu"]
    )
    python = workshop.environment(workshop.build(project))
    kit = (python, "-m", "tvm_try_npu", "conformance", "--suite", "ops")
    assert f"ops/{OP}-plain" in run(*kit, "--list", "--filter", f"ops/{OP}-")
    run(*kit, "--filter", f"ops/{OP}-")
    run(python, "-m", "pytest", "-q", "engine/tests/test_ops.py", "-k", OP, cwd=project)
