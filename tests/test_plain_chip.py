"""A limited chip: constant weights, float32, static shapes, one device.

The emulator runs with such a table, to find out what the rendered tests and the conformance kit
take for granted: all of them pass, and no case that the chip supports is skipped.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from npu_scaffold.catalog import load_catalog
from support import (
    IN_ONE_PROCESS,
    ROOT,
    WITHOUT_SUITES,
    Workshop,
    attempt,
    copy_tests,
    declining,
    engine_tests,
    run,
    site_packages,
)

pytestmark = pytest.mark.slow

OVERLAY = ROOT / "tests/overlays/plain_chip"
SUITES = ("ops", "composites", "contract", "states")
WEIGHTED = (
    "matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv1d_transpose",
    "conv2d_transpose",
    "conv3d_transpose",
    "depthwise_conv2d",
)
"""Ops whose second operand is a weight on this chip: each of their cases runs on the NPU.

For matmul with two activations, too: the kit binds the second operand as a constant.
"""


@pytest.fixture(scope="module")
def plain(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment whose reference backend has the chip's table."""
    project = tmp_path_factory.mktemp("plain") / "backend"
    shutil.copytree(ROOT / "reference_backend", project)
    # The libraries do not depend on the table, so other tests share the wheel.
    python = workshop.environment(workshop.wheel(project))
    package = site_packages(python) / "tvm_example_npu"
    shutil.copytree(OVERLAY / "vendor", package / "vendor", dirs_exist_ok=True)
    return python


def test_check_finds_a_case_that_the_chip_takes(plain: Path, tmp_path: Path) -> None:
    out = run(plain, "-m", "tvm_example_npu", "check", cwd=tmp_path)
    assert "runs on the NPU, with right values" in out


def test_the_rendered_tests_pass(plain: Path, tmp_path: Path) -> None:
    copy_tests(ROOT / "reference_backend", tmp_path)
    shutil.copytree(OVERLAY / "vendor/tests", tmp_path / "vendor/tests", dirs_exist_ok=True)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *WITHOUT_SUITES)
    out = run(plain, *command, cwd=tmp_path)
    assert "declined" not in out, "the emulator takes what the table accepts"


@pytest.fixture(scope="module")
def result(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the suites that depend on the table."""
    output = tmp_path_factory.mktemp("result")
    command = [plain, "-m", "tvm_example_npu", "conformance", "--strict", "--output", output]
    command += [*IN_ONE_PROCESS, "--suite", ",".join(SUITES)]
    done = attempt(*command, cwd=output)
    assert done.returncode == 0, done.stdout
    data: dict[str, Any] = json.loads((output / "conformance.json").read_text())
    return data


def test_the_suites_pass(result: dict[str, Any]) -> None:
    totals = result["suites"]
    for suite in SUITES:
        counts = totals[suite]
        assert counts["passed"] > 0, suite
        assert (counts["failed"], counts["declined"]) == (0, 0), suite
    # Skipped are only symbols, options of other devices and NaN, which the chip does not support.
    reasons = {
        case["reason"]
        for case in result["cases"]
        if case["suite"] in ("ops", "composites") and case["status"] == "not_run"
    }
    known = ("NaN", "the table refuses it", "it is refused for another reason")
    assert all(any(word in reason for word in known) for reason in reasons), reasons


@pytest.mark.parametrize("op", WEIGHTED)
def test_every_case_with_weights_runs_by_value(result: dict[str, Any], op: str) -> None:
    cases = load_catalog(ROOT)
    names = [item["name"] for item in cases[op]["cases"] if _is_float32(item)]
    assert len(names) > 5
    found = {
        case["case"]: case
        for case in result["cases"]
        if case["suite"] == "ops" and case["op"] == op and case["expected"] == "all"
    }
    for name in names:
        plain_name = f"{op}-{name.replace(' ', '_')}"
        case = found.get(plain_name) or found.get(f"{plain_name},_n=3")
        assert case is not None, f"{plain_name} was left out"
        assert (case["status"], case["found"]) == ("passed", "all"), case
        assert case["ratio"] is not None, f"{plain_name} was not compared"


def test_a_driver_that_takes_one_op_passes(plain: Path, tmp_path: Path) -> None:
    """As at the beginning of a bring-up: what it declines is no failure, and some tests run."""
    copy_tests(ROOT / "reference_backend", tmp_path)
    # The workers of the kit import it, too.
    (tmp_path / "site").mkdir()
    script = declining('not ops <= {"relax.nn.relu"}', "not yet")
    (tmp_path / "site/sitecustomize.py").write_text(script)
    paths = [tmp_path / file for file in engine_tests("extract", "ops", "compile_cache")]
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *paths)
    out = run(plain, *command, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert "not yet" in out and "no case of any op" not in out


def _is_float32(item: dict[str, Any]) -> bool:
    """Whether a case is for float32, judging by the case alone."""
    given = [spec.get("dtype") for spec in item["inputs"].values() if isinstance(spec, dict)]
    named = [dtype for dtype in given if dtype]
    wanted = item.get("attributes", {}).get("out_dtype", "float32") or "float32"
    return {*named, wanted} <= {"float32"} and "float32" in item.get("dtypes", ["float32"])
