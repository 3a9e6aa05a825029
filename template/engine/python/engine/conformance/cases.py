# SPDX-License-Identifier: Apache-2.0
"""What each op computes, and its cases, as the catalogue of npu-scaffold has them."""

from __future__ import annotations

import json
from typing import Any

from ..backend import CASES

OPS: dict[str, dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))
"""By op: the formula in NumPy, benchmarks, the number of results, cases, and refused cases."""
