# SPDX-License-Identifier: Apache-2.0
"""Compares two reports: what moved, what changed type, what got slower or less exact."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TextIO

from ...backend.report.report import OpPlacement, Report
from ...backend.shared.aliases import JsonObject
from ...backend.shared.backend import BACKEND
from ...backend.shared.terminal import Row, TextTable, aligned, show
from .changes import SLOWER, Change
from .differences import differences

if TYPE_CHECKING:
    from ...backend.profiling import Profile
    from ..accuracy import AccuracyReport, LayerAccuracy

VERSION = 1
"""The version of the JSON."""
LESS_EXACT = 1.0
"""Signal-to-noise ratios that differ by fewer decibels are the same."""


@dataclass(frozen=True)
class Comparison:
    """How two reports differ.

    Parameters
    ----------
    before, after
        The summaries of both.
    changes
        What differs, in the order of the model.
    whole
        The times of a call of the model, whether they differ or not; none without profiles.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    whole: tuple[Change, ...] = ()

    @property
    def worse(self) -> tuple[Change, ...]:
        """The changes for the worse."""
        return tuple(change for change in self.changes if change.worse)

    def of(self, kind: str) -> tuple[Change, ...]:
        """Return the changes of a kind.

        Parameters
        ----------
        kind
            One of those of `Change`.

        Returns
        -------
        changes
            In the order of the model.
        """
        return tuple(change for change in self.changes if change.kind == kind)

    def to_dict(self) -> JsonObject:
        """Return the comparison as plain data; a number that JSON does not have is a string."""
        return {
            "version": VERSION,
            "backend": BACKEND,
            "before": self.before,
            "after": self.after,
            "worse": len(self.worse),
            "changes": [_plain(change) for change in self.changes],
            "whole": [_plain(change) for change in self.whole],
        }

    def to_json(self) -> str:
        """Return the comparison as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def __str__(self) -> str:
        """Return both summaries, and a table for each kind of change."""
        lines = [self._summary]
        for kind, title in _TITLES.items():
            rows = [_row(change) for change in self.of(kind)]
            if rows:
                lines += ["", f"{title}:", *(f"  {line}" for line in aligned(rows))]
        if not self.changes:
            lines.append("Nothing differs.")
        return "\n".join(lines)

    def show(self, file: TextIO | None = None) -> None:
        """Print it: with colours on a terminal, else as plain text.

        Parameters
        ----------
        file
            Where to print; standard output if it is left out.
        """
        show(self, self._blocks, file)

    @property
    def _summary(self) -> str:
        lines = [f"before: {self.before}", f"after:  {self.after}"]
        for change in self.whole:
            before, after = (_text(value, change.unit) for value in (change.before, change.after))
            more = f": {change.reason}" if change.reason else ""
            lines.append(f"{change.name}: {before} before, {after} after{more}")
        return "\n".join(lines)

    def _blocks(self) -> Iterator[str | TextTable]:
        yield self._summary
        for kind, title in _TITLES.items():
            changes = self.of(kind)
            if changes:
                styles = ["yellow" if change.worse else "green" for change in changes]
                header: Row = ("op", "name", "before", "after", "why")
                rows = [*map(_row, changes)]
                if not any(row[-1] for row in rows):
                    header, rows = header[:-1], [row[:-1] for row in rows]
                yield TextTable(header, rows, styles, title, kept=len(header), folded=(1, 4))
        if not self.changes:
            yield "Nothing differs."


def _plain(change: Change) -> dict[str, object]:
    """Return plain data; JSON has no infinity, which is the ratio of an exact result."""
    return {
        name: str(value) if value in (math.inf, -math.inf) else value
        for name, value in asdict(change).items()
    }


_TITLES = {
    "placement": "moved",
    "type": "computes in another type",
    "span": "slower or faster on the NPU",
    "time": "slower or faster",
    "accuracy": "less or more exact",
    "added": "only after",
    "removed": "only before",
}


def compare(
    before: Report,
    after: Report,
    times: tuple[Mapping[str, float], Mapping[str, float]] | None = None,
    accuracies: tuple[AccuracyReport, AccuracyReport] | None = None,
    profiles: tuple[Profile, Profile] | None = None,
) -> Comparison:
    """Compare two reports: with different options, tables, drivers or versions of a model.

    Ops are the same if their author gave them the same name, even where one stands for several.
    Others are the same if they have the same Relax op, and the same place among those of that op.

    Parameters
    ----------
    before, after
        The reports.
    times
        The times of both, in microseconds by the name of what was measured; none: not compared.
    accuracies
        The accuracy reports of both; none: not compared.
    profiles
        The profiles of both; none: not compared.

    Returns
    -------
    comparison
        What differs.

    Raises
    ------
    ValueError
        A profile is of another model than its report.
    """
    changes: list[Change] = []
    for one, two in _pairs(before.ops, after.ops):
        changes += _op_changes(one, two)
    if times is not None:
        changes += _times(*times)
    whole: tuple[Change, ...] = ()
    if profiles is not None:
        whole, found = differences((before, after), profiles)
        changes += found
    if accuracies is not None:
        changes += _accuracy(*accuracies)
    return Comparison(before.summary, after.summary, tuple(changes), whole)


def _pairs(
    before: Iterable[OpPlacement], after: Iterable[OpPlacement]
) -> list[tuple[OpPlacement | None, OpPlacement | None]]:
    """Return the pairs of ops, in the order of the later model, and the unpaired ops."""
    # Bookkeeping computes nothing, and depends on the importer.
    old, new = (_by_key(op for op in ops if not op.bookkeeping) for ops in (before, after))
    parts_of_old, parts_of_new = _by_part(old.values()), _by_part(new.values())
    pairs: list[tuple[OpPlacement | None, OpPlacement | None]] = [
        (old.get(key) or _renamed(parts_of_old, op), op) for key, op in new.items()
    ]
    gone = [op for key, op in old.items() if key not in new]
    return [*pairs, *((op, _renamed(parts_of_new, op)) for op in gone)]


_Parts = Mapping[tuple[str, str], OpPlacement]


def _by_part(ops: Iterable[OpPlacement]) -> _Parts:
    """Return ops by function and each of the other names that they stand for."""
    return {
        (op.function, name): op for op in ops if op.origin is not None for name in op.origin.others
    }


def _renamed(parts: _Parts, op: OpPlacement) -> OpPlacement | None:
    """Return the op of the other report that also stands for this one, renamed to it."""
    whole = parts.get((op.function, str(op.origin or "")))
    return None if whole is None else replace(whole, name=op.name, op=op.op, origin=op.origin)


_Key = tuple[str, str, str, int]


def _by_key(ops: Iterable[OpPlacement]) -> dict[_Key, OpPlacement]:
    """Return ops by function, author's name, op, and number among those that are alike."""
    found: dict[_Key, OpPlacement] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for op in ops:
        same = (op.function, str(op.origin or ""), op.op)
        counts[same] = counts.get(same, -1) + 1
        key = (*same, counts[same])
        found[key] = op
    return found


