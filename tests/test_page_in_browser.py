"""Uses the report page in a browser like a person, with a mouse and with keys alone."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import NEEDS_BROWSER, open_browser
from support import ROOT, Workshop, run

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]
HERE = Path(__file__).parent
REGIONS = "#panel-regions table:first-of-type tbody tr"


@pytest.fixture(scope="module")
def pages(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of models of 10, 500 and 2,000 ops."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "reference_backend", folder / "backend")
    python = workshop.environment(workshop.wheel(folder / "backend"))
    run(python, HERE / "write_pages.py", folder)
    return folder


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
    reasons = find("#panel-overview").text
    # The names of the author, and once what holds for all of them.
    assert "not_in_table" in reasons and f"name{count // 2}<i>, name{count - 1}<i>" in reasons
    assert reasons.count("supported: float32") == 1
    for tab in browser.find_elements("css selector", "[role=tab]"):
        tab.click()
        assert_fits(browser, tab.get_attribute("aria-controls"))

    find("#tab-ops").click()
    rows = "#panel-ops tbody tr"
    assert len(browser.find_elements("css selector", rows)) == count
    assert find("#panel-ops").text.count("1,234") == count - 2
    find("#search").send_keys(f"name{count - 1}<i>")
    (row,) = browser.find_elements("css selector", rows)
    assert "supported: float32, float16" in row.find_element("css selector", "td.text").text
    row.send_keys(Keys.ENTER)
    assert_fits(browser, "panel-ops")
    assert "Write it otherwise." in find("#details").text
    assert "float32[1, 8]" in find("#details").text
    assert "axis" in find("#details").text
    # At 1,000 px, names are still legible beside the pane.
    widths = "return [...document.querySelectorAll('#panel-ops td.text')].map((x) => x.clientWidth)"
    assert min(browser.execute_script(widths)) >= 140
    kind = row.find_elements("css selector", "td")[1]
    assert (kind.text, kind.size["height"] <= row.size["height"]) == ("nonzero", True)
    assert not browser.find_elements("css selector", "#details i")

    # The details belong to what was seen.
    find("#tab-ops").send_keys(Keys.ARROW_RIGHT)
    assert not find("#details").is_displayed()
    assert find("#panel-regions").is_displayed() and "1,000" in find("#panel-regions").text
    crossing = find("#panel-regions").text
    assert "name1<i>" in crossing and f"name{count // 2}<i>[1] int64" in crossing
    assert "enters y int64" in crossing
    assert "lv" not in crossing
    warns = "The driver warns: relax.add (name1<i>): its range is wide"
    rows = browser.find_elements("css selector", REGIONS)
    for row, is_warned in zip(rows[:2], (1, 0), strict=True):
        row.click()
        assert find("#details").text.count(warns) == is_warned
    start = time.perf_counter()
    find("#tab-graph").click()
    boxes = browser.find_elements("css selector", "#canvas g.op")
    assert time.perf_counter() - start < 20
    assert len(boxes) == count
    assert len(browser.find_elements("css selector", "#canvas g.region")) == 2
    assert boxes[3].text.splitlines() == ["name3<i>", "add · float32[1, 8]", "in add_relu"]
    places = {box.get_attribute("transform") for box in boxes}
    assert len(places) == count and not any("NaN" in place for place in places)

    find("#find").send_keys("name3<i>", Keys.ENTER)
    chosen = find("#canvas g.op.selected")
    assert chosen.get_attribute("data-op") == "3"
    chosen.click()
    chosen.send_keys(Keys.ARROW_DOWN)
    assert find("#canvas g.op.selected").get_attribute("data-op") == "4"
    assert len(browser.find_elements("css selector", "#canvas .edge.near")) >= 2
    # From one op on the host to the next.
    for op, told in ((count // 2, "1/2"), (count - 1, "2/2"), (count // 2, "1/2")):
        find("#next-host").click()
        assert find("#canvas g.op.selected").get_attribute("data-op") == str(op)
        assert find("#next-host").text == f"next on the host ({told})"
    find("#canvas").send_keys("n")
    assert find("#canvas g.op.selected").get_attribute("data-op") == str(count - 1)
    # What is selected is beside the details, and the map leads away from it.
    box, canvas = find("#canvas g.op.selected").rect, find("#canvas").rect
    assert canvas["x"] <= box["x"] and box["x"] + box["width"] <= canvas["x"] + canvas["width"]
    assert canvas["x"] + canvas["width"] <= find("#minimap").rect["x"]
    find("#minimap").click()
    moved = find("#canvas g.op.selected").rect
    assert moved["y"] > box["y"]
    hosts = browser.find_elements("css selector", "#minimap rect.host")
    assert [item.size["height"] > 2 for item in hosts] == [True, True]
    if count > 10:
        find("#canvas").send_keys("0")
        assert scale_of(browser) == 0.5
    find("#collapse").click()
    assert scale_of(browser) >= 1
    assert len(browser.find_elements("css selector", "#canvas g.op")) == 2

    find("#tab-profile").click()
    told = find("#panel-profile").get_attribute("textContent")
    assert "dma" in told and f"{64 * (count - 2):,}" in told and "cycles" in told
    events = browser.find_elements("css selector", "#engines rect")
    assert len(events) == count - 2
    # The second region comes after the first one.
    assert float(events[count // 2].get_attribute("x")) > 500
    told = [item.get_attribute("textContent") for item in events[:2]]
    assert "dma: add, 0 to 1,234 (1,234 cycles), name0<i>" in told[0] and "(lv1)" not in told[1]
    assert browser.execute_script(SMALLEST_TEXT, find("#panel-profile")) >= 11
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


SMALLEST_TEXT = """
const sizes = [...arguments[0].querySelectorAll("svg text")].map((item) =>
  parseFloat(getComputedStyle(item).fontSize) * item.getScreenCTM().a);
