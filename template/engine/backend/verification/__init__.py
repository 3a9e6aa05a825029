# SPDX-License-Identifier: Apache-2.0
"""Verification: a compiled model against the original, which its own framework runs.

`originals` runs the original, `verify` compares, and `result` holds the outcome, which reports have
too.
"""

from ..report.verification import ResultCheck, Verification

__all__ = ["ResultCheck", "Verification"]
