"""The reference backend passes its own tests, and TVM's own tutorial."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import EVERY, ROOT, WITHOUT_SUITES, copy_tests, git, run, share_of_tests

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def test_the_tutorial_of_tvm_computes_right_values(reference: Path) -> None:
    assert run(reference, HERE / "run_tutorial.py").strip().endswith("right")


SHARES = 3
"""In how many parts the rendered tests run, so that none comes near the time limit of a command."""


def is_thorough(share: int) -> bool:
    """Whether a part has its thorough tests, too: by default those of one part, by the commit."""
    return EVERY or int(git(ROOT, "rev-parse", "HEAD"), 16) % SHARES == share


@pytest.mark.parametrize("share", range(SHARES))
def test_the_rendered_tests_pass(share: int, reference: Path, tmp_path: Path) -> None:
    copy_tests(ROOT / "reference_backend", tmp_path)
    # It has all ops: no list of cases may be empty, as it may in a smaller backend.
    options = ("-q", "-p", "no:cacheprovider", "-o", "empty_parameter_set_mark=fail_at_collect")
    if is_thorough(share):
        options += ("-m", "thorough or not thorough")
    files = share_of_tests(share, SHARES)
    run(reference, "-m", "pytest", *options, *WITHOUT_SUITES, *files, cwd=tmp_path)
