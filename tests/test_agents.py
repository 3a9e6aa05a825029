"""AGENTS.md: its commands run, and it is short. That of a backend is run by test_port_guide.py."""

from __future__ import annotations

from pages import Part
from support import ROOT, run

PAGE = ROOT / "AGENTS.md"


def test_its_commands_run() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    part = Part(PAGE.read_text())
    # As after 'make build/venv/ready': the tools are those that were installed with these tests.
    printed = run("bash", "-c", "set -eu\n" + part.commands, cwd=ROOT)
    part.compare(printed)


def test_it_is_short_and_names_what_exists() -> None:
    text = PAGE.read_text()
    assert text.count("\n") <= 60
    for name in ("template/engine", "template/vendor", "docs/port-guide.md", "CONTRIBUTING.md"):
        assert f"`{name}" in text and (ROOT / name).exists()
