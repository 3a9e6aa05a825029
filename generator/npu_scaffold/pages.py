"""Makes the page of the ops: the table, and the kit's results on the reference backend."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .catalog import load_catalog
from .entries import Entry
from .errors import ScaffoldError

PAGE = Path("docs/ops.md")
SUMMARY = Path("docs/conformance.json")

# The format of the conformance kit's results, and the versions kept.
FORMAT_VERSION = 1
_VERSIONS = ("driver_api_version", "tvm_version", "python_version")
_PASSED = "passed"
_NOT_RUN = "not_run"

_ENGINES = {
    "matrix": "Matrix engine",
    "vector": "Vector engine",
    "pool": "Pooling engine",
    "memory": "Data movement",
}
_HEAD = """# Supported ops and how they did

`npu-scaffold docs --write` generates this page from `template/_catalog` and the latest result of
the conformance kit on the reference backend ([how to read it](conformance.md)). An op outside the
limits below stays on the host, as does an op that is not listed; `offload_report` gives the reason.
Some ops need no entry:

- What can be computed from constants alone when the model is compiled (`arange`, `full`, `zeros`,
  `ones`, `eye` and others) becomes a constant of the program.
- `index_tensor` becomes a `take`, `isnan` a `not_equal`, `isfinite` and `isinf` a comparison of
  `abs` with the largest number, and `full` of a symbolic size a `broadcast_to`; `linear` is a
  `matmul` with a transposed operand.
- `sdpa` and its variants, `elu`, `mish`, `hard_sigmoid` and `hard_swish` are not Relax ops: front
  ends write them as several ops, which the `chains` of the table recognize.
