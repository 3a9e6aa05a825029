# SPDX-License-Identifier: Apache-2.0
"""Where the elements of results come from, for each Relax op of the catalogue, selected or not."""

from __future__ import annotations

import json
from pathlib import Path

_OPS: dict[str, list[str]] = json.loads(Path(__file__).with_name("relax_ops.json").read_text())

POINTWISE = frozenset(_OPS["pointwise"])
"""Each element is computed from one of each operand, as in `add`."""
CHOSEN = frozenset(_OPS["chosen"])
"""Each element is one of the first operand, chosen by its value, as in `max_pool2d`."""
MOVED = frozenset(_OPS["moved"]) | CHOSEN
"""Each element is one of the first operand, as in `reshape`; what reads a tuple is in `JOINED`."""
JOINED = frozenset(_OPS["joined"])
"""Each element is one of several operands, as in `concat`, or a number of the op, as in `pad`.

A pass that moves other elements instead must convert that number, too.
"""
