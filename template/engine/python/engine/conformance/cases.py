# SPDX-License-Identifier: Apache-2.0
"""Each op's NumPy formula and cases, from npu-scaffold's catalogue."""

from __future__ import annotations

import json
from typing import Any

from ..backend import CASES

OPS: dict[str, dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))
"""By op: the formula in NumPy, benchmarks, the number of results, cases, and refused cases."""
