# SPDX-License-Identifier: Apache-2.0
"""Canonicalization before partitioning; no pass changes what the model computes.

`pipeline` lists the passes; each other module holds the rewrites of one subject.
"""

from .pipeline import CANONICALIZATION, Pass, for_host, passes_for, simplify
from .rewriting import bound_values, drop_unused, is_opaque

__all__ = [
    "CANONICALIZATION",
    "Pass",
    "bound_values",
    "drop_unused",
    "for_host",
    "is_opaque",
    "passes_for",
    "simplify",
]
