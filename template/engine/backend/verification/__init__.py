# SPDX-License-Identifier: Apache-2.0
"""Verification: a compiled model against the original, which its own framework runs.

`originals` runs the original, and `verify` compares. Reports have the outcome, too.
"""

from ..report.verification import ResultCheck, Verification

__all__ = ["ResultCheck", "Verification"]
