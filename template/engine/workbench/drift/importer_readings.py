# SPDX-License-Identifier: Apache-2.0
"""Finds out what the installed importers read, and compares it with the committed readings."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
from typing import NamedTuple

from ...backend.importers.attributes.readings import Readings, Row


def text_of(readings: Readings) -> str:
    """Return readings as JSON with one line for each operator, so that diffs can be read."""
    parts = []
    for part, rows in readings.items():
        lines = [f"  {json.dumps(op)}: {json.dumps(row)}" for op, row in rows.items()]
        body = ",\n".join(lines)
        parts.append(f" {json.dumps(part)}: {{\n{body}\n }}" if lines else f' "{part}": {{}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


@functools.cache
def find(front_door: str) -> Readings | None:
    """Return what the installed importer reads, or None without the package of its operators."""
    if importlib.util.find_spec(front_door) is None:
        return None
    module = importlib.import_module(f".{front_door}_rows", __package__)
    readings: Readings = module.find_readings()
    return readings


class Change(NamedTuple):
    """A sentence about what is read of an operator, and whether something is no longer read."""

    loses: bool
    operator: str
    sentence: str


def changes(recorded: Readings, current: Readings) -> list[Change]:
    """Compare two readings, except attributes of only one: these come with the user's schemas."""
    result = []
    for part in recorded.keys() & current.keys():
        before, now = recorded[part], current[part]
        by = "" if part == "importer" else ", by a rule of ours"
        for op in before.keys() & now.keys():
            for sentence in _changes_of(before[op], now[op]):
                result.append(Change("not" in sentence, f"{op}{by}", sentence))
        old_names, new_names = ({_name(op) for op in rows} for rows in (before, now))
        result += [Change(False, f"{op}{by}", "is new") for op in new_names - old_names]
        result += [Change(False, f"{op}{by}", "is gone") for op in old_names - new_names]
    return sorted(result, key=lambda change: change.operator)


def _name(op: str) -> str:
    """Return an operator without its version."""
    name, _, version = op.rpartition("-")
    return name if version.isdecimal() else op


def _changes_of(before: Row, now: Row) -> list[str]:
    old, new = _states(before), _states(now)
    return [
        f"{name!r} {new[name].replace('is ', 'is now ')}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]


def _states(row: Row) -> dict[str, str]:
    states = dict.fromkeys(row.get("hands_on", ()), "is handed on")
    states |= dict.fromkeys(row["ignores"], "is not read")
    return states | dict.fromkeys(row["reads"], "is read")
