"""The summary of `make test`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import ROOT, run

TESTS = """
import pytest

@pytest.mark.parametrize("model", ["small", "medium"])
def test_speed(model, record_property):
    record_property("measured", f"{model}: {len(model) / 4:.2f}")
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_what_passing_tests_measured_is_shown(processes: int, tmp_path: Path) -> None:
    (tmp_path / "test_speed.py").write_text(TESTS)
    out = run(
        *(sys.executable, "-m", "pytest", "-p", "conftest", "--numprocesses", str(processes)),
        cwd=tmp_path,
        PYTHONPATH=f"{ROOT / 'tests'}:{ROOT / 'generator'}",
    )
    _, _, measured = out.partition(" measured ==")
    assert "\nmedium: 1.50\nsmall: 1.25\n" in measured, out
