# SPDX-License-Identifier: Apache-2.0
"""Joins the parts of the page, and the data, to one file."""

from __future__ import annotations

import html
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..backend import BACKEND
from ..reasons import Code
from ..report import Report

_PARTS = Path(__file__).parent
# dagre first: layout.js calls it. main.js starts the rest.
_SCRIPTS = (
    "dagre.min.js",
    "elements.js",
    "details.js",
    "tables.js",
    "layout.js",
    "graph.js",
    "profile.js",
    "accuracy.js",
    "main.js",
)


def write_page(
    path: str | os.PathLike[str],
    report: Report,
    profile: Mapping[str, Any] | None = None,
    accuracy: Mapping[str, Any] | None = None,
    title: str = "What runs where",
) -> None:
    """Write a report as one HTML page.

    Parameters
    ----------
    path
        The file; one that exists is replaced.
    report
        The report.
    profile, accuracy
        The profile of a run, and `AccuracyReport.to_dict()`; each gets a tab.
    title
        The title of the page.

    Raises
    ------
    ValueError
        The file cannot be written; nothing is left of it then.
    """
    data = {
        "title": title,
        "report": report.to_dict(),
        "meanings": {code.value: code.meaning for code in Code},
        "profile": profile,
        "accuracy": accuracy,
    }
    scripts = "\n".join(_part(name) for name in _SCRIPTS)
    licence = f"dagre lays out the graph. {_part('dagre.LICENSE')}".replace("--", "- -")
    # Without the comment before it, the licence of this one file.
    body = _part("page.html")
    page = (
        "<!DOCTYPE html>\n"
        f"<!--\n{licence}-->\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Whatever the names in a model hold: nothing is loaded.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)} - {html.escape(BACKEND)}</title>\n"
        f"<style>\n{_part('page.css')}</style></head>\n"
        f"<body>\n{body[body.index('<header>') :]}"
        f'<script type="application/json" id="data">{_embedded(data)}</script>\n'
        f"<script>\n{scripts}</script>\n</body></html>\n"
    )
    _write(Path(path), page)


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


def _embedded(data: Any) -> str:
    """Return data as JSON in which no name of a model ends the script or opens a comment."""
    text = json.dumps(_finite(data), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """Return data with text for the numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _write(path: Path, text: str) -> None:
    """Write a file in one step: a page that exists stays as it is if that fails."""
    draft = None
    try:
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        # A lone surrogate, which a name may hold, is no UTF-8.
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except OSError as error:
        if draft is not None:
            Path(draft).unlink(missing_ok=True)
        raise ValueError(
            f"The page cannot be written to '{path}': {error.strerror}. Name a file in a directory "
            "that exists and can be written."
        ) from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