def _op_changes(one: OpPlacement | None, two: OpPlacement | None) -> list[Change]:
    if one is None:
        return [] if two is None else [Change("added", two.title, two.op, None, two.placement)]
    if two is None:
        return [Change("removed", one.title, one.op, one.placement, None)]
    if one.placement != two.placement:
        is_worse = two.placement == "host"
        reason = f"[{two.code}] {two.reason}" if is_worse else str(two.composite or "")
        places = (one.placement, two.placement)
        return [Change("placement", two.title, two.op, *places, is_worse, reason)]
    if one.runs_in == two.runs_in:
        return []
    is_worse = two.wider is not None and one.wider is None
    reason = f"[{two.wider_code}] {two.wider}" if two.wider is not None else ""
    return [Change("type", two.title, two.op, one.runs_in, two.runs_in, is_worse, reason)]


def _times(before: Mapping[str, float], after: Mapping[str, float]) -> list[Change]:
    """Compare the times of everything that both name."""
    changes = []
    for name, time in after.items():
        known = before.get(name, 0.0)
        if known > 0 and time > 0 and not known / SLOWER < time < known * SLOWER:
            factor = f"{time / known:.2f} times as long"
            changes.append(Change("time", name, "", known, time, time > known, factor, "us"))
    return changes


def _accuracy(before: AccuracyReport, after: AccuracyReport) -> list[Change]:
    """Compare signal-to-noise ratios in decibels: of each layer, and of the outputs."""

    def key(layer: LayerAccuracy) -> tuple[str, str]:
        return layer.origin or layer.float_name, layer.summary

    old = {key(layer): layer.snr_db for layer in before.layers}
    pairs = [(*key(layer), old.get(key(layer)), layer.snr_db) for layer in after.layers]
    pairs += [
        (f"output {index}", "the whole model", one.snr_db, two.snr_db)
        for index, (one, two) in enumerate(zip(before.outputs, after.outputs, strict=False))
    ]
    return [
        Change("accuracy", name, what, one, two, two < one, unit="dB")
        for name, what, one, two in pairs
        # Both may be infinite, where nothing is lost.
        if one is not None and one != two and abs(one - two) >= LESS_EXACT
    ]


def _row(change: Change) -> tuple[str, ...]:
    both = (_text(value, change.unit) for value in (change.before, change.after))
    return (change.op, change.name, *both, change.reason)


def _text(value: str | float | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if value == math.inf:
        return "exact"
    number = f"{value:,.3f}" if unit == "us" and 0 < value < 10 else f"{value:,.1f}"
    # Times of a driver are whole, unless its runs differ.
    return f"{number if unit in ('us', 'dB') else number.removesuffix('.0')} {unit}"
