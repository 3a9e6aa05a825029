"""The page of the ops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import support
from npu_scaffold import pages
from npu_scaffold.catalog import load_catalog
from npu_scaffold.cli import main
from npu_scaffold.errors import ScaffoldError
from support import ROOT


def test_the_page_is_that_of_the_table_and_the_last_result() -> None:
    assert pages.differences(ROOT) == []


def test_every_op_passes_all_its_cases() -> None:
    found = json.loads((ROOT / pages.SUMMARY).read_text())["suites"]["ops"]["ops"]
    for op in load_catalog(ROOT):
        assert op in found, f"{op} is not in the last result"
        passed, total, left = found[op]
        assert 0 < passed == total, f"{op}: {passed} of {total} cases passed"
        assert not left, f"{op}: {left} cases were not run"
    assert found.keys() == load_catalog(ROOT).keys()


def test_no_file_has_marks_of_a_conflict() -> None:
    marks = "^(<<<<<<<|>>>>>>>) "
    assert support.attempt("git", "grep", "-lE", marks, cwd=ROOT).stdout == ""


def _case(op: str, status: str, suite: str = "ops") -> dict[str, Any]:
    reason = "not for me: it is new" if status == "not_run" else ""
    return {
        **{"suite": suite, "case": f"{op} {status}", "op": op},
        **{"status": status, "reason": reason},
    }


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """Make the result of a run."""
    path = tmp_path / "conformance.json"
    data = {
        "format_version": 1,
        "driver_api_version": 3,
        "tvm_version": "0.27",
        "python_version": "3.12",
        "options": {"filters": []},
        "suites": {"ops": {}, "onnx_nodes": {}},
        "cases": [
            _case("relu", "passed"),
            _case("relu", "failed"),
            _case("matmul", "not_run"),
            _case("Relu", "expected_failure", "onnx_nodes"),
            _case("Relu", "not_run", "onnx_nodes"),
        ],
    }
    path.write_text(json.dumps(data))
    return path


def test_a_result_is_reduced_to_totals(result: Path) -> None:
    assert pages.summarize(result)["suites"] == {
        "ops": {
            "statuses": {"failed": 1, "not_run": 1, "passed": 1},
            "not_run": {"not for me": 1},
            "ops": {"matmul": [0, 0, 1], "relu": [1, 2, 0]},
        },
        "onnx_nodes": {
            "statuses": {"expected_failure": 1, "not_run": 1},
            "not_run": {"not for me": 1},
            "ops": {"Relu": [0, 1, 1]},
        },
    }


def test_the_command_writes_the_page_and_sees_that_it_is_old(
    tmp_path: Path, result: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "template"
    (template / "docs").mkdir(parents=True)
    shutil.copy(ROOT / "copier.yml", template)
    shutil.copytree(ROOT / "template/_catalog", template / "template/_catalog")
    where = ["--template", str(template)]
    assert main(["docs", "--check", *where]) == 1
    assert "docs/ops.md differs from the table and the last result" in capsys.readouterr().err
    assert main(["docs", "--write", *where]) == 0
    text = (template / pages.PAGE).read_text()
    assert "There is no result yet." in text
    assert "| `relu` |" in text
    assert "not run |" in text
    assert main(["docs", "--write", "--result", str(result), *where]) == 0
    assert main(["docs", "--check", *where]) == 0
    text = (template / pages.PAGE).read_text()
    assert "| `ops` | 1 | 0 | 1 | 1 |" in text
    assert "| 1 of 2 |" in text
    assert "| `Relu` | 0 of 1 | 1 |" in text
    assert "| not for me | 1 |" in text
    assert main(["docs", "--check", "--result", str(result), *where]) == 1
    assert "--result is for --write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format_version": 2}, "not a result of the conformance kit"),
        ({"options": {"filters": ["relu"]}}, "the page needs all cases"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(
    result: Path, change: dict[str, Any], sentence: str
) -> None:
    result.write_text(json.dumps({**json.loads(result.read_text()), **change}))
    with pytest.raises(ScaffoldError, match=sentence):
        pages.summarize(result)


def test_a_result_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScaffoldError, match=r"gone\.json cannot be read"):
        pages.summarize(tmp_path / "gone.json")
