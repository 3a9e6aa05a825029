"""AGENTS.md: its commands run, and it is short. test_port_guide.py runs a backend's AGENTS.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import Part
from support import ROOT, run

PAGE = ROOT / "AGENTS.md"
# Build, lint, test; a page may leave some out.
HERE = (
    *("make build/venv/ready", "make reference", "ruff check .", "ruff format --check .", "mypy"),
    *("pytest", "make demo", "make docs", "make test"),
)
THERE = (" check", "pytest", " conformance")


def test_its_commands_run() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    part = Part(PAGE.read_text())
    # Other tests copy the template meanwhile.
    caches = {
        "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache/agents"),
        "RUFF_CACHE_DIR": str(ROOT / ".ruff_cache"),
    }
    # Uses the tools installed for these tests, as after 'make build/venv/ready'.
    printed = run("bash", "-c", "set -eu\n" + part.commands, cwd=ROOT, **caches)
    part.compare(printed)


def test_it_is_short_and_names_what_exists() -> None:
    text = PAGE.read_text()
    assert text.count("\n") <= 60
    for name in ("template/engine", "template/vendor", "docs/port-guide.md", "CONTRIBUTING.md"):
        assert f"`{name}" in text and (ROOT / name).exists()


@pytest.mark.parametrize(
    ("page", "begin", "commands", "fewest"),
    [
        (PAGE, "## Commands", HERE, 9),
        (ROOT / "CONTRIBUTING.md", "## The change", HERE, 6),
        (ROOT / "README.md", "# ", HERE[-3:], 3),
        (ROOT / "Makefile", "\ntest: ", HERE, 4),
        (ROOT / "reference_backend/AGENTS.md", "```bash", THERE, 3),
        (ROOT / "reference_backend/README.md", "## First steps", THERE, 3),
        (ROOT / "reference_backend/.github/workflows/ci.yml", "[test]", THERE, 3),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_all_pages_have_the_commands_in_one_order(
    page: Path, begin: str, commands: tuple[str, ...], fewest: int
) -> None:
    _, found, text = page.read_text().partition(begin)
    assert found
    places = [place for command in commands if (place := text.find(command)) >= 0]
    assert places == sorted(places) and len(places) >= fewest
