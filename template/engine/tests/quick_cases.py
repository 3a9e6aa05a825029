# SPDX-License-Identifier: Apache-2.0
"""The cases of the conformance kit's suites that show quickly that something is wrong."""

from collections import Counter

from backend.engine.workbench.conformance import composites, ops, quantized
from support import entry_of


def _covering(parts_of):
    """Return the names that have a part that no earlier one has."""
    covered = set()
    chosen = []
    for name, parts in parts_of.items():
        if not parts <= covered:
            covered |= parts
            chosen.append(name)
    return chosen


def of_ops():
    """Return a few cases of each op, of one element type.

    All cases of the ops that others are fused with, but no edge cases; two cases of each other op,
    and one that the table refuses.
    """
    chosen = []
    counts = Counter()
    for name, work in ops._works().items():
        if work.case.dtype or "edge" in work.case.entry:
            continue
        counts[work.case.op, work.expected] += 1
        most = 2 if work.expected == "all" else 1
        if counts[work.case.op, work.expected] <= most or entry_of(work.case.op).fuses is not None:
            chosen.append(name)
    return chosen


def of_composites():
    """Return cases, each with a part that no earlier one has.

    Parts of different ops count as different, except activations.
    """
    works = sorted(composites._works().items(), key=lambda item: -len(item[1].tails))
    return _covering(
        {
            name: {
                (work.op, *map(str, work.transposed)),
                (work.activation,),
                *((work.op, part) for part in (*work.sums, work.way, work.case.dtype)),
            }
            for name, work in works
        }
    )


def of_quantized():
    """Return cases, each with an op or a variant that no earlier one has."""
    return _covering({name: {work.op, work.kind} for name, work in quantized._works().items()})
