"""A chip with an instruction set of its own: what is rendered for it, and that it builds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import support
from pages import BLOCK
from support import IN_ONE_PROCESS, ROOT, Workshop, copy_tests, run

ANSWERS = {
    "backend_name": "isa_npu",
    "op_preset": "custom",
    "ops": ["add", "matmul", "relu"],
    "driver": "isa",
}
SEEDS = ("isa.py", "isa_semantics.h", "schedules.py", "tir_passes.py", "sdk/compile.py")


def test_only_this_answer_has_the_compiler_of_instructions(render: Callable[..., Path]) -> None:
    tree, other = render(**ANSWERS), render(**{**ANSWERS, "driver": "model"})
    engine = ["isa.py", "backend/isa/machine.py", "backend/isa/tests/test_table.py"]
    for name in engine:
        assert (tree / "engine" / name).is_file(), name
    for name in SEEDS:
        assert (tree / "vendor" / name).is_file(), name
    added = {*support.contents(tree)} - {*support.contents(other)}
    assert {*(f"engine/{name}" for name in engine)} <= added
    assert not any("/isa" in name for name in support.contents(other))
    assert "numpy" in (tree / "pyproject.toml").read_text().split("build-backend")[0]
    assert "engine/backend/isa" not in (other / "pyproject.toml").read_text()


IN_SOURCES = """
import json
from pathlib import Path
from engine.backend.isa.loading import load
from engine.backend.isa.page import page
machine = load(Path("vendor/isa.py"))
names = {it.name: it.engine for it in machine.instructions.values()}
print(json.dumps([names, page(machine)]))
"""


def test_the_table_needs_neither_tvm_nor_a_build(
    render: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "tvm.py").write_text("raise ImportError('no TVM here')")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); sys.dont_write_bytecode = True"
    found = run("python", "-c", code + IN_SOURCES, cwd=render(**ANSWERS))
    names, page = json.loads(found)
    assert {
        "ld": "load",
        "mm": "matrix",
        "vec": "vector",
        "halt": "control",
    }.items() <= names.items()
    assert page.startswith("# The instruction set of example\n") and "### rescale\n" in page


RUN_OF_PAGE = """
from tvm_isa_npu.engine.backend.isa.loading import load
from tvm_isa_npu.engine.backend.isa.program import Program
from tvm_isa_npu.engine.backend.isa.text import assembled
data = bytes(range(64))
lines = [f"set to=r{{r}} value={{v << 40}}" for r, v in ((1, 2), (2, 34), (3, 35))]
lines += ["ld target=r1 source=r2 bytes=64", "st target=r3 source=r1 bytes=64", "halt"]
lines = assembled(load(), "\\n".join(lines))
program = Program("example", tuple(lines), inputs=(64,), outputs=(64,))
{python}
assert result.outputs == (data,) and result.cycles > 36, result
assert result.engines["load"].busy == 16 + 2, result
"""


def python_of(page: str) -> str:
    """Return the Python of a page, for the backend of this test."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    text = "\n".join(body for language, body in blocks if language == "python")
    return text.replace("tvm_acme_npu", "tvm_isa_npu")


def test_what_the_page_about_the_emulator_shows(
    render: Callable[..., Path], tmp_path: Path
) -> None:
    text = (ROOT / "docs/isa-emulator.md").read_text()
    (function,) = (body for language, body in BLOCK.findall(text) if language == "cpp")
    tree = render(**ANSWERS)
    assert function in (tree / "vendor/isa_semantics.h").read_text()
    command = ("python", "-m", "engine.backend.isa.cpp", "vendor/isa.py", str(tmp_path / "isa"))
    run(*command, cwd=tree, PYTHONDONTWRITEBYTECODE="1")
    assert "struct StepFields {" in (tmp_path / "isa/isa_table.h").read_text()
    assert "MeasureStep" in (tmp_path / "isa/isa_table.inc").read_text()


PAGE = """
import sys
sys.dont_write_bytecode = True
from dataclasses import replace
from typing import Any
import numpy as np
from engine.backend.isa import cases
from engine.isa import Address, Box, Engine, Machine, Memory, Number, State
{machine}
MACHINE.engines = (*MACHINE.engines, Engine("load", {{"": 32}}))
{instruction}
MACHINE.check()
random = np.random.default_rng(0)
for _ in range(50):
    found = cases.faults(cases.random_case(MACHINE, "ld", random), random)
    assert not found, found
"""


def test_the_table_of_the_page_tells_the_truth(render: Callable[..., Path]) -> None:
    text = (ROOT / "docs/isa-table.md").read_text()
    machine, instruction = (body for language, body in BLOCK.findall(text) if language == "python")
    run(
        "python", "-c", PAGE.format(machine=machine, instruction=instruction), cwd=render(**ANSWERS)
    )


@pytest.mark.slow
def test_a_backend_with_an_instruction_set_builds_and_works(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    project = render(backend_name="isa_npu", driver="isa")
    python = workshop.environment(workshop.wheel(project))
    out = run(python, "-m", "tvm_isa_npu", "check", cwd=tmp_path, ISA_NPU_DRIVER="vendor")
    assert "All is well." in out
    assert_right_on_instructions(python, tmp_path)
    run(python, "-c", RUN_OF_PAGE.format(python=python_of("docs/isa-emulator.md")), cwd=tmp_path)
    copy_tests(project, tmp_path)
    out = run(
        *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "engine/backend/isa/tests"),
        "engine/workbench/isa_emulator/tests",
        cwd=tmp_path,
    )
    assert re.search(r"\n\d{3} passed", out), out


def assert_right_on_instructions(python: Path, folder: Path) -> None:
    """Run cases of each kind by TVM's loops as instructions."""
    kit = (python, "-m", "tvm_isa_npu", "conformance", *IN_ONE_PROCESS, "--output", folder / "kit")
    ops = ("matmul-square", "conv2d-", "softmax-", "layer_norm-", "gelu-", "cumsum-", "topk-")
    chosen = [word for op in ops for word in ("--filter", f"ops/{op}")]
    chosen += ["--filter", "quantized/conv2d-", "--filter", "quantized/add-"]
    run(
        *(*kit, "--suite", "ops,quantized", *chosen),
        cwd=folder,
        ISA_NPU_DRIVER="vendor",
    )
    found = json.loads((folder / "kit/conformance.json").read_text())
    counts = {suite: row["passed"] for suite, row in found["suites"].items()}
    assert counts["ops"] > 100 and counts["quantized"] > 40, counts
    # Only sizes that are known when the program is made have instructions.
    declined = [case["reason"] for case in found["cases"] if case["status"] == "declined"]
    assert all("has no add_symbol" in reason for reason in declined), declined
