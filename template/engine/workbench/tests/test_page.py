# SPDX-License-Identifier: Apache-2.0
"""The report page: one file with all ops, whatever their names are."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import tvm

import backend
from backend.engine.backend.ir.origins import Origin
from support import SINGLE, needs_single, partition_for

HOSTILE = "</script><script>alert(1)</script><!-- <b>&amp; \u2028 \ud800 ' \" -->"
pytestmark = needs_single


@pytest.fixture(scope="module")
def report():
    """Make a report with one op."""
    model = SINGLE[0].model(constants=True)
    return backend.offload_report(partition_for(tvm.IRModule({model.name: model.function()})))


class Reader(HTMLParser):
    """Collects the scripts of a page, and the resources that its elements load."""

    def __init__(self):
        super().__init__()
        self.scripts, self.loaded, self.inside = [], [], False

    def handle_starttag(self, tag, attrs):
        """Record a script, a picture or a link."""
        self.loaded += [value for name, value in attrs if name in ("src", "href")]
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        """Record the end of a script."""
        self.inside = self.inside and tag != "script"

    def handle_data(self, data):
        """Keep the text of a script."""
        if self.inside:
            self.scripts[-1] += data


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def test_the_page_holds_the_report_and_loads_nothing(report, tmp_path):
    report.to_html(tmp_path / "page.html", title="A model")
    page = read(tmp_path / "page.html")
    data, _ = page.scripts
    known = json.loads(data)
    assert known["report"] == report.to_dict()
    assert (known["title"], known["profile"], known["accuracy"]) == ("A model", None, None)
    assert page.loaded == ["data:,"]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[\w./]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert "2012-2014 Chris Pettitt" in text


def test_names_of_a_model_are_never_markup(report, tmp_path):
    op = replace(report.ops[0], name=HOSTILE, reason=HOSTILE, origin=Origin(HOSTILE, HOSTILE))
    hostile = backend.Report((op,), report.regions)
    hostile.to_html(tmp_path / "page.html", title=HOSTILE)
    page = read(tmp_path / "page.html")
    assert len(page.scripts) == 2
    known = json.loads(page.scripts[0])
    assert known["title"] == HOSTILE
    assert known["report"]["ops"][0]["name"] == HOSTILE


def test_numbers_that_json_does_not_have_are_text(report, tmp_path):
    ends = (backend.Accuracy(float("inf"), 1.0, 0.0),)
    accuracy = backend.AccuracyReport((), ends).to_dict()
    report.to_html(tmp_path / "page.html", accuracy=accuracy)
    known = json.loads(read(tmp_path / "page.html").scripts[0])
    assert known["accuracy"]["outputs"][0]["snr_db"] == "inf"
    with pytest.raises(ValueError, match="accuracy report has version 9; supported: 1"):
        report.to_html(tmp_path / "other.html", accuracy={**accuracy, "version": 9})
    assert not (tmp_path / "other.html").exists()


def test_a_path_that_cannot_be_written_is_refused_and_leaves_nothing(report, tmp_path):
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "missing/page.html", tmp_path / "taken"):
        with pytest.raises(ValueError, match=re.escape(f"'{path}'")):
            report.to_html(path)
    assert [item.name for item in tmp_path.iterdir()] == ["taken"]
    assert not list((tmp_path / "taken").iterdir())
