# SPDX-License-Identifier: Apache-2.0
"""Each op's NumPy formula and cases, from npu-scaffold's catalogue and from the vendor."""

from __future__ import annotations

from typing import Any

from ..backend import read_cases

OPS: dict[str, dict[str, Any]] = read_cases()
"""By op: the formula in NumPy, benchmarks, the number of results, cases, and refused cases."""
