# SPDX-License-Identifier: Apache-2.0
"""Pages for people, made from the JSON file alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from ...backend.api import JsonObject
from .outcomes import STATUSES, table_of

Data = JsonObject
Case = JsonObject
Rows = Sequence[Sequence[str]]

_TITLES = {
    "failed": "Failures",
    "unexpected_pass": "Passed, although the ledger expects a failure",
    "expected_failure": "Failures that the ledger expects",
    "declined": "Declined by the driver, although the table accepts it",
    "not_run": "Not run",
    "passed": "Passed",
}
_SHORT = {
    "passed": "passed",
    "failed": "failed",
    "expected_failure": "expected failures",
    "unexpected_pass": "unexpected passes",
    "declined": "declined",
    "not_run": "not run",
}


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _about(data: Data) -> list[str]:
    options = data["options"]
    asked = [f"suites {', '.join(options['suites'])}"]
    if options["filters"]:
        asked.append(f"cases with {' or '.join(options['filters'])}")
    rounding = data.get("rounding")  # Earlier releases did not write it.
    return [
        f"{data['backend']} {data['backend_version']}, driver API {data['driver_api_version']}",
        f"TVM {data['tvm_version']}, tvm-ffi {data['tvm_ffi_version']}, "
        f"Python {data['python_version']}, {data['platform']}",
        "; ".join(asked),
        *([_rounding(**rounding)] if rounding else []),
    ]


def _rounding(quantize: str, requantize: JsonObject) -> str:
    """Say what integers are judged by."""
    text = f"integers: quantize rounds {quantize}, sums are rescaled {requantize['rounding']}"
    if not requantize["steps"]:
        return text
    percent = 100 * requantize["share"]
    return f"{text}, {requantize['steps']} steps off in {percent:.1f} % of the elements"


def _suites(data: Data) -> Rows:
    rows = [["suite", *(_SHORT[status] for status in STATUSES), "seconds"]]
    for suite, entry in data["suites"].items():
        rows.append([suite, *(str(entry[status]) for status in STATUSES), str(entry["seconds"])])
    return rows


def _cell(counts: Counter[str] | None) -> str:
    """Format how many cases of an op and a type passed."""
    if not counts:
        return ""
    ran = sum(counts.values()) - counts["not_run"] - counts["declined"]
    text = f"{counts['passed']}/{ran}" if ran else "declined" if counts["declined"] else "not run"
    return text + (" failed" if counts["failed"] + counts["unexpected_pass"] else "")


def _passed(data: Data) -> Iterator[tuple[str, Rows]]:
    """Yield the title of each suite with cases, and its subjects by element type."""
    for suite in data["suites"]:
        table = table_of(case for case in data["cases"] if case["suite"] == suite)
        dtypes = sorted({dtype for row in table.values() for dtype in row})
        rows = [[op, *(_cell(row.get(dtype)) for dtype in dtypes)] for op, row in table.items()]
        if rows:
            yield f"Passed of {suite}", [["about", *(name or "cases" for name in dtypes)], *rows]


def _details(case: Case) -> list[str]:
    placed = case["found"]
    if case["expected"] and case["expected"] != case["found"]:
        placed = f"{case['found'] or '?'}, not {case['expected']}"
    return [
        f"{case['suite']}/{case['case']}",
        case["dtype"],
        placed,
        _number(case["error"]),
        _number(case["allowed"]),
        _number(case["ratio"], 2),
        _number(case["npu_us"]),
        _number(case["host_us"]),
        case["reason"],
    ]


_COLUMNS = [
    *("case", "dtype", "on the NPU", "error", "allowed", "ratio"),
    *("NPU, µs", "host, µs", "reason"),
]


def _lists(data: Data) -> Iterator[tuple[str, str, Rows]]:
    """Yield status, title and details of the cases, failures first."""
    for status, title in _TITLES.items():
        cases = [case for case in data["cases"] if case["status"] == status]
        if cases:
            yield status, f"{title} ({len(cases)})", [_COLUMNS, *map(_details, cases)]


def as_markdown(data: Data) -> str:
    """Make the markdown page: totals, and every case that did not simply pass."""

    def table(rows: Rows) -> str:
        head, *body = (
            ["".join(" " if c == "\n" else c for c in cell).replace("|", "\\|") for cell in row]
            for row in rows
        )
        lines = [head, ["---"] * len(head), *body]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    parts = [f"# Conformance of {data['backend']}", f"**{data['summary']}**"]
    parts.append("\n".join(f"- {line}" for line in _about(data)))
    parts += ["## Suites", table(_suites(data))]
    for status, title, rows in _lists(data):
        if status != "passed":
            parts += [f"## {title}", table(rows)]
    for title, rows in _passed(data):
        parts += [f"## {title}", table(rows)]
    return "\n\n".join(parts) + "\n"


_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { border: 1px solid #8884; padding: .2em .6em; text-align: left; vertical-align: top }
th { background: #8881 }
td.failed, p.failed { background: #e5393522 }
p { padding: .5em 1em; background: #43a04722 }
summary { cursor: pointer; font-size: 1.3em; margin: 1em 0 }
:root { color-scheme: light dark }
"""


def as_html(data: Data) -> str:
    """Make the HTML page, which needs no other file: totals, and every case."""

    def table(rows: Rows) -> str:
        def line(cells: Sequence[str], kind: str) -> str:
            return "".join(
                f"<{kind}{_mark(cell) if kind == 'td' else ''}>{escape(cell)}</{kind}>"
                for cell in cells
            )

        head, *body = rows
        lines = [f"<tr>{line(row, 'td')}</tr>" for row in body]
        return "\n".join(
            ["<table>", f"<tr>{line(head, 'th')}</tr>", *lines, "</table>"],
        )

    def _mark(cell: str) -> str:
        return ' class="failed"' if cell.endswith(" failed") else ""

    title = f"Conformance of {escape(data['backend'])}"
    verdict = "" if data["ok"] else ' class="failed"'
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f"<p{verdict}>{escape(data['summary'])}</p>",
        "<ul>",
        *(f"<li>{escape(line)}</li>" for line in _about(data)),
        "</ul>",
    ]
    lists = list(_lists(data))
    for status, heading, rows in lists:
        if status in ("failed", "unexpected_pass"):
            parts += [f"<h2>{escape(heading)}</h2>", table(rows)]
    parts += ["<h2>Suites</h2>", table(_suites(data))]
    for heading, rows in _passed(data):
        parts += [f"<h2>{escape(heading)}</h2>", table(rows)]
    for status, heading, rows in lists:
        if status not in ("failed", "unexpected_pass"):
            parts.append(f"<details><summary>{escape(heading)}</summary>{table(rows)}</details>")
    return "\n".join([*parts, "</body></html>", ""])
