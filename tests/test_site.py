"""The documentation site: a strict build, complete without a network, searchable as files."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from browser import NEEDS_BROWSER, open_browser
from support import ROOT, attempt, run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="needs MkDocs: 'make build/venv/ready'"
)
FILES = ("mkdocs.yml", "README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


PLACES = r"\.\.\.|[\d.]+|'[^']*'|[()]|\[0\]|nan|FAILED \S+"
"""Placeholders for names and numbers in messages."""


def _build(checkout: Path, out: Path) -> Any:
    command = (sys.executable, "-m", "mkdocs", "build", "-f", checkout / "mkdocs.yml")
    return attempt(*command, "-d", out, cwd=checkout, NO_MKDOCS_2_WARNING="1")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = _build(ROOT, out)
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
    return out


def test_it_has_all_pages_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    expected = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert pages >= expected | {"index.html", "changelog.html", "agents.html", "api/header.html"}
    for page in pages:
        text = (site / page).read_text()
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="([^"]*)"', text)
        assert [url for url in loaded if "//" in url] == [], page


def test_lists_are_as_they_are_in_a_clone(site: Path) -> None:
    steps = (site / "driver.html").read_text().split("Render, build, test.")[1]
    # Blocks, nested lists and tables are in the items; else the numbers restart after them.
    steps = steps[: steps.index("On XNNPACK steps 2 to 4")]
    assert steps.count("</ol>") == 1 and "<ul>" in steps and "<table>" in steps
    changes = (site / "changelog.html").read_text()
    assert re.search(r"<strong>Engine</strong>:\s*<ul>", changes)


def test_the_reference_comes_from_the_docstrings(site: Path) -> None:
    backend = (site / "api/backend.html").read_text()
    for name in ("compile_for_example_npu", "from_onnx", "offload_report", "DataParallel"):
        assert re.search(rf'id="[\w.]*\.{name}"', backend), name
    assert 'id="engine.backend.table.chip.Chip"' in (site / "api/vendor.html").read_text()
    assert "npu_build_api" in (site / "api/header.html").read_text()


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("[x](nowhere.md)", "there is no such file"),
        ("[x](driver.md#no-such-part)", "no-such-part"),
        ("[x](../template/gone.yml)", "there is no such file"),
    ],
)
def test_a_broken_link_ends_the_build(tmp_path: Path, link: str, words: str) -> None:
    checkout = tmp_path / "checkout"
    for name in ("docs", "generator", "template", "reference_backend"):
        ignored = shutil.ignore_patterns("__pycache__", "build", "demo", ".mypy_cache")
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, checkout)
    page = checkout / "docs/report.md"
    page.write_text(f"{page.read_text()}\n{link}\n")
    done = _build(checkout, tmp_path / "out")
    assert done.returncode == 1
    assert words in done.stdout, done.stdout


@NEEDS_BROWSER
def test_its_search_works_in_pages_that_are_opened_as_files(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    browser = open_browser(tmp_path_factory.mktemp("chromium"))
    try:
        browser.get(f"file://{site}/index.html")
        field = browser.find_element("css selector", "input.md-search__input")
        browser.execute_script("arguments[0].focus()", field)
        field.send_keys("scratchpad")
        links: list[str] = []
        for _ in range(100):
            found = browser.find_elements("css selector", "a.md-search-result__link")
            links = [str(item.get_attribute("href")) for item in found]
            if links:
                break
            time.sleep(0.1)
        assert any("/driver.html" in link for link in links), links
    finally:
        browser.quit()


def test_messages_of_the_page_about_failures_are_in_the_sources() -> None:
    text = (ROOT / "docs/failures.md").read_text()
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 15
    listed = run("git", "ls-files", "-z", "template", "generator", cwd=ROOT).split("\0")
    sources = [
        ROOT / name for name in listed if Path(name).suffix in {".py", ".cc", ".h", ".jinja"}
    ]
    source = "\n".join(path.read_text() for path in sources)
    # Messages continue in the next string literal, and contain names and numbers.
    source = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", source)
    source = re.sub(r'"\s*(?:\+\s*|<<\s*)?\n?\s*f?"', "", source)
    for message in messages:
        for part in re.split(PLACES, message):
            words = part.strip(" ,;:()?")
            assert len(words) < 9 or words in source, f"no source says '{words}' of: {message}"
