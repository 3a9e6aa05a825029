# SPDX-License-Identifier: Apache-2.0
"""Compares two reports: what moved, what changed type, what got slower or less exact."""

from .comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
