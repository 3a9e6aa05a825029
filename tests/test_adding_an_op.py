"""The page about adding an op: its entry and its lowering make an op that works."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from npu_scaffold.catalog import LOWERINGS, catalog_problems, load_catalog
from npu_scaffold.derived import CASES, RELAX_OPS, write_derived
from npu_scaffold.snippets import SNIPPETS
from npu_scaffold.template import CATALOG
from pages import code_block
from support import (
    BUILD_MODEL,
    IN_ONE_PROCESS,
    ROOT,
    Workshop,
    contents,
    copy_template,
    render,
    run,
)

PAGE = ROOT / "docs/adding-an-op.md"


OP = code_block(PAGE, "yaml").partition(":")[0]
FAMILY = "unary"
END = "\n}  // namespace\n}  // namespace npu\n"


SCRIPT = f"""
import numpy as np
import tvm
import tvm_try_npu as npu
from tvm import relax
{BUILD_MODEL}
model = build(relax.op.{OP}, (2, 3))
x = np.array([[-900, -1, -0.5], [0, 2, 900]], "float32")
y = relax.VirtualMachine(npu.compile_for_try_npu(model), tvm.cpu())["main"](tvm.runtime.tensor(x))
np.testing.assert_allclose(y.numpy(), np.arcsinh(x), rtol=1e-5, atol=1e-6)
(placed,) = npu.offload_report(npu.partition_for_try_npu(model)).ops
print(placed.placement)
"""


@pytest.fixture(scope="module")
def extended(edited: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what is made of the catalogue."""
    copy = tmp_path_factory.mktemp("extended")
    shutil.copytree(edited, copy, dirs_exist_ok=True)
    write_derived(copy)
    return copy


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the template, and follow the page."""
    copy = tmp_path_factory.mktemp("edited")
    copy_template(copy)
    with (copy / f"template/_catalog/{FAMILY}.yml").open("a") as catalog:
        catalog.write("\n" + code_block(PAGE, "yaml"))
    lowerings = copy / LOWERINGS / f"{FAMILY}.cc"
    lowering = code_block(PAGE, "cpp").partition("namespace {\n")[2]
    assert lowering.endswith(END)
    lowerings.write_text(lowerings.read_text().removesuffix(END) + lowering)
    return copy


def test_the_op_is_new_and_its_entry_is_right(extended: Path) -> None:
    assert OP not in load_catalog(ROOT)
    assert OP in load_catalog(extended)
    assert catalog_problems(extended) == []
    assert f"ops=[{OP}, relu]" in PAGE.read_text(), "the command of the page renders the op"


def test_a_new_op_is_an_entry_and_a_lowering(template: Path, edited: Path, extended: Path) -> None:
    """The number of files that one edits by hand, and of those that the command writes."""

    def changed(before: Path, after: Path) -> set[str]:
        old, new = contents(before), contents(after)
        return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}

    assert changed(template, edited) == {f"{CATALOG}/{FAMILY}.yml", f"{LOWERINGS}/{FAMILY}.cc"}
    assert changed(edited, extended) == {f"{SNIPPETS}", f"{CASES}/{FAMILY}.json", f"{RELAX_OPS}"}


def test_the_commit_of_the_page_has_the_lowering(tmp_path: Path) -> None:
    """Copier renders commits, so what is not committed is missing."""
    (line,) = re.findall(r"^    (git add -A && git commit -m .*)$", PAGE.read_text(), re.MULTILINE)
    run("git", "init", "-q", cwd=tmp_path)
    (tmp_path / LOWERINGS).mkdir(parents=True)
    (tmp_path / LOWERINGS / f"{FAMILY}.cc").write_text(code_block(PAGE, "cpp"))
    run("bash", "-c", line, cwd=tmp_path)
    committed = run("git", "ls-tree", "-r", "--name-only", "HEAD", cwd=tmp_path)
    assert committed.endswith(f"{FAMILY}.cc\n")


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
    run(*kit, *IN_ONE_PROCESS, "--filter", f"ops/{OP}-", "--output", tmp_path / "result")
    outcomes = json.loads((tmp_path / "result/conformance.json").read_text())["cases"]
    cases = [case["name"] for case in load_catalog(extended)[OP]["cases"]]
    assert len(outcomes) > len(cases) > 3
    for outcome in outcomes:
        assert (outcome["op"], outcome["status"]) == (OP, "passed"), outcome
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run(python, script, cwd=tmp_path).splitlines()[-1] == "npu"
    run(python, "-m", "pytest", "-q", "engine/backend/tests/test_ops.py", "-k", OP, cwd=project)