"""


def summarize(result: Path) -> dict[str, object]:
    """Reduce the result of a run to the data of the page.

    Parameters
    ----------
    result
        The file ``conformance.json`` that a run of the conformance kit wrote.

    Returns
    -------
    dict
        Versions, totals per suite, per suite the cases of each op, as ``[passed, run, not run]``,
        and why cases were not run.
    """
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScaffoldError(f"{result} cannot be read: {error}.") from None
    if not isinstance(data, dict) or data.get("format_version") != FORMAT_VERSION:
        raise ScaffoldError(f"{result} is not a result of the conformance kit that this knows.")
    options = data["options"]
    if options["filters"]:
        raise ScaffoldError(f"{result} is of a run with --filter; the page needs all cases.")
    suites: dict[str, object] = {}
    for suite in data["suites"]:
        cases = [case for case in data["cases"] if case["suite"] == suite]
        if not cases:
            continue
        by_op: dict[str, list[int]] = {}
        for case in cases:
            if case["op"]:
                numbers = by_op.setdefault(case["op"], [0, 0, 0])
                numbers[0] += case["status"] == _PASSED
                numbers[1] += case["status"] != _NOT_RUN
                numbers[2] += case["status"] == _NOT_RUN
        left = [case["reason"] for case in cases if case["status"] == _NOT_RUN]
        suites[suite] = {
            "statuses": dict(sorted(Counter(case["status"] for case in cases).items())),
            "not_run": dict(Counter(reason.partition(":")[0] for reason in left).most_common()),
            "ops": dict(sorted(by_op.items())),
        }
    return {**{name: data[name] for name in _VERSIONS}, "suites": suites}


def page(template: Path) -> str:
    """Make the page.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml`` and the summary of the last result.

    Returns
    -------
    str
        The page, in Markdown.
    """
    catalog = load_catalog(template)
    path = template / SUMMARY
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"suites": {}}
    parts = [_HEAD, *_totals(summary)]
    for engine, title in _ENGINES.items():
        entries = {op: entry for op, entry in catalog.items() if entry["engine"] == engine}
        if entries:
            parts += [f"## {title}\n", _overview(entries, summary)]
    for suite, found in summary["suites"].items():
        if suite != "ops" and found["ops"]:
            parts += [f"## Suite `{suite}`\n", _suite(found)]
    parts += ["## Limits\n", _limits(catalog), "## What is fused\n", _fused(catalog)]
    return "\n".join(parts).rstrip() + "\n"


def write(template: Path, result: Path | None) -> None:
    """Write the page; given a new result, write its summary first.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.
    result
        The file of a run; none: use the last summary.
    """
    if result is not None:
        text = json.dumps(summarize(result), indent=1)
        # Put lists of numbers on one line.
        compact = text.replace("[\n     ", "[").replace(",\n     ", ", ").replace("\n    ]", "]")
        assert json.loads(compact) == json.loads(text)
        (template / SUMMARY).write_text(compact + "\n", encoding="utf-8")
    (template / PAGE).write_text(page(template), encoding="utf-8")


def differences(template: Path) -> list[str]:
    """Compare the committed page with a fresh one.

    Parameters
    ----------
    template
        The directory that holds ``copier.yml``.

    Returns
    -------
    list of str
        A sentence if they differ.
    """
    path = template / PAGE
    committed = path.read_text(encoding="utf-8") if path.is_file() else ""
    fresh = page(template)
    if committed == fresh:
        return []
    pairs = zip(committed.splitlines(), fresh.splitlines(), strict=False)
    known = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
    line = known[0] if known else min(committed.count("\n"), fresh.count("\n")) + 1
    return [f"{PAGE} differs from the table and the last result from line {line} on."]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    names = list(head)
    return "\n".join([line(names), line(["---"] * len(names)), *map(line, rows)]) + "\n"


def _totals(summary: Mapping[str, Any]) -> list[str]:
    suites = summary["suites"]
    if not suites:
        return ["There is no result yet.\n"]
    statuses = (_PASSED, "expected_failure", "failed", "unexpected_pass", _NOT_RUN)
    found = {suite: entry["statuses"] for suite, entry in suites.items()}
    # Leave out empty columns, except for failures.
    shown = [
        status
        for status in statuses
        if status in (_PASSED, "expected_failure", "failed")
        or any(status in counts for counts in found.values())
    ]
    rows = [
        [f"`{suite}`", *(str(counts.get(status, 0)) for status in shown)]
        for suite, counts in found.items()
    ]
    versions = (
        f"The last result: driver API {summary['driver_api_version']}, TVM "
        f"{summary['tvm_version']}, Python {summary['python_version']}.\n"
    )
    return [versions, _table(["suite", *(s.replace("_", " ") for s in shown)], rows)]


def _suite(found: Mapping[str, Any]) -> str:
    head = ["about", "cases passed"]
    rows = [[f"`{op}`", f"{good} of {run}"] for op, (good, run, _) in found["ops"].items()]
    if not found["not_run"]:
        return _table(head, rows)
    for row, (_, _, left) in zip(rows, found["ops"].values(), strict=True):
        row.append(str(left) if left else "")
    why = [[reason, str(number)] for reason, number in found["not_run"].items()]
    tables = [_table([*head, "not run"], rows), _table(["why not run", "cases"], why)]
    return "\n".join(tables)


def _overview(entries: Mapping[str, Entry], summary: Mapping[str, object]) -> str:
    rows = []
    for op, entry in entries.items():
        first = entry["inputs"][0]
        rows.append(
            [
                f"`{op}`",
                entry["summary"],
                ", ".join(first.get("dtypes", ["any"])),
                _span(first.get("ranks", [])),
                _tolerance(entry["tolerance"]),
                _passed(op, summary),
            ]
        )
    return _table(["op", "computes", "element types", "ranks", "tolerance", "cases passed"], rows)


def _passed(op: str, summary: Mapping[str, Any]) -> str:
    passed, run, _ = summary["suites"].get("ops", {}).get("ops", {}).get(op, (0, 0, 0))
    return f"{passed} of {run}" if run else "not run"


def _span(ranks: list[int]) -> str:
    if not ranks:
        return "any"
    low, high = min(ranks), max(ranks)
    if ranks == list(range(low, high + 1)) and high > low:
        return f"{low} to {high}"
    return ", ".join(map(str, ranks))


def _tolerance(tolerance: Any) -> str:
    if isinstance(tolerance, str):
        return "exact" if tolerance == "exact" else "2 ulps"
    ((kind, given),) = tolerance.items()
    if kind == "accumulated":
        number = given["count"] if isinstance(given, dict) else given
        return f"sum of `{number}`"
    if kind == "buckets":
        return f"{given['steps'] if isinstance(given, dict) else given} steps"
    if not isinstance(given, dict):
        return f"{given} ulps"
    return ", ".join(f"{value} {name}" for name, value in given.items())


def _constraint(constraint: Any) -> str:
    if constraint == "any":
        return "any"
    if "one_of" in constraint:
        return " or ".join(_value(value) for value in constraint["one_of"])
    low, high = constraint.get("min"), constraint.get("max")
    if low is not None and high is not None:
        text = f"{low} to {high}"
    else:
        text = f"at least {low}" if low is not None else f"at most {high}"
        text = "any number" if low is None and high is None else text
    without = constraint.get("not")
    return text + (f" without {', '.join(map(_value, without))}" if without else "")


def _value(value: object) -> str:
    return "not set" if value == "" or value is None else str(value)


_RELATIONS = {
    "equal": "=",
    "not_equal": "≠",
    "at_least": "≥",
    "at_most": "≤",
    "one_of": "one of",
}


def _rule(rule: Mapping[str, list[Any]]) -> str:
    relation = next(name for name in rule if name != "for")
    left, right = (_operand(side) for side in rule[relation])
    types = f" for {', '.join(rule['for'])}" if "for" in rule else ""
    return f"{left} {_RELATIONS[relation]} {right}{types}"


def _operand(side: object) -> str:
    if isinstance(side, list):
        return ", ".join(map(_value, side))
    return str(side).removeprefix("attr.")


def _limits(catalog: Mapping[str, Entry]) -> str:
    rows = []
    for op, entry in catalog.items():
        named = entry["attributes"].items()
        attributes = [f"{name}: {_constraint(constraint)}" for name, constraint in named]
        rules = [_rule(rule) for rule in entry.get("rules", [])]
        constants = [item["name"] for item in entry["inputs"] if item.get("constant")]
        rules += [f"{name} is a constant" for name in constants]
        if attributes or rules:
            rows.append([f"`{op}`", "; ".join(attributes), "; ".join(rules)])
    return _table(["op", "attributes", "and"], rows)


def _fused(catalog: Mapping[str, Entry]) -> str:
    last = ", ".join(f"`{op}`" for op, entry in catalog.items() if entry.get("activation"))
    rows = []
    for op, entry in catalog.items():
        if "fuses" not in entry:
            continue
        fuses = entry["fuses"]
        before = [entry["inputs"][index]["name"] for index in entry.get("absorbs_transpose", [])]
        rows.append(
            [
                f"`{op}`",
                ", ".join(f"transposed {name}" for name in before),
                ", ".join(name for name in ("scale", "bias", "residual") if name in fuses),
            ]
        )
    text = (
        "One composite fuses each of these ops with what the table lists, in this order, and then "
        f"with one activation: {last}.\n"
    )
    quantized = ", ".join(f"`{op}`" for op, entry in catalog.items() if "quantized" in entry)
    end = (
        "\nBetween `dequantize` and `quantize`, each of these is one composite of int8, uint8 or "
        f"int16 ([quantized.md](quantized.md)): {quantized}.\n"
    )
    return f"{text}\n{_table(['op', 'before it', 'after it'], rows)}{end if quantized else ''}"
