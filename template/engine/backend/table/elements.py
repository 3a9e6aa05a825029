# SPDX-License-Identifier: Apache-2.0
"""Where the elements of results come from, for each Relax op of the catalogue, selected or not."""

from __future__ import annotations

import json
from pathlib import Path

_OPS: dict[str, list[str]] = json.loads(Path(__file__).with_name("relax_ops.json").read_text())

POINTWISE = frozenset(_OPS["pointwise"])
"""Each element is computed from one of each operand."""
CHOSEN = frozenset(_OPS["chosen"])
"""Each element is one of the first operand, chosen by its size."""
MOVED = frozenset(_OPS["moved"]) | CHOSEN
"""Each element is one of the first operand."""
JOINED = frozenset(_OPS["joined"])
"""Each element is one of several operands, or a number of the op's own."""
