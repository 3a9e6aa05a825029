# SPDX-License-Identifier: Apache-2.0
"""The conformance kit, which tells whether the backend does what it claims.

`python -m`, with the name of the backend's package, and `conformance` runs it.
Nothing of it is loaded when the backend is.
"""

from .result import Outcome, Result
from .runner import SUITES, cases_of, run
from .suite import NotRun, Settings

__all__ = ["SUITES", "NotRun", "Outcome", "Result", "Settings", "cases_of", "run"]
