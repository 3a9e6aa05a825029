# SPDX-License-Identifier: Apache-2.0
"""The author's names of ops in sentences of the engine and of drivers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from .report import OpPlacement, RegionPlacement

_VARIABLE = re.compile(r"(?<=\w \()\w+(?=\))|(?<=')\w+(?=' inside of it)")
"""Matches a variable in a sentence of the engine or a driver: "relax.add (lv)". Other names in
quotes are those of an op's arguments."""


class Names:
    """Puts the names of the author instead of variables into sentences."""

    def __init__(self, ops: Sequence[OpPlacement]) -> None:
        self._names = {
            (op.function, op.name): op.origin.module or op.origin.name for op in ops if op.origin
        }

    def named(self, function: str, sentence: str) -> str:
        """Return a sentence about an op of a function."""
        return _VARIABLE.sub(
            lambda match: self._names.get((function, match[0]), match[0]), sentence
        )

    def of_op(self, op: OpPlacement) -> OpPlacement:
        """Return an op with such sentences."""
        if not op.reason and not op.wider:
            return op
        reason, wider = (text and self.named(op.function, text) for text in (op.reason, op.wider))
        return replace(op, reason=reason, wider=wider)

    def of_region(self, region: RegionPlacement) -> RegionPlacement:
        """Return a region with such sentences."""
        warnings, notes = (
            tuple(self.named(region.function, text) for text in texts)
            for texts in (region.warnings, region.notes)
        )
        return replace(region, warnings=warnings, notes=notes)
