# SPDX-License-Identifier: Apache-2.0
"""The conformance kit, which checks that the backend does what it claims.

`python -m <package> conformance` runs it. Loading the backend does not load the kit.
"""

from .outcomes import Outcome, Result
from .runner import SUITES, cases_of, run
from .suite import NotRun, Settings

__all__ = ["SUITES", "NotRun", "Outcome", "Result", "Settings", "cases_of", "run"]
