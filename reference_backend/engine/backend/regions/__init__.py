# SPDX-License-Identifier: Apache-2.0
"""Cuts the NPU's part out of a model: composites, and regions of composites.

The patterns and their precedence are those registered with TVM. Fusing and merging
are done here: TVM's passes fail at a cyclic dependency, a `match_cast`, a branch or a packed call,
sometimes make two regions wait for each other, and see only the function `main`.
"""

from .block import MOST_CUTS
from .partitioner import Partitioner

__all__ = ["MOST_CUTS", "Partitioner"]
