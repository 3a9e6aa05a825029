# SPDX-License-Identifier: Apache-2.0
"""The result of a run: a record for each case, and the JSON file that holds them.

All pages and summaries are made from this file.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields

from ...backend.api import DECLINES, JsonObject, one_line

FORMAT_VERSION = 1
"""Raise it with every incompatible change of the format."""

STATUSES = ("passed", "failed", "expected_failure", "unexpected_pass", "declined", "not_run")
"""The possible outcomes of a case."""

PLACEMENTS = ("all", "some", "none")
"""How much of a case is on the NPU."""

_DECLINE = re.compile(rf"{DECLINES} [\w ]+: (?:[^:;]* \([^)]*\): )?(.*?)(?:; |$)")
"""A decline in a reason; its group is the driver's sentence without the call's name."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    `suite`: the suite.
    `case`: the name of the case, unique in its suite.
    `status`: one of `STATUSES`. Suites report passed, failed, not_run, or declined, if the table
    accepts what the driver does not take; the ledger adds the others.
    `op`: the subject of the case, a row of the summary: an op of the table, an ONNX op, or a model.
    `dtype`: its element type.
    `expected`, `found`: the expected and the found placement: one of `PLACEMENTS`, or "" if it is
    not checked.
    `error`, `allowed`, `ratio`: the error of the worst element, its allowed error, and their ratio;
    none if nothing was compared.
    `npu_us`, `host_us`: the time of a call on the NPU, and with TVM's own kernels, in microseconds,
    for information only.
    `reason`: why it failed, was not run, or is not on the NPU; line breaks become spaces.
    """

    suite: str
    case: str
    status: str = "passed"
    op: str = ""
    dtype: str = ""
    expected: str = ""
    found: str = ""
    error: float | None = None
    allowed: float | None = None
    ratio: float | None = None
    npu_us: float | None = None
    host_us: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Let the reason be one line, as in the tables of all suites."""
        object.__setattr__(self, "reason", one_line(self.reason))

    @property
    def id(self) -> str:
        """Its name, unique in all suites."""
        return f"{self.suite}/{self.case}" if self.case else self.suite

    def to_dict(self) -> JsonObject:
        """Return the record as JSON data: infinity, which JSON lacks, is null, with a reason."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, record: JsonObject) -> Outcome:
        """Read a record; ignore unknown fields."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in record.items() if name in known})


@dataclass
class Result:
    """The result of a run.

    `about`: versions and options.
    `seconds`: the time of each suite.
    `outcomes`: A record for each case.
    """

    about: dict[str, object] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def counts(self, suite: str | None = None) -> dict[str, int]:
        """Count the cases of a suite, or of all, by status."""
        counts = Counter(case.status for case in self.outcomes if suite in (None, case.suite))
        return {status: counts[status] for status in STATUSES}

    @property
    def bad(self) -> list[Outcome]:
        """The cases that are not as expected."""
        return [case for case in self.outcomes if case.status in ("failed", "unexpected_pass")]

    @property
    def ok(self) -> bool:
        """Whether all is as expected. No case, or only declined ones, would prove nothing."""
        return bool(self.outcomes) and not self.bad and not self.all_declined

    @property
    def all_declined(self) -> bool:
        """Whether nothing ran because the driver declines everything that the table accepts."""
        # Ops that should stay on the host prove nothing about the driver.
        ran = [
            case for case in self.outcomes if case.status == "passed" and case.expected != "none"
        ]
        return self.counts()["declined"] > 0 and not ran

    def declines(self, most: int = 8) -> list[str]:
        """Return the driver's sentences about declined cases in lines, the most frequent first."""
        reasons = [outcome.reason for outcome in self.outcomes if outcome.status == "declined"]
        matches = ((reason, _DECLINE.search(reason)) for reason in reasons)
        counts = Counter(match[1] if match else reason for reason, match in matches)
        lines = [f"{count} declined: {reason}" for reason, count in counts.most_common(most)]
        if len(counts) > most:
            rest = len(reasons) - sum(count for _, count in counts.most_common(most))
            lines.append(f"{rest} declined for {len(counts) - most} other reasons")
        return lines

    def summary(self) -> str:
        """Return a summary in one line."""
        counts = self.counts()
        parts = [f"{counts['passed']} passed"]
        for status, name in (
            ("failed", "failed"),
            ("unexpected_pass", "passed although the ledger expects a failure"),
            ("expected_failure", "failed as the ledger expects"),
            ("declined", "declined by the driver"),
            ("not_run", "not run"),
        ):
            if counts[status] or status == "failed":
                parts.append(f"{counts[status]} {name}")
        ratios = [case.ratio for case in self.outcomes if case.status == "passed" and case.ratio]
        where = "" if self.ok else " where cases passed"
        worst = f"; the worst error{where} is {max(ratios, default=0):.2f} of what is allowed"
        worst = worst if ratios else ""
        worst = "; nothing ran on the NPU" if self.all_declined else worst
        worst = worst if self.outcomes else "; the table has no op for them"
        total = sum(self.seconds.values())
        return (
            f"{'PASSED' if self.ok else 'FAILED'}: {', '.join(parts)}, in {len(self.outcomes)} "
            f"cases of {len(self.seconds)} suites{worst}; {total:.0f} s"
        )

    def to_dict(self) -> JsonObject:
        """Return everything as JSON data."""
        return {
            "format_version": FORMAT_VERSION,
            **self.about,
            "ok": self.ok,
            "summary": self.summary(),
            "suites": {
                suite: {"seconds": round(seconds, 1), **self.counts(suite)}
                for suite, seconds in self.seconds.items()
            },
            "cases": [outcome.to_dict() for outcome in self.outcomes],
        }

    def to_json(self) -> str:
        """Return everything as JSON, with one case in each line, for diff and grep."""
        head = json.dumps({**self.to_dict(), "cases": 0}, indent=1)
        cases = ",\n".join("  " + json.dumps(outcome.to_dict()) for outcome in self.outcomes)
        assert head.endswith('"cases": 0\n}')
        return head.removesuffix("0\n}") + f"[\n{cases}\n ]\n}}\n"

    @classmethod
    def from_dict(cls, data: JsonObject) -> Result:
        """Read the output of `to_dict`."""
        if data.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"the result has format {data.get('format_version')}; this reads {FORMAT_VERSION}"
            )
        made = ("format_version", "ok", "summary", "suites", "cases")
        return cls(
            {name: value for name, value in data.items() if name not in made},
            {suite: float(entry["seconds"]) for suite, entry in data["suites"].items()},
            [Outcome.from_dict(record) for record in data["cases"]],
        )


def table_of(cases: Iterable[JsonObject]) -> dict[str, dict[str, Counter[str]]]:
    """Count cases by subject and element type."""
    table: dict[str, dict[str, Counter[str]]] = {}
    for case in cases:
        row = table.setdefault(case["op"] or "-", {})
        row.setdefault(case["dtype"] or "-", Counter())[case["status"]] += 1
    return table
