"""AGENTS.md: its commands run, and it is short. test_port_guide.py runs a backend's AGENTS.md."""

from __future__ import annotations

from pages import Part
from support import ROOT, run

PAGE = ROOT / "AGENTS.md"


def test_its_commands_run() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    part = Part(PAGE.read_text())
    # Uses the tools installed for these tests, as after 'make build/venv/ready'.
    printed = run("bash", "-c", "set -eu\n" + part.commands, cwd=ROOT)
    part.compare(printed)


def test_it_is_short_and_names_what_exists() -> None:
    text = PAGE.read_text()
    assert text.count("\n") <= 60
    for name in ("template/engine", "template/vendor", "docs/port-guide.md", "CONTRIBUTING.md"):
        assert f"`{name}" in text and (ROOT / name).exists()
