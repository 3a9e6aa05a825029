# SPDX-License-Identifier: Apache-2.0
"""Joins the parts of the page, and the data, to one file."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from ...backend.profiling.origin_names import named, require_match
from ...backend.profiling.profiles import Profile
from ...backend.report.report import Report
from ...backend.shared.backend import BACKEND
from ...backend.shared.whole_files import write_text
from ...backend.table.reasons import Code
from ..accuracy.accuracies import AccuracyReport
from ..pictures.drawing import PALETTE

_PARTS = Path(__file__).parent
# dagre first: layout.js calls it. main.js starts the rest.
_SCRIPTS = (
    "dagre.min.js",
    "elements.js",
    "details.js",
    "overview.js",
    "tables.js",
    "layout.js",
    "graph.js",
    "minimap.js",
    "timeline.js",
    "profile.js",
    "accuracy.js",
    "main.js",
)

_PICTURES = ("roofline", "memory")
"""The pictures of a profile on the page, which has a timeline of its own."""


def write_page(
    path: str | os.PathLike[str],
    report: Report,
    profile: Mapping[str, object] | None = None,
    accuracy: Mapping[str, object] | None = None,
    title: str = "What runs where",
) -> None:
    """Write a report as one HTML page."""
    profiled = Profile.from_dict(profile) if profile is not None else None
    if profiled is not None:
        require_match(profiled, report)
        profiled = named(profiled, report)
    if accuracy is not None:
        accuracy = AccuracyReport.from_dict(accuracy).to_dict()
    data = {
        "title": title,
        "report": report.to_dict(),
        "meanings": {code.value: code.meaning for code in Code},
        "profile": profiled.to_dict() if profiled is not None else None,
        "palette": PALETTE,
        "pictures": {name: profiled.to_svg(name) for name in _PICTURES}
        if profiled is not None
        else {},
        "accuracy": accuracy,
    }
    scripts = "\n".join(_part(name) for name in _SCRIPTS)
    licence = f"dagre lays out the graph. {_part('dagre.LICENSE')}".replace("--", "- -")
    # Without the licence of this one file before the header.
    body = _part("page.html")
    page = (
        "<!DOCTYPE html>\n"
        f"<!--\n{licence}-->\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing is loaded, even if a name in a model is a script or a link.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)} - {html.escape(BACKEND)}</title>\n"
        f"<style>\n{_part('page.css')}</style></head>\n"
        f"<body>\n{body[body.index('<header>') :]}"
        f'<script type="application/json" id="data">{_embedded(data)}</script>\n'
        f"<script>\n{scripts}</script>\n</body></html>\n"
    )
    write_text(path, page)


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """Return data as JSON in which no name of a model ends the script or opens a comment."""
    text = json.dumps(_finite(data), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: object) -> object:
    """Return data with text for the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(field) for key, field in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(element) for element in value]
    return value