return Math.min(...sizes);
"""


def assert_fits(browser: Any, panel: str) -> None:
    """Check that nothing of a tab is beyond its right border."""
    wide = "const item = document.getElementById(arguments[0]);"
    wide += "return [item.scrollWidth, item.clientWidth]"
    needed, shown = browser.execute_script(wide, panel)
    assert needed <= shown, panel


def scale_of(browser: Any) -> float:
    """Return how large the graph is drawn."""
    moved = browser.find_element("css selector", "#canvas > g").get_attribute("transform")
    return float(re.findall(r"scale\((.*)\)", moved)[0])


class Keyboard:
    """Presses keys, which go to whatever has the focus, and never clicks."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def chord(self, held: str, key: str) -> None:
        """Press a key while another one is held."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).key_down(held).send_keys(key).key_up(held).perform()

    def focus(self) -> Any:
        """Return what has the focus, which must be seen."""
        found = self.browser.switch_to.active_element
        shown = (
            "const item = arguments[0], box = item.closest('#canvas g')?.querySelector('.box');"
            "const one = box || item, style = getComputedStyle(one);"
            "const place = one.getClientRects()[0];"
            "return (style.outlineStyle !== 'none' || parseFloat(style.strokeWidth) >= 3)"
            " && place.bottom > 0 && place.right > 0"
            " && place.top < innerHeight && place.left < innerWidth"
        )
        assert self.browser.execute_script(shown, found), found.get_attribute("outerHTML")[:200]
        return found

    def has(self, selector: str) -> bool:
        """Tell whether what has the focus matches."""
        matches = "return arguments[0].matches(arguments[1])"
        return bool(self.browser.execute_script(matches, self.focus(), selector))

    def go(self, selector: str, back: bool = False) -> None:
        """Press Tab, or Shift and Tab, until something has the focus: in a few steps."""
        from selenium.webdriver.common.keys import Keys

        for _ in range(20):
            if self.has(selector):
                return
            if back:
                self.chord(Keys.SHIFT, Keys.TAB)
            else:
                self.press(Keys.TAB)
        raise AssertionError(f"Tab does not lead to {selector}")


@pytest.mark.parametrize("count", [10, 500])
def test_keys_alone_do_all(browser: Any, pages: Path, count: int) -> None:
    from selenium.webdriver.common.keys import Keys

    def find(selector: str) -> Any:
        return browser.find_element("css selector", selector)

    def selected() -> str:
        return str(find("#canvas g.op.selected").get_attribute("data-op"))

    browser.get((pages / f"{count}.html").as_uri())
    keys = Keyboard(browser)
    keys.press(Keys.TAB)

    # Each tab, round and round; the open one alone is a stop.
    assert keys.has("#tab-overview[aria-selected=true]")
    names = ["ops", "regions", "graph", "profile", "accuracy", "overview"]
    for name in names:
        keys.press(Keys.ARROW_RIGHT)
        assert keys.has(f"#tab-{name}[role=tab][aria-selected=true][tabindex='0']")
        shown = browser.find_elements("css selector", "[role=tabpanel]:not([hidden])")
        assert [panel.get_attribute("aria-labelledby") for panel in shown] == [f"tab-{name}"]
        assert len(browser.find_elements("css selector", "[role=tab][tabindex='0']")) == 1
    keys.press(Keys.END)
    assert keys.has("#tab-accuracy")
    keys.press(Keys.HOME, Keys.ARROW_RIGHT)

    # Sort; the heading keeps the focus.
    keys.go("#panel-ops th:first-child button")
    keys.press(Keys.ENTER, Keys.ENTER)
    assert keys.has("#panel-ops th[aria-sort] button")
    first = "#panel-ops tbody tr:first-child td"
    sort = find("#panel-ops th:first-child").get_attribute("aria-sort")
    assert (sort, find(first).text) == ("ascending", "0")
    keys.press(" ")
    sort = find("#panel-ops th:first-child").get_attribute("aria-sort")
    assert (sort, find(first).text) == ("descending", str(count - 1))

    # Search, which says how much it finds, and go from the results into one.
    keys.go("#search", back=True)
    keys.press("nothing of the kind", Keys.ENTER)
    assert keys.has("#search")
    status = find("#panel-ops [role=status]")
    assert status.text == f"0 of {count} ops"
    keys.press(Keys.ESCAPE, "name")
    assert find("#search").get_attribute("value") == "name"
    assert status.text == f"{count} of {count} ops"
    keys.press(Keys.ARROW_DOWN, Keys.END, Keys.ARROW_UP, Keys.HOME, Keys.ARROW_DOWN, Keys.PAGE_DOWN)
    row = keys.focus()
    at = min(11, count - 1)
    assert row.find_element("css selector", "td").text == str(count - 1 - at)
    keys.press(Keys.ENTER)
    assert keys.has("#details h2") and f"name{count - 1 - at}<i>" in find("#details").text
    # A link leads on, Escape back to where the keys came from.
    keys.go("#details .link:not(dd *)")
    text = keys.focus().text
    keys.press(Keys.ENTER)
    assert keys.has("#details h2") and text.split()[-1] in find("#details").text
    keys.press(Keys.ESCAPE)
    assert keys.focus() == row and not find("#details").is_displayed()
    # The table is one stop: Tab leaves it.
    keys.chord(Keys.SHIFT, Keys.TAB)
    assert keys.has("#panel-ops th button")

    # The graph: in, to neighbours, along edges, and out.
    keys.go("#tab-ops", back=True)
    keys.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    keys.go("#find")
    keys.press("name7<i>", Keys.ENTER)
    assert selected() == "7" and keys.has("#find")
    assert find("#panel-graph [role=status]").text == "1 match"
    keys.press(Keys.ARROW_DOWN)
    assert keys.has("#canvas g.op.selected")
    for key, op in (
        (Keys.ARROW_RIGHT, 8),
        (Keys.ARROW_LEFT, 7),
        (Keys.ARROW_UP, 6),
        (Keys.ARROW_UP, 5),
        (Keys.ARROW_DOWN, 6),
        (Keys.ARROW_DOWN, 7),
    ):
        keys.press(key)
        assert selected() == str(op) and keys.has(f"#canvas g[data-op='{op}']")
    # All that it reads are links of the pane, and the picture moves along.
    keys.press(Keys.ENTER)
    assert keys.has("#details h2")
    reads = find("#details h3 ~ h3 ~ h3 + div + div").text
    assert reads == "name0<i> add"
    keys.go("#details h3 ~ h3 ~ h3 + div + div .link")
    keys.press(Keys.ENTER)
    assert selected() == "0" and keys.has("#details h2")
    keys.press(Keys.ESCAPE)
    assert keys.has("#canvas g[data-op='0']") and not find("#details").is_displayed()
    keys.press(Keys.ESCAPE)
    assert keys.has("#canvas")

    def view() -> list[float]:
        moved = find("#canvas > g").get_attribute("transform")
        return [float(number) for number in re.findall(r"-?[\d.]+", moved)]

    (x, y, scale) = view()
    keys.press(Keys.ARROW_LEFT, Keys.ARROW_DOWN)
    assert view() == pytest.approx([x + 80, y - 80, scale])
    keys.press("+")
    assert view()[2] == pytest.approx(1.3 * scale)
    keys.press("0")
    shown = view()
    keys.press(Keys.ENTER)
    assert keys.has("#canvas g[data-op='0']")
    (x, y, scale) = view()
    keys.chord(Keys.SHIFT, Keys.ARROW_RIGHT)
    assert view() == pytest.approx([x - 80, y, scale]) and view() != shown
    # Regions as boxes, from one to what reads it and back.
    keys.press(Keys.ESCAPE, Keys.ESCAPE)
    keys.go("#collapse", back=True)
    keys.press(" ")
    keys.go("#canvas")
    keys.press(Keys.ENTER)
    assert keys.has("#canvas g.region[data-region=example_npu_main_0]")
    for key, box in (
        (Keys.ARROW_RIGHT, f"[data-op='{count // 2}']"),
        (Keys.ARROW_DOWN, "[data-region=example_npu_main_1]"),
        (Keys.ARROW_UP, f"[data-op='{count // 2}']"),
        (Keys.ARROW_RIGHT, "[data-region=example_npu_main_1]"),
    ):
        keys.press(key)
        assert keys.has(f"#canvas g{box}")
    keys.press(Keys.ENTER)
    assert keys.has("#details h2") and find("#details h2").text == "main_1"
    keys.press(Keys.ESCAPE)
    assert keys.has("#canvas g.region[data-region=example_npu_main_1]")

    # The profile: the work of the engines, and a picture as one stop.
    keys.go("#tab-graph", back=True)
    keys.press(Keys.ARROW_RIGHT)
    keys.go("#engines")
    keys.press("+", Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    told = find("#engines + [role=status]").text
    assert "add, 1,234 to 2,468 (1,234 cycles), name1<i>, waited 1,234 cycles for dma" in told
    # What is chosen stays where it can be seen.
    keys.press("+", "+", "+", "+")
    chosen = find("#engines rect.chosen")
    assert float(chosen.get_attribute("x")) > 100 and float(chosen.get_attribute("width")) > 20
    keys.press(Keys.ENTER)
    assert keys.has("#details h2") and "name1<i>" in find("#details").text
    keys.press(Keys.ESCAPE)
    assert keys.has("#engines")
    keys.go("#panel-profile .picture [role=button]")
    keys.press(Keys.END, Keys.ENTER)
    assert f"name{count - 2}<i>" in find("#details").text
    keys.press(Keys.ESCAPE, Keys.TAB)
    assert keys.has("#panel-profile .picture:last-of-type [role=button]")
    # The reasons of the overview lead to the ops.
    keys.go("#tab-profile", back=True)
    keys.press(Keys.HOME)
    keys.go("#panel-overview tbody tr")
    keys.press(Keys.ENTER)
    assert keys.has("#search") and status.text == f"2 of {count} ops"
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


def test_an_edge_within_a_region_stays_in_its_box(browser: Any, pages: Path) -> None:
    browser.get((pages / "500.html").as_uri())
    count, outside = browser.execute_script(
        """
        const { nodes, edges } = layOutFunction("main", false);
        const boxes = new Map(nodes.map((node) => [node.region, node]));
        // From one slice of the layout to the next, an edge has no way of its own.
        const inner = edges.filter(
          ({ border, from, way }) => way && !border && boxes.has(from.op.region));
        const isOutside = ({ from, way }) => {
          const box = boxes.get(from.op.region);
          return way.some(({ x }) => Math.abs(x - box.x) > box.width / 2);
        };
        return [inner.length, inner.filter(isOutside).length];
        """
    )
    assert count > 900 and outside == 0


def test_amounts_that_are_not_known_make_no_percentage(browser: Any, pages: Path) -> None:
    browser.get((pages / "unknown.html").as_uri())
    (ops, macs, moved) = browser.find_elements("css selector", "#panel-overview .card")
    assert "80.0 %" in ops.text
    assert macs.text.splitlines()[1:] == [
        "at least 900",
        "at least 800 on the NPU; those of 1 op are not known",
    ]
    assert "%" not in moved.text and "those of 1 op are not known" in moved.text
    assert [len(item.find_elements("css selector", ".unknown")) for item in (ops, macs)] == [0, 1]


def test_a_profile_is_told_per_call(browser: Any, pages: Path) -> None:
    browser.get((pages / "calls.html").as_uri())
    browser.find_element("id", "tab-profile").click()
    panel = browser.find_element("id", "panel-profile")
    first = panel.text.split("Timelines of")[0]
    for text in (
        "19.5 µs on the host's clock on average; 19.5 µs to 19.5 µs in 3 calls",
        "18 µs, 92.3 % regions of the NPU",
        "0.5 µs, 2.6 % functions of the host",
        "1 µs, 5.1 % unaccounted",
        "the NPU takes 9,872 cycles (9.9 µs), at ",
        " of its peak; scalar code: 0.0 % of cycles.",
    ):
        assert text in first
    # One call at a time, with both clocks.
    choose = panel.find_element("css selector", "select")
    assert [item.text for item in choose.find_elements("css selector", "option")] == [
        f"call {index} of 3: 19.5 µs" for index in (1, 2, 3)
    ]
    for _ in range(2):
        assert len(panel.find_elements("css selector", "#engines rect")) == 8
        names = [item.text for item in panel.find_elements("css selector", "#clock text.name")]
        assert names == ["main_0", "main_1"]
        choose.send_keys("call 3")
    ticks = [item.text for item in panel.find_elements("css selector", "#engines text.tick")]
    assert ticks[:3] == ["0", "2,000", "4,000"]
    rows = [row.text.split() for row in panel.find_elements("css selector", "tbody tr")]
    assert ["main_0", "9", "6,170", "48.6", "%", "32.4", "%", "320", "B", "160", "B"] in rows
    assert ["vm.builtin.alloc_storage", "1", "0.5", "2.6", "%"] in rows
    assert ["name0<i>", "add_relu", "1,234", "12.5", "4.1", "%"] in rows
    # Kernels, of programs of instructions.
    assert ["add", "name0<i>", "1,234", "12.5", "4.1", "%"] in [row[:6] for row in rows]
    # The sums come last, and closed.
    closed = panel.find_element("css selector", "details")
    assert closed.text == "Sums of 3 calls"
    assert browser.get_log("browser") == []
