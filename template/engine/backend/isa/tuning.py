# SPDX-License-Identifier: Apache-2.0
"""What tuning finds: sizes for the rules of schedules, and the file that keeps them.

The file has a line of JSON for each trial, so that several are merged by putting one behind the
other: of a kernel, the sizes that take the fewest cycles count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from .encoding import fingerprint
from .machine import Machine

FILE = "tuning.jsonl"
"""The file in vendor/ that the compiler reads."""

Sizes = Mapping[str, int]
Rule = TypeVar("Rule", bound=Callable[..., Any])


def tunable(**space: Sequence[int]) -> Callable[[Rule], Rule]:
    """Declare which sizes a rule takes by name, and which numbers of each tuning tries.

    What a rule is not given, it chooses itself.
    """

    def declared(rule: Rule) -> Rule:
        rule.space = space  # type: ignore[attr-defined]
        return rule

    return declared


def space_of(rule: Callable[..., Any]) -> Mapping[str, Sequence[int]]:
    """Return what `tunable` has declared for a rule."""
    space: Mapping[str, Sequence[int]] = getattr(rule, "space", {})
    return space


@dataclass(frozen=True)
class Record:
    """A trial.

    Parameters
    ----------
    table
        The machine that it is for: `table_of`.
    kernel
        The kernel's loops: `key_of`.
    sizes
        The sizes; without any, the rule has chosen all.
    cycles
        How many the emulator counts; None if the kernel does not fit, or is slower than another.
    name
        What the kernel is called, for readers.
    """

    table: str
    kernel: str
    sizes: Sizes
    cycles: int | None
    name: str = ""

    @property
    def line(self) -> str:
        """The record in the file."""
        return json.dumps(asdict(self), sort_keys=True) + "\n"


def table_of(machine: Machine) -> str:
    """Return a digest of what cycles depend on, so that records are not used for another table."""
    parts: list[object] = [fingerprint(machine), machine.issue, machine.queue]
    parts += [(it.name, it.cycles, it.engine) for it in machine.instructions.values()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def key_of(function: Any) -> str:
    """Return a digest of a kernel's loops, a `tirx.PrimFunc`."""
    return hashlib.sha256(function.script().encode()).hexdigest()[:16]


def read(path: Path, table: str) -> list[Record]:
    """Return the records of a table; none if there is no file.

    Raises
    ------
    ValueError
        The file has something else; the message says in which line.
    """
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            record = Record(**json.loads(line))
            whole = [*record.sizes.values(), record.cycles or 0]
            if not all(isinstance(it, int) for it in whole):
                raise TypeError
        except (TypeError, ValueError, AttributeError):
            raise ValueError(
                f"{path}, line {number}: it is no record of tuning; remove the line, or tune again"
            ) from None
        if record.table == table:
            found.append(record)
    return found


def best_of(records: Iterable[Record]) -> dict[str, Record]:
    """Return the fastest record of each kernel, in whatever order they are."""
    found: dict[str, Record] = {}
    for record in records:
        if record.cycles is None:
            continue
        known = found.get(record.kernel)
        rank = (record.cycles, record.line)
        if known is None or rank < (known.cycles or 0, known.line):
            found[record.kernel] = record
    return found
