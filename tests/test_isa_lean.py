"""A machine that is different on purpose is made by files of the vendor's alone.

It has no vectors and no scoreboard, one memory of 64 kB in which its sums are, too, and an array
that takes 32 bytes by 8 columns at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import support
from support import IN_ONE_PROCESS, ROOT, Workshop, copy_tests, run

OVERLAY = ROOT / "tests/overlays/isa_lean/vendor"
OPS = ("matmul-square", "conv2d-", "softmax-", "max_pool2d-", "concat-")


def test_it_is_two_files_of_less_than_400_lines() -> None:
    names = sorted(file.name for file in OVERLAY.rglob("*") if file.is_file())
    assert names == ["isa.py", "isa_semantics.h"]
    assert sum(len((OVERLAY / name).read_text().splitlines()) for name in names) < 400


@pytest.mark.slow
def test_a_machine_without_vectors_and_scoreboard_is_an_overlay(
    render: Callable[..., Path], workshop: Workshop, tmp_path: Path
) -> None:
    for module in ("onnx", "onnxruntime"):
        pytest.importorskip(module)
    skeleton = render(backend_name="isa_npu", driver="isa")
    project = support.lay_over(skeleton, OVERLAY, tmp_path / "lean")
    python = workshop.environment(workshop.wheel(project))
    support.lend_packages(python)
    assert_right(python, tmp_path)
    script = (ROOT / "tests/run_on_instructions.py", "tvm_isa_npu", tmp_path, "digits")
    out = run(python, *script, cwd=tmp_path, ISA_NPU_DRIVER="vendor")
    for name, model in json.loads(out.splitlines()[-1]).items():
        assert model["on_host"] == [] and model["regions"] == 1, name
        assert model["error"] <= (0 if name.endswith("int8") else 1e-5), name
        assert model["same_without_compiler"] and model["same_over_rpc"], name
    copy_tests(project, tmp_path)
    tests = ("engine/backend/isa/tests", "engine/workbench/isa_emulator/tests")
    out = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=tmp_path)
    assert re.search(r"\n\d{3} passed", out), out


def assert_right(python: Path, folder: Path) -> None:
    """Run cases; declined are only those that mix rows, or that the machine has no types for."""
    kit = (python, "-m", "tvm_isa_npu", "conformance", *IN_ONE_PROCESS, "--output", folder / "kit")
    chosen = [word for op in OPS for word in ("--filter", f"ops/{op}")]
    chosen += ["--filter", "quantized/conv2d-", "--filter", "quantized/add-"]
    run(*(*kit, "--suite", "ops,quantized", *chosen), cwd=folder, ISA_NPU_DRIVER="vendor")
    found = json.loads((folder / "kit/conformance.json").read_text())
    counts = {suite: row["passed"] for suite, row in found["suites"].items()}
    assert counts["ops"] > 80 and counts["quantized"] > 40, counts
    declined = [case["reason"] for case in found["cases"] if case["status"] == "declined"]
    known = ("the dimension of an open size", " is f16; ")
    assert all(any(reason in text for reason in known) for text in declined), declined
