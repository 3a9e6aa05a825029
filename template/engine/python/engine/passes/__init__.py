# SPDX-License-Identifier: Apache-2.0
"""What is done to a model before it is partitioned; none of it changes what the model computes.

`pipeline` lists the passes; each of the other modules has the rewrites of one subject.
"""

from .pipeline import CANONICALIZATION, Pass, passes_for, simplify
from .rewriting import bound_values, drop_unused, is_opaque

__all__ = [
    "CANONICALIZATION",
    "Pass",
    "bound_values",
    "drop_unused",
    "is_opaque",
    "passes_for",
    "simplify",
]
