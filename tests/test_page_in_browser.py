"""Uses the report page in a browser like a person: open, search, click, switch tabs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import ROOT, Workshop, run

MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
if importlib.util.find_spec("selenium") is None:
    MISSING.append("selenium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {', '.join(MISSING)}: install chromium, chromium-driver"
    ),
]
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1000,760",
)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def pages(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of models of 10, 500 and 2,000 ops."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "reference_backend", folder / "backend")
    python = workshop.environment(workshop.wheel(folder / "backend"))
    run(python, HERE / "write_pages.py", folder)
    return folder


def open_browser(profile: Path) -> Any:
    """Start Chromium with a fresh profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = open_browser(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.mark.parametrize("count", [10, 500, 2000])
def test_a_person_finds_an_op_and_its_neighbours(browser: Any, pages: Path, count: int) -> None:
    from selenium.webdriver.common.keys import Keys

    def find(selector: str) -> Any:
        return browser.find_element("css selector", selector)

    browser.get((pages / f"{count}.html").as_uri())
    assert f"of {count} ops" in find("#summary").text
    assert "not_in_table" in find("#panel-overview").text

    find("#tab-ops").click()
    rows = "#panel-ops tbody tr"
    assert len(browser.find_elements("css selector", rows)) == count
    assert find("#panel-ops").text.count("1,234") == count - 2
    find("#search").send_keys(f"name{count - 1}<i>")
    (row,) = browser.find_elements("css selector", rows)
    row.send_keys(Keys.ENTER)
    assert "Write it otherwise." in find("#details").text
    assert "float32[1, 8]" in find("#details").text
    assert "axis" in find("#details").text
    # At 1,000 px, names are still legible beside the pane.
    widths = "return [...document.querySelectorAll('#panel-ops td.text')].map((x) => x.clientWidth)"
    assert min(browser.execute_script(widths)) >= 140
    kind = row.find_elements("css selector", "td")[1]
    assert (kind.text, kind.size["height"] <= row.size["height"]) == ("nonzero", True)
    assert not browser.find_elements("css selector", "#details i")

    find("#tab-ops").send_keys(Keys.ARROW_RIGHT)
    assert find("#panel-regions").is_displayed() and "1,000" in find("#panel-regions").text
    start = time.perf_counter()
    find("#tab-graph").click()
    boxes = browser.find_elements("css selector", "#canvas g.op")
    assert time.perf_counter() - start < 20
    assert len(boxes) == count
    assert len(browser.find_elements("css selector", "#canvas g.region")) == 2
    places = {box.get_attribute("transform") for box in boxes}
    assert len(places) == count and not any("NaN" in place for place in places)

    find("#find").send_keys("name3<i>", Keys.ENTER)
    chosen = find("#canvas g.op.selected")
    assert chosen.get_attribute("data-op") == "3"
    chosen.click()
    chosen.send_keys(Keys.ARROW_DOWN)
    assert find("#canvas g.op.selected").get_attribute("data-op") == "4"
    assert len(browser.find_elements("css selector", "#canvas .edge.near")) >= 2
    find("#collapse").click()
    assert len(browser.find_elements("css selector", "#canvas g.op")) == 2

    find("#tab-profile").click()
    told = find("#panel-profile").get_attribute("textContent")
    assert "dma" in told and f"{64 * (count - 2):,}" in told and "cycles" in told
    events = browser.find_elements("css selector", ".timeline rect")
    assert len(events) == count - 2
    # The second region comes after the first one.
    assert float(events[count // 2].get_attribute("x")) > 600
    pictures = browser.find_elements("css selector", "#panel-profile svg.picture")
    assert [item.get_attribute("role") for item in pictures] == ["group", "group"]
    roofline, memory = pictures
    assert len(roofline.find_elements("css selector", "circle[role=button]")) == count - 2
    assert len(memory.find_elements("css selector", "rect[role=button]")) == count - 2
    assert "2 operations per cycle" in roofline.get_attribute("textContent")
    assert "192 bytes in use at most" in memory.get_attribute("textContent")
    point = roofline.find_element("css selector", "[data-op='2']")
    point.send_keys(Keys.ENTER)
    assert "name2<i>" in find("#details").text and "1,234" in find("#details").text
    find("#tab-accuracy").click()
    assert "exact" in find("#panel-accuracy").text
    wide = "return document.documentElement.scrollWidth <= innerWidth"
    assert browser.execute_script(wide)
    assert browser.get_log("browser") == []


def test_a_weight_is_drawn_beside_what_reads_it(browser: Any, pages: Path) -> None:
    browser.get((pages / "weights.html").as_uri())
    browser.find_element("id", "tab-graph").click()
    boxes = browser.find_elements("css selector", "#canvas g.op")
    places = {
        int(box.get_attribute("data-op")): tuple(
            float(number) for number in re.findall(r"-?[\d.]+", box.get_attribute("transform"))
        )
        for box in boxes
    }
    assert len(places) == 240
    for weight in range(120):
        (_, above), (_, below) = places[weight], places[120 + weight]
        assert 0 < below - above < 100, weight
